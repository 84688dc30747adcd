"""Tokens of a server, from its start through its reloads."""

import json
import signal
import ssl
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from harness.frames import ASK, everything, frame, receive, reset_at_close
from harness.server import ROOT, running_server
from tests.certificates import Certificates
from tests.fault.authentication import (
    AUTH,
    AUTHENTICATED,
    EXPIRED,
    FEW,
    TOKEN,
    client_hello,
    error_code,
    is_let_in,
    is_served,
    secured,
)
from tests.programs import run


class TestTokens:
    def test_requests_may_follow_the_auth_frame_without_waiting(self, with_tokens):
        with with_tokens.connect() as sock:
            sock.sendall(frame(AUTH) + frame({"id": 1, **ASK}) * 2)
            assert receive(sock) == AUTHENTICATED
            assert {receive(sock).get("answer", "twice") for _ in range(2)} >= {"twice"}

    @pytest.mark.parametrize(
        ("first", "message"),
        [
            ({"type": "auth", "token": TOKEN[:-1]}, "the token is not accepted"),
            ({"type": "auth", "token": ""}, "no token was sent"),
            ({"type": "auth", "token": EXPIRED}, "the token has expired"),
            ({"type": "auth"}, "wants a token"),
            ({"type": "auth", "token": 5}, "wants a token"),
            ({"id": 1, **ASK}, "wants a token"),
            ({"id": 1, **ASK, "padding": "x" * 10_000}, "wants a token"),
            (b"garbage", "wants a token"),
            (b"", "wants a token"),
        ],
    )
    def test_a_first_frame_without_a_valid_token_is_refused_and_nothing_runs(
        self, with_tokens, first, message
    ):
        with with_tokens.connect() as sock:
            sock.sendall(frame(first) + frame(AUTH) + frame({"id": 1, **ASK}))
            reply = receive(sock)
            assert (reply["id"], reply["error"]["code"]) == (None, "unauthorized")
            assert message in reply["error"]["message"]
            assert receive(sock) is None

    def test_the_auth_timeout_does_not_apply_to_authenticated_clients(self, hasty_with_tokens):
        """Who shows its token too late here, and that only, tries again."""
        with ExitStack() as open_sockets:
            while True:
                sock = open_sockets.enter_context(hasty_with_tokens.connect())
                if is_let_in(sock):
                    break
            silent = open_sockets.enter_context(hasty_with_tokens.connect())
            assert receive(silent)["error"]["code"] == "unauthorized"
            assert is_served(sock)

    def test_only_the_first_frame_is_an_auth_frame(self, with_tokens):
        with with_tokens.connect() as sock:
            sock.sendall(frame(AUTH) * 2)
            assert receive(sock) == AUTHENTICATED
            assert receive(sock)["error"]["code"] == "invalid_request"

    def test_a_server_without_tokens_accepts_an_auth_frame(self, plain):
        with plain.connect() as sock:
            sock.sendall(frame({**AUTH, "id": 5}))
            assert receive(sock) == {**AUTHENTICATED, "id": 5}
            assert is_served(sock)

    def test_a_tls_handshake_at_a_plain_port_is_closed(self, plain, with_tokens, certificates):
        hello = client_hello(certificates)
        for server, code in ((plain, "frame_too_large"), (with_tokens, "unauthorized")):
            with server.connect() as sock:
                sock.sendall(hello)
                assert error_code(everything(sock)) == code


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
            assert is_let_in(old)
            pids = server.worker_pids()

            tokens.write_text("two words more")
            server.signal(signal.SIGHUP)
            server.wait_for_log("certificates and tokens are unchanged")
            old.sendall(frame({"type": "health"}))
            fault = receive(old)["health"]["reload_fault"]
            assert fault.startswith("certificates and tokens are unchanged: ")
            with secured(server, first.client_context()) as sock:
                assert is_let_in(sock)

            second = Certificates(tmp_path)
            soon = datetime.now(UTC) + timedelta(hours=1)
            tokens.write_text(f"{EXPIRED} {soon.isoformat()}\n")
            server.signal(signal.SIGHUP)
            server.wait_for_log("1 tokens are accepted from now on")
            with secured(server, second.client_context()) as sock:
                sock.sendall(frame(AUTH))
                assert receive(sock)["error"]["code"] == "unauthorized"
            with secured(server, second.client_context()) as sock:
                assert is_let_in(sock, EXPIRED)
            assert is_served(old), "who is in stays in"
            assert server.worker_pids() == pids
            assert TOKEN not in server.log
            assert EXPIRED not in server.log


class TestStart:
    @pytest.mark.parametrize(
        ("host", "with_token", "words"),
        [
            ("0.0.0.0", False, "0.0.0.0 is open to anyone"),
            ("0.0.0.0", True, "tokens are sent to 0.0.0.0 unencrypted"),
            ("127.0.0.1", False, ""),
        ],
    )
    def test_a_server_open_to_the_network_without_tokens_logs_a_warning(
        self, builtin_model, token_file, host, with_token, words
    ):
        flags = ("--auth_token_file", str(token_file)) if with_token else ()
        with running_server(builtin_model, *FEW, "--host", host, *flags) as server:
            server.wait_for_log(words)
            assert ("WARNING" in server.log) == bool(words)


class TestLogs:
    def test_logs_and_errors_contain_no_words_of_a_question(self, builtin_model, token_file):
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
                reset_at_close(sock)
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            server.wait_for_log("is refused")
            assert secret not in server.log
            assert TOKEN not in server.log


def test_the_commands_of_the_page_make_valid_certificates(builtin_model, tmp_path):
    """Also for the stricter checks that later Pythons make by default."""
    page = (ROOT / "docs" / "SECURITY.md").read_text()
    commands = page.split("```bash\n")[1].split("```")[0]
    ran = run("bash", "-c", f"set -e\n{commands}", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    certs = tmp_path / "certs"
    context = ssl.create_default_context(cafile=certs / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    files = ("--tls_cert", str(certs / "server.pem"), "--tls_key", str(certs / "server.key"))
    with running_server(builtin_model, *FEW, *files) as server, secured(server, context) as sock:
        assert is_served(sock)
