"""Servers for the fault tests."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness.frames import ASK, FIRST_WORD
from harness.server import INSTANT, RunningServer, running_server
from qa_service.client import QaClient
from tests.fault.authentication import EXPIRED, FEW, LONG_MS, SHORT_MS, TOKEN
from tests.fault.faults import FAULTY_WORKER, Permits
from tests.programs import token_flags


@pytest.fixture
def faulty_server(builtin_model):
    """Starts a server whose workers misbehave when a question asks for it."""

    @contextmanager
    def start(*flags: str, permits: Permits | None = None) -> Iterator[RunningServer]:
        env = permits.env if permits else {"PYTHONPATH": str(FAULTY_WORKER)}
        server = RunningServer(builtin_model, *INSTANT, *flags, env=env)
        try:
            yield server
            assert not server.process.poll(), server.log  # it runs, or was stopped cleanly
        finally:
            server.close()

    return start


@pytest.fixture
def neighbour(server):
    """Another client, connected all the while; nothing that happens may touch it."""
    with QaClient("localhost", server.port) as other:
        assert other.ask(**ASK).answer == FIRST_WORD
        yield other
        assert other.ask(**ASK).answer == FIRST_WORD


# With TLS, client certificates or tokens.


@pytest.fixture(scope="module")
def token_file(tmp_path_factory) -> Path:
    lines = ("# tests", TOKEN, f"{EXPIRED} 2020-01-01T00:00:00Z")
    return Path(token_flags(tmp_path_factory.mktemp("tokens"), *lines)[1])


@pytest.fixture(scope="module")
def start(builtin_model):
    """Starts servers, which run until the module's tests are done."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(running_server(builtin_model, *FEW, *flags))


@pytest.fixture(scope="module")
def tls(start, certificates):
    """A server that speaks TLS and wants no token."""
    flags = ("--client_timeout_ms", str(3 * LONG_MS), "--max_frame_bytes", str(1 << 20))
    return start(*certificates.server_flags, *flags)


@pytest.fixture(scope="module")
def hasty_tls(start, certificates):
    """The same for clients that stall."""
    return start(*certificates.server_flags, "--client_timeout_ms", str(3 * SHORT_MS))


@pytest.fixture(scope="module")
def mutual(start, certificates):
    return start(*certificates.server_flags, "--tls_client_ca", str(certificates.ca))


@pytest.fixture(scope="module")
def with_tokens(start, token_file):
    return start("--auth_token_file", str(token_file), "--client_timeout_ms", str(3 * LONG_MS))


@pytest.fixture(scope="module")
def hasty_with_tokens(start, token_file):
    """The same for clients that show none."""
    return start("--auth_token_file", str(token_file), "--client_timeout_ms", str(3 * SHORT_MS))


@pytest.fixture(scope="module")
def plain(start):
    return start()
