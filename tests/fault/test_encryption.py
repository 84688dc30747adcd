"""TLS as clients of every kind find it at a running server."""

import json
import re
import select
import signal
import ssl
import time

import pytest

from harness.frames import ASK, FIRST_WORD, everything, frame, receive
from harness.server import running_server
from tests.certificates import Certificates
from tests.fault.authentication import (
    FEW,
    SHORT_MS,
    client_hello,
    error_code,
    is_served,
    pipelined,
    secured,
)


def stalling(server, certificates):
    """Clients that have sent, each, a little more of their first bytes."""
    hello = client_hello(certificates)
    stalled = [server.connect() for _ in range(50)]
    for number, sock in enumerate(stalled):
        sock.sendall(hello[: number * len(hello) // len(stalled)])
    return stalled


class TestTls:
    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_a_question_is_answered(self, tls, certificates, version):
        context = certificates.client_context()
        context.maximum_version = version
        with secured(tls, context) as sock:
            assert is_served(sock)

    @pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1")
    def test_version_1_1_is_refused(self, tls, certificates):
        context = certificates.client_context()
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"), secured(tls, context):
            pass

    def test_plain_frames_at_a_tls_port_get_an_error_and_a_close(self, tls):
        with tls.connect() as sock:
            sock.sendall(frame({"id": 1, **ASK}) * 100)
            assert error_code(everything(sock)) == "tls_required"

    @pytest.mark.parametrize(
        ("data", "reply"),
        [
            (b"GET / HTTP/1.1\r\n\r\n", rb"HTTP/1\.1 400 .*https://.*"),
            (b"\r\nGET / HTTP/1.1\r\n\r\n", rb"HTTP/1\.1 400 .*https://.*"),
            (b"SSH-2.0-x\r\n", rb"HTTP/1\.1 400 .*https://.*"),
            (b"\xff" * 10_000, b""),
            (b"\x16" * 10_000, rb"(\x15.*)?"),
            (b"\x16\x03\x01\x02\x00\x01" + b"\0" * 600, rb"(\x15.*)?"),
        ],
        ids=["HTTP", "a blank line", "a letter", "noise", "a byte of TLS", "a hello of zeros"],
    )
    def test_plain_bytes_at_a_tls_port_get_http_400_an_alert_or_a_close(self, tls, data, reply):
        with tls.connect() as sock:
            sock.sendall(data)
            assert re.fullmatch(reply, everything(sock), re.DOTALL)

    def test_stalled_handshakes_do_not_delay_others(self, tls, certificates):
        stalled = stalling(tls, certificates)
        with secured(tls, certificates.client_context()) as sock:
            assert is_served(sock)
        assert select.select(stalled, [], [], 0)[0] == [], "they stall still"
        for waiting in stalled:
            waiting.close()

    def test_stalled_handshakes_time_out(self, hasty_tls, certificates):
        began_s = time.monotonic()
        for waiting in stalling(hasty_tls, certificates):
            assert everything(waiting) == b""
            waiting.close()
            assert time.monotonic() - began_s >= SHORT_MS / 1e3
        hasty_tls.wait_for_log("its TLS handshake timed out")
        assert hasty_tls.log.count("its TLS handshake timed out") == 1, "one a peer and minute"

    def test_pipelined_frames_of_a_megabyte_are_answered(self, tls, certificates):
        """More than all buffers hold, so each side must read while it writes."""
        body = json.dumps({"id": 0, **ASK, "padding": ""}).encode()
        large = {**ASK, "padding": "x" * ((1 << 20) - len(body) - 10)}
        sent = b"".join(frame({"id": i, **large}) for i in range(20))
        with secured(tls, certificates.client_context()) as sock:
            replies = pipelined(sock, sent, 20)
        assert sorted(reply["id"] for reply in replies) == list(range(20))
        assert all(reply["answer"] == FIRST_WORD for reply in replies)

    def test_a_refused_frame_gets_its_error_then_close_notify(self, tls, certificates):
        with secured(tls, certificates.client_context()) as sock:
            sock.sendall(b"\xff" * 100)
            assert receive(sock)["error"]["code"] == "frame_too_large"
            assert receive(sock) is None, "a close_notify, not a cut"

    def test_a_drain_answers_what_is_in_flight(self, builtin_model, certificates):
        with (
            running_server(builtin_model, *FEW, *certificates.server_flags) as server,
            secured(server, certificates.client_context()) as sock,
            server.connect() as shaking,
        ):
            shaking.sendall(client_hello(certificates)[:50])
            sock.sendall(b"".join(frame({"id": i, **ASK}) for i in range(20)))
            replies = server.wait_for_queue(sock)
            server.signal(signal.SIGTERM)
            replies += [receive(sock) for _ in range(20 - len(replies))]
            assert receive(sock) is None
            assert server.wait() == 0
        assert sorted(reply["id"] for reply in replies) == list(range(20))
        assert all(reply["answer"] == FIRST_WORD for reply in replies)


class TestMutualTls:
    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_a_client_without_certificate_is_refused(self, mutual, certificates, version):
        context = certificates.client_context()
        context.maximum_version = version
        with (
            pytest.raises(ssl.SSLError, match=r"CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE"),
            secured(mutual, context) as sock,
        ):
            is_served(sock)

    def test_a_client_with_a_certificate_of_another_authority_is_refused(
        self, mutual, certificates, tmp_path
    ):
        other = Certificates(tmp_path)
        context = certificates.client_context()
        context.load_cert_chain(other.client_cert, other.client_key)
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"), secured(mutual, context) as sock:
            is_served(sock)
