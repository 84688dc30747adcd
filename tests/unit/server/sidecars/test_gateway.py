"""The server's side of the gRPC gateway: its flags, and what is made of what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa_service.server import sidecars
from qa_service.server.config import ServerConfig
from qa_service.server.sidecars import GrpcProcess
from qa_service.sidecars.gateway_messages import LISTENING
from qa_service.sidecars.grpc_gateway.program import parse
from tests.support import FakeTimeLoop, run_until

SOCKET = Path("/run/qa/socket")


def test_without_a_port_no_gateway_runs():
    assert ServerConfig().gateway_flags(None) == []
    loop = FakeTimeLoop()
    gateway = GrpcProcess(loop, [])
    gateway.start()
    gateway.reload()
    gateway.child.close()
    assert (gateway.has_started, gateway.child.reap(), gateway.failure) == (True, True, "")
    loop.close()


def test_the_gateway_takes_the_flags_that_the_server_gives():
    config = ServerConfig.of(
        grpc_port=8001, host="::", max_frame_bytes=4096, tls_cert=Path("c"), tls_key=Path("k"),
        drain_timeout_ms=7, log_format="json",
    )  # fmt: skip
    settings = parse("", config.gateway_flags(SOCKET))
    assert (settings.unix_socket, settings.host, settings.port) == (SOCKET, "::", 8001)
    assert (settings.tls_cert, settings.tls_client_ca) == (Path("c"), None)
    assert (settings.max_frame_bytes, settings.drain_timeout_ms) == (4096, 7)
    assert (settings.log_level, settings.log_format) == ("info", "json")


def test_a_gateway_alone_has_the_servers_defaults():
    assert parse("", ["--unix_socket", str(SOCKET), "--port", "8001"]) == parse(
        "", ServerConfig.of(grpc_port=8001).gateway_flags(SOCKET)
    )


PROGRAM = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as sock:
    sock.sendall({words!r})
    {then}
"""


class Started:
    """A gateway whose program is a few lines of its own."""

    def __init__(self, tmp_path, monkeypatch, words, then):
        (tmp_path / "scripted_gateway.py").write_text(PROGRAM.format(words=words, then=then))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(sidecars, "GATEWAY_PROGRAM", "scripted_gateway")
        self.changes = 0
        self.loop = FakeTimeLoop()
        self.loop.on_mark = self.count
        self.gateway = GrpcProcess(self.loop, ["--port", "1"])
        self.gateway.start()

    def count(self):
        self.changes += 1

    def close(self):
        self.gateway.child.kill()
        run_until(self.loop, self.gateway.child.reap)
        self.loop.close()


def test_the_gateway_has_started_once_it_listens(tmp_path, monkeypatch):
    its = Started(tmp_path, monkeypatch, LISTENING, "sock.recv(1)")
    assert not its.gateway.has_started
    run_until(its.loop, lambda: its.changes == 1)
    assert its.gateway.has_started
    its.close()
    assert its.gateway.failure == ""


@pytest.mark.parametrize(
    ("said", "words"), [(b"grpc is missing", "grpc is missing"), (b"", "the log says why")]
)
def test_a_gateway_that_dies_at_start_fails_the_start(tmp_path, monkeypatch, said, words):
    its = Started(tmp_path, monkeypatch, said, "sys.exit(2)")
    run_until(its.loop, lambda: its.changes == 1)
    assert not its.gateway.has_started
    assert its.gateway.failure.endswith(words)
    its.close()


def test_a_later_death_of_the_gateway_is_logged_with_its_words(tmp_path, monkeypatch, caplog):
    its = Started(tmp_path, monkeypatch, LISTENING + b"the port is gone", "sys.exit(2)")
    run_until(its.loop, lambda: "the port is gone" in caplog.text)
    assert (its.gateway.has_started, its.gateway.failure) == (True, "")
    its.close()
