"""QaClient and the programs around it, at servers with TLS, certificates and tokens."""

import subprocess

import pytest

from harness.frames import ASK, FIRST_WORD
from qa_service.client import Answer, QaClient, QaServerError, TlsError, tls_context
from tests.certificates import Certificates
from tests.fault.authentication import TOKEN
from tests.programs import run_python
from tests.support import all_of

PAIR = (ASK["question"], ASK["text"])


class TestClient:
    """QaClient, in every way that it may find a server."""

    def test_many_questions_over_tls_are_answered(self, tls, certificates):
        """Texts of 300 kB, so that both sides' buffers are full."""
        padded = ASK["text"] + " x" * 150_000
        with QaClient("localhost", tls.port, tls=certificates.client_context()) as client:
            *refused, answered = client.ask_many([("", padded)] * 60 + [PAIR])
        codes = [error.code for error in all_of(QaServerError, refused)]
        assert codes == ["invalid_request"] * 60
        assert isinstance(answered, Answer)
        assert answered.answer == FIRST_WORD

    def test_a_client_needs_a_certificate_where_one_is_required(self, mutual, certificates):
        mine = tls_context(certificates.ca, certificates.client_cert, certificates.client_key)
        with QaClient("localhost", mutual.port, tls=mine) as client:
            assert client.ask(**ASK).answer == FIRST_WORD
        without = certificates.client_context()
        with (
            QaClient("localhost", mutual.port, tls=without) as client,
            pytest.raises(TlsError, match="asks for a client's certificate"),
        ):
            client.ask(**ASK)

    def test_tls_to_a_plain_port_and_the_reverse_are_named(
        self, tls, plain, with_tokens, certificates
    ):
        context = certificates.client_context()
        for server in (plain, with_tokens):
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

    def test_an_untrusted_server_raises_tls_error_with_the_reason(
        self, tls, certificates, tmp_path
    ):
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

    def test_unusable_files_are_named(self, certificates, tmp_path):
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

    @pytest.fixture(scope="class")
    @classmethod
    def guarded(cls, start, certificates, token_file):
        """A server that wants a certificate and a token."""
        ca = ("--tls_client_ca", str(certificates.ca))
        return start(*certificates.server_flags, *ca, "--auth_token_file", str(token_file))

    @pytest.mark.parametrize(("program", "result"), [(ONE, FIRST_WORD), (LOAD, "40")])
    def test_programs_authenticate_with_certificate_and_token(
        self, guarded, certificates, token_file, program, result
    ):
        own = ("--client_cert", certificates.client_cert, "--client_key", certificates.client_key)
        words = ("--ca_file", certificates.ca, *own)
        for token in ({"QA_SERVER_TOKEN": TOKEN}, ("--token_file", token_file)):
            done = run_program(guarded, *program, *words, token=token)
            assert (done.returncode, result in done.stdout) == (0, True), done.stderr

    @pytest.mark.parametrize("program", [ONE, LOAD])
    def test_programs_that_are_refused_say_why_in_one_line(
        self, with_tokens, plain, tmp_path, program
    ):
        (tmp_path / "empty").write_text("# nothing\n")
        wrong = {"QA_SERVER_TOKEN": "wrong"}
        for server, words, token, message in (
            (with_tokens, (), wrong, "the token is not accepted (unauthorized)"),
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
    return run_python(name, "--port", server.port, *flags, *more, env=environment)
