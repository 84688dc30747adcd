"""The gateway's program: why it cannot serve."""

import socket
import sys
from pathlib import Path

import pytest

from qa_service.installation import install_hint
from qa_service.sidecars.gateway_messages import GatewaySettings
from qa_service.sidecars.grpc_gateway import program


@pytest.fixture
def run(monkeypatch):
    """Runs a gateway at a port until it says why it cannot serve."""
    monkeypatch.setattr(program, "configure_logging", lambda *_: None)

    async def serve(gateway):
        await gateway.start()
        pytest.fail("it listens")

    def run_at(port):
        settings = GatewaySettings(unix_socket=Path("s"), host="127.0.0.1", port=port)
        return str(program.run(settings, serve))

    return run_at


def test_without_grpc_it_says_what_installs_it(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "qa_service.sidecars.grpc_gateway.grpc_server", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert run(1).startswith(f"grpc is missing: {install_hint('grpc')}")


def test_a_port_that_is_taken_is_named(run):
    pytest.importorskip("grpc", reason="the extra `grpc` is not installed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(port).startswith(f"the gRPC gateway cannot listen on 127.0.0.1:{port}: ")
