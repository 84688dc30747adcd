"""Who may come in: TLS and tokens, as clients of every kind find them at a running server."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from qa_service.client import QaClient, QaServerError, TlsError, tls_context
from tests.certificates import Certificates
from tests.running_server import ROOT, RunningServer, running_server
from tests.support import frame, receive

ASK = {
    "question": "Who wrote the notes?",
    "text": "Ada Lovelace wrote the notes in London in 1843.",
}
TOKEN = "3bQ1xT0yqWcV7uKfJm2sZg"
EXPIRED = "Zt0xT0yqWcV7uKfJm2sZgA"
AUTH = {"type": "auth", "token": TOKEN}
LET_IN = {"id": None, "type": "auth", "ok": True}
FEW = ("--num_inference_sessions", "1", "--log_level", "info")
SHORT_MS = "500"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def token_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.touch(mode=0o600)
    path.write_text(f"# tests\n{TOKEN}\n{EXPIRED} 2020-01-01T00:00:00Z\n")
    return path


@pytest.fixture(scope="module")
def tls(builtin_model, certificates):
    """A server that speaks TLS and lets everyone in."""
    flags = ("--tls_handshake_timeout_ms", SHORT_MS, "--max_frame_bytes", str(1 << 20))
    with running_server(builtin_model, *FEW, *certificates.server_flags, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(builtin_model, certificates):
    """A server that wants a client's certificate."""
    ca = ("--tls_client_ca", str(certificates.ca))
    with running_server(builtin_model, *FEW, *certificates.server_flags, *ca) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(builtin_model, token_file):
    """A server that wants a token."""
    flags = ("--auth_token_file", str(token_file), "--auth_timeout_ms", SHORT_MS)
    with running_server(builtin_model, *FEW, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def plain(builtin_model):
    """A server that lets everyone in."""
    with running_server(builtin_model, *FEW) as server:
        yield server


@contextmanager
def secured(server: RunningServer, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    """A connection that has shaken hands."""
    with (
        server.connect() as sock,
        context.wrap_socket(sock, server_hostname="localhost") as wrapped,
    ):
        yield wrapped


def is_served(sock: socket.socket) -> bool:
    sock.sendall(frame({"id": 1, **ASK}))
    return "Lovelace" in receive(sock)["answer"]


def everything(sock: socket.socket) -> bytes:
    """All that comes until the end, be it a close or a reset."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := sock.recv(1 << 16):
            data += piece
    return data


def error_code(data: bytes) -> str:
    """The code of the one error frame that this is."""
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    reply = json.loads(data[4:])
    assert set(reply) == {"id", "error"}
    assert reply["id"] is None
    assert not reply["error"]["retryable"]
    return reply["error"]["code"]


class TestTls:
    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_serves(self, tls, certificates, version):
        context = certificates.client_context()
        context.maximum_version = version
        with secured(tls, context) as sock:
            assert is_served(sock)

    @pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1")
    def test_1_1_is_refused(self, tls, certificates):
        context = certificates.client_context()
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"), secured(tls, context):
            pass

    def test_a_client_that_does_not_know_the_authority_goes_away(self, tls, certificates):
        with (
            pytest.raises(ssl.SSLCertVerificationError),
            secured(tls, ssl.create_default_context()),
        ):
            pass
        with secured(tls, certificates.client_context()) as sock:
            assert is_served(sock)

    def test_the_bare_protocol_is_told_so_and_closed(self, tls):
        with tls.connect() as sock:
            sock.sendall(frame({"id": 1, **ASK}) * 100)
            assert error_code(everything(sock)) == "tls_required"

    @pytest.mark.parametrize(
        "data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 10_000, b"SSH-2.0-x\r\n"]
    )
    def test_anything_else_is_closed_without_a_word(self, tls, data):
        with tls.connect() as sock:
            sock.sendall(data)
            assert everything(sock) == b""

    @pytest.mark.parametrize("data", [b"\x16" * 10_000, b"\x16\x03\x01\x02\x00\x01" + b"\0" * 600])
    def test_what_begins_like_tls_and_is_not_gets_an_alert_at_most(self, tls, data):
        with tls.connect() as sock:
            sock.sendall(data)
            assert everything(sock)[:1] in {b"", b"\x15"}

    def test_handshakes_that_stall_end_while_others_are_served(self, tls, certificates):
        hello = client_hello(certificates)
        stalled = [tls.connect() for _ in range(50)]
        started_s = time.monotonic()
        for number, sock in enumerate(stalled):
            sock.sendall(hello[: number * len(hello) // len(stalled)])
        with secured(tls, certificates.client_context()) as sock:
            assert is_served(sock)
            assert time.monotonic() - started_s < int(SHORT_MS) / 1e3
            for waiting in stalled:
                assert everything(waiting) == b""
                waiting.close()
            took_s = time.monotonic() - started_s
            assert is_served(sock)
        assert int(SHORT_MS) / 1e3 * 0.9 < took_s < 10
        assert "its TLS handshake takes too long" in tls.log

    def test_a_byte_at_a_time(self, tls, certificates):
        """The records of a handshake and of a request, each in pieces of one byte."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = certificates.client_context()
        session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with tls.connect() as sock:

            def until_done(step):
                while True:
                    try:
                        result = step()
                    except ssl.SSLWantReadError:
                        result = None
                    for byte in outgoing.read():
                        sock.sendall(bytes([byte]))
                    if result is not None:
                        return result
                    incoming.write(sock.recv(1 << 16))

            until_done(lambda: session.do_handshake() or True)
            until_done(lambda: session.write(frame({"id": 1, **ASK})))
            assert b"Lovelace" in until_done(lambda: session.read(1 << 16))

    def test_frames_of_a_megabyte_pipelined(self, tls, certificates):
        """More than all buffers hold, so each side must read while it writes."""
        body = json.dumps({"id": 0, **ASK, "padding": ""}).encode()
        large = {**ASK, "padding": "x" * ((1 << 20) - len(body) - 10)}
        with (
            secured(tls, certificates.client_context()) as sock,
            ThreadPoolExecutor(1) as executor,
        ):
            sent = executor.submit(
                lambda: [sock.sendall(frame({"id": i, **large})) for i in range(20)]
            )
            replies = [receive(sock) for _ in range(20)]
            sent.result()
        assert sorted(reply["id"] for reply in replies) == list(range(20))
        assert all("Lovelace" in reply["answer"] for reply in replies)

    def test_answers_of_a_megabyte_to_a_slow_reader(self, tls, certificates):
        """An id echoed 20,000 times is more than the kernel and the output buffer hold."""
        bad = frame({"id": "x" * 200, "question": 5})
        with (
            secured(tls, certificates.client_context()) as sock,
            ThreadPoolExecutor(1) as executor,
        ):
            sent = executor.submit(lambda: sock.sendall(bad * 20_000))
            replies = [receive(sock) for _ in range(20_000)]
            sent.result()
        assert {reply["error"]["code"] for reply in replies} == {"invalid_request"}

    def test_a_client_that_says_goodbye_is_let_go(self, tls, certificates):
        with secured(tls, certificates.client_context()) as sock:
            assert is_served(sock)
            with suppress(ssl.SSLError, ConnectionError):
                sock.unwrap().close()
        with secured(tls, certificates.client_context()) as sock:
            assert is_served(sock)

    def test_a_refused_frame_is_told_then_goodbye(self, tls, certificates):
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
            server.wait_for_queue(sock)
            server.signal(signal.SIGTERM)
            replies = [receive(sock) for _ in range(20)]
            assert receive(sock) is None
            assert server.wait() == 0
        assert sorted(reply["id"] for reply in replies) == list(range(20))
        assert all("Lovelace" in reply["answer"] for reply in replies)


class TestMutualTls:
    def test_a_client_with_a_certificate_is_served(self, mutual, certificates):
        with secured(mutual, certificates.client_context(with_certificate=True)) as sock:
            assert is_served(sock)

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_a_client_without_one_is_not(self, mutual, certificates, version):
        context = certificates.client_context()
        context.maximum_version = version
        with (
            pytest.raises(ssl.SSLError, match=r"CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE"),
            secured(mutual, context) as sock,
        ):
            is_served(sock)

    def test_a_client_with_somebody_elses_is_not(self, mutual, certificates, tmp_path):
        other = Certificates(tmp_path)
        context = certificates.client_context()
        context.load_cert_chain(other.client_cert, other.client_key)
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"), secured(mutual, context) as sock:
            is_served(sock)


class TestTokens:
    def test_a_token_lets_in_and_requests_may_be_right_behind_it(self, guarded):
        with guarded.connect() as sock:
            sock.sendall(frame(AUTH) + frame({"id": 1, **ASK}) * 2)
            assert receive(sock) == LET_IN
            assert {receive(sock).get("answer", "twice") for _ in range(2)} >= {"twice"}

    @pytest.mark.parametrize("piece", [1, 7])
    def test_a_few_bytes_at_a_time(self, guarded, piece):
        data = frame(AUTH) + frame({"id": 1, **ASK})
        with guarded.connect() as sock:
            for start in range(0, len(data), piece):
                sock.sendall(data[start : start + piece])
            assert receive(sock) == LET_IN
            assert "Lovelace" in receive(sock)["answer"]

    @pytest.mark.parametrize(
        ("first", "message"),
        [
            ({"type": "auth", "token": TOKEN[:-1]}, "the token is not accepted"),
            ({"type": "auth", "token": ""}, "the token is not accepted"),
            ({"type": "auth", "token": EXPIRED}, "the token has expired"),
            ({"type": "auth"}, "wants a token"),
            ({"type": "auth", "token": 5}, "wants a token"),
            ({"id": 1, **ASK}, "wants a token"),
            ({"id": 1, **ASK, "padding": "x" * 10_000}, "wants a token"),
            (b"garbage", "wants a token"),
            (b"", "wants a token"),
        ],
    )
    def test_anything_else_first_is_refused_and_nothing_is_run(self, guarded, first, message):
        with guarded.connect() as sock:
            sock.sendall(frame(first) + frame(AUTH) + frame({"id": 1, **ASK}))
            reply = receive(sock)
            assert (reply["id"], reply["error"]["code"]) == (None, "unauthorized")
            assert message in reply["error"]["message"]
            assert receive(sock) is None

    def test_a_client_that_shows_nothing_is_refused_in_time(self, guarded):
        with guarded.connect() as silent, guarded.connect() as slow:
            slow.sendall(frame(AUTH)[:-1])
            for sock in (silent, slow):
                assert receive(sock)["error"]["code"] == "unauthorized"
                assert receive(sock) is None

    def test_a_client_that_is_in_is_not_hurried(self, guarded):
        with guarded.connect() as sock, guarded.connect() as silent:
            sock.sendall(frame(AUTH))
            assert receive(sock) == LET_IN
            assert receive(silent)["error"]["code"] == "unauthorized"
            assert is_served(sock)

    def test_only_the_first_frame_is_an_auth_frame(self, guarded):
        with guarded.connect() as sock:
            sock.sendall(frame(AUTH) * 2)
            assert receive(sock) == LET_IN
            assert receive(sock)["error"]["code"] == "invalid_request"

    def test_a_server_that_wants_none_lets_it_pass(self, plain):
        with plain.connect() as sock:
            sock.sendall(frame({**AUTH, "id": 5}))
            assert receive(sock) == {**LET_IN, "id": 5}
            assert is_served(sock)

    def test_tls_where_none_is_spoken_is_closed(self, plain, guarded, certificates):
        hello = client_hello(certificates)
        for server, code in ((plain, "frame_too_large"), (guarded, "unauthorized")):
            with server.connect() as sock:
                sock.sendall(hello)
                assert error_code(everything(sock)) == code

    def test_both_together(self, builtin_model, certificates, token_file):
        flags = (*certificates.server_flags, "--auth_token_file", str(token_file))
        with (
            running_server(builtin_model, *FEW, *flags) as server,
            secured(server, certificates.client_context()) as welcome,
            secured(server, certificates.client_context()) as unknown,
        ):
            unknown.sendall(frame({"id": 1, **ASK}))
            assert receive(unknown)["error"]["code"] == "unauthorized"
            assert receive(unknown) is None
            welcome.sendall(frame(AUTH))
            assert receive(welcome) == LET_IN
            assert is_served(welcome)


class TestClient:
    """QaClient, in every way that it may find a server."""

    def test_asks_over_tls_on_one_connection(self, tls, certificates):
        with QaClient("localhost", tls.port, tls=certificates.client_context()) as client:
            client.connect()
            connection = client._connection
            for _ in range(3):
                assert client.ask(**ASK).answer == "Ada Lovelace"
            assert client._connection is connection

    def test_asks_much_over_tls(self, tls, certificates):
        """Texts of 300 kB, so that both sides' buffers are full."""
        padded = ASK["text"] + " x" * 150_000
        with QaClient("localhost", tls.port, tls=certificates.client_context()) as client:
            answers = client.ask_many([("", padded)] * 60 + [(ASK["question"], ASK["text"])])
        assert [answer.code for answer in answers[:-1]] == ["invalid_request"] * 60
        assert answers[-1].answer == "Ada Lovelace"

    def test_mutual_tls(self, mutual, certificates):
        mine = tls_context(certificates.ca, certificates.client_cert, certificates.client_key)
        with QaClient("localhost", mutual.port, tls=mine) as client:
            assert client.ask(**ASK).answer == "Ada Lovelace"
        without = certificates.client_context()
        with (
            QaClient("localhost", mutual.port, tls=without) as client,
            pytest.raises(TlsError, match="asks for a client's certificate"),
        ):
            client.ask(**ASK)

    def test_a_token(self, guarded):
        with QaClient("localhost", guarded.port, token=TOKEN) as client:
            assert [a.answer for a in client.ask_many([tuple(ASK.values())] * 3)][2]

    @pytest.mark.parametrize(
        ("token", "words"),
        [("wrong", "not accepted"), (EXPIRED, "has expired"), (None, "wants a token")],
    )
    def test_the_wrong_one_or_none(self, guarded, token, words):
        with QaClient("localhost", guarded.port, token=token) as client:
            for error in client.ask_many([tuple(ASK.values())] * 40):
                assert (error.code, error.retryable) == ("unauthorized", False)
                assert words in str(error)

    def test_the_wrong_port(self, tls, plain, guarded, certificates):
        context = certificates.client_context()
        for server in (plain, guarded):
            with (
                QaClient("localhost", server.port, tls=context) as client,
                pytest.raises(TlsError, match="the server does not speak it"),
            ):
                client.connect()
        with (
            QaClient("localhost", tls.port) as client,
            pytest.raises(QaServerError, match="this server speaks TLS"),
        ):
            client.ask(**ASK)

    def test_a_server_that_is_not_trusted(self, tls, certificates, tmp_path):
        for context, host, words in (
            (tls_context(), "localhost", "not trusted .*issuer"),
            (Certificates(tmp_path).client_context(), "localhost", "not trusted"),
            (certificates.client_context(), "127.0.0.1", "not trusted .*mismatch"),
        ):
            with (
                QaClient(host, tls.port, tls=context) as client,
                pytest.raises(TlsError, match=words),
            ):
                client.connect()

    def test_files_that_cannot_be_used(self, certificates, tmp_path):
        for arguments, words in (
            ((tmp_path / "none",), r"none \(No such file"),
            ((certificates.key,), "no certificates can be read from"),
            ((None, tmp_path / "none"), "No such file"),
            ((None, certificates.cert, certificates.client_key), "not a pair"),
        ):
            with pytest.raises(TlsError, match=words):
                tls_context(*arguments)


class TestPrograms:
    """client.py and stress_test.py, with what lets them in from flags and the environment."""

    ONE = ("client.py", "--question", ASK["question"], "--text", ASK["text"])
    LOAD = ("stress_test.py", "--num_simultaneous_clients", "2", "--num_total_clients", "4")

    @pytest.mark.parametrize(("program", "result"), [(ONE, "Ada Lovelace"), (LOAD, "40")])
    def test_are_let_in(self, builtin_model, certificates, token_file, program, result):
        ca = ("--tls_client_ca", str(certificates.ca))
        flags = (*certificates.server_flags, *ca, "--auth_token_file", str(token_file))
        files = (str(path) for path in (certificates.client_cert, certificates.client_key))
        with running_server(builtin_model, *FEW, *flags) as server:
            names = ("--ca_file", "--client_cert", "--client_key")
            access = [*zip(names, (str(certificates.ca), *files), strict=True)]
            words = [word for pair in access for word in pair]
            for token in ({"QA_SERVER_TOKEN": TOKEN}, ("--token_file", str(token_file))):
                done = run_program(server, *program, *words, token=token)
                assert (done.returncode, result in done.stdout) == (0, True), done.stderr

    @pytest.mark.parametrize("program", [ONE, LOAD])
    def test_say_in_one_line_why_they_are_not(self, guarded, plain, tmp_path, program):
        (tmp_path / "empty").write_text("# nothing\n")
        wrong = {"QA_SERVER_TOKEN": "wrong"}
        for server, words, token, message in (
            (guarded, (), wrong, "the token is not accepted (unauthorized)"),
            (plain, ("--tls",), (), "the server does not speak it"),
            (plain, ("--ca_file", "none"), (), "no certificates can be read from none"),
            (plain, (), ("--token_file", str(tmp_path / "empty")), "holds no token"),
            (plain, (), ("--token_file", "none"), "No such file"),
        ):
            done = run_program(server, *program, *words, token=token)
            assert (done.returncode, done.stdout) == (2, "")
            assert message in done.stderr
            assert done.stderr.count("\n") == 1


def run_program(server, *words, token) -> subprocess.CompletedProcess[str]:
    """Runs a client program; the token is in the environment, a dict, or a flag's words."""
    environment = {"PATH": "/usr/bin:/bin"} | (token if isinstance(token, dict) else {})
    name, *flags = words
    more = () if isinstance(token, dict) else token
    command = [sys.executable, str(ROOT / name), "--port", str(server.port), *flags, *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


class TestReload:
    def test_tokens_and_certificates_are_read_again(self, builtin_model, tmp_path):
        first = Certificates(tmp_path)
        tokens = tmp_path / "tokens"
        tokens.write_text(TOKEN)
        flags = (*first.server_flags, "--auth_token_file", str(tokens))
        with (
            running_server(builtin_model, *FEW, *flags) as server,
            secured(server, first.client_context()) as old,
        ):
            old.sendall(frame(AUTH))
            assert receive(old) == LET_IN

            tokens.write_text("two words more")
            server.signal(signal.SIGHUP)
            server.wait_for_log("certificates and tokens stay as they were")
            with secured(server, first.client_context()) as sock:
                sock.sendall(frame(AUTH))
                assert receive(sock) == LET_IN

            second = Certificates(tmp_path)
            soon = datetime.now(UTC) + timedelta(hours=1)
            tokens.write_text(f"{EXPIRED} {soon.isoformat()}\n")
            server.signal(signal.SIGHUP)
            server.wait_for_log("1 tokens are let in from now on")
            with secured(server, second.client_context()) as sock:
                sock.sendall(frame(AUTH))
                assert receive(sock)["error"]["code"] == "unauthorized"
            with secured(server, second.client_context()) as sock:
                sock.sendall(frame({"type": "auth", "token": EXPIRED}))
                assert receive(sock) == LET_IN
            assert is_served(old), "who is in stays in"
            assert TOKEN not in server.log
            assert EXPIRED not in server.log


class TestStart:
    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (("--tls_cert", "{cert}"), "needed together"),
            (("--tls_key", "{key}"), "needed together"),
            (("--tls_client_ca", "{ca}"), "needed together"),
            (("--tls_cert", "no.pem", "--tls_key", "{key}"), "cannot read --tls_cert"),
            (("--tls_cert", "{client_cert}", "--tls_key", "{key}"), "not that of the certificate"),
            (("--auth_token_file", "none"), "cannot read --auth_token_file"),
            (("--auth_token_file", "{cert}"), "--auth_token_file"),
        ],
    )
    def test_what_cannot_be_used_is_one_line_and_code_2(
        self, builtin_model, certificates, flags, words
    ):
        flags = [flag.format(**vars(certificates)) for flag in flags]
        command = [sys.executable, str(ROOT / "server.py"), "--model", str(builtin_model)]
        done = subprocess.run(
            [*command, "--port", "0", *flags], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        ("host", "with_token", "words"),
        [
            ("0.0.0.0", False, "anyone who can reach 0.0.0.0"),
            ("0.0.0.0", True, "tokens come to 0.0.0.0 in clear"),
            ("127.0.0.1", False, ""),
        ],
    )
    def test_an_open_door_is_warned_of(self, builtin_model, token_file, host, with_token, words):
        flags = ("--auth_token_file", str(token_file)) if with_token else ()
        with running_server(builtin_model, *FEW, "--host", host, *flags) as server:
            assert words in server.log
            assert ("WARNING" in server.log) == bool(words)


class TestLogs:
    def test_logs_and_errors_hold_nothing_of_a_question(self, builtin_model, token_file):
        """Good, bad, late and unwelcome requests, each with words that occur nowhere else."""
        flags = ("--auth_token_file", str(token_file), "--max_queue_size", "1", *FEW)
        secret = "xyzzyquestion"
        ask = {"question": f"Where is the {secret}?", "text": f"The {secret} is in the mill."}
        with running_server(builtin_model, *flags) as server:
            with server.connect() as sock:
                sock.sendall(frame({"id": 1, **ask}))
                assert secret not in str(receive(sock))
            with server.connect() as sock:
                sock.sendall(frame(AUTH))
                bad = [
                    {**ask, "top_k": secret},
                    {**ask, "timeout_ms": -1},
                    {**ask, "question": secret * 1000},
                    json.dumps(ask).encode()[:-1],
                    json.dumps(ask).encode() + b"\xff",
                ]
                many = [{**ask, "timeout_ms": 0.001} for _ in range(20)]
                for request in (*bad, *many, *[ask] * 20):
                    sock.sendall(frame(request))
                replies = [receive(sock) for _ in range(46)]
                for reply in replies:
                    assert secret not in str(reply.get("error"))
                    assert "/" not in str(reply.get("error"))
                sock.sendall(frame(ask))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert "is refused" in server.log
            assert secret not in server.log
            assert TOKEN not in server.log


def client_hello(certificates: Certificates) -> bytes:
    """The first bytes of a client that speaks TLS."""
    outgoing = ssl.MemoryBIO()
    context = certificates.client_context()
    session = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()
