"""Where a server listens: all addresses of a name, a Unix socket, and its folder."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path

import pytest

from qa_service.errors import SetupError
from qa_service.net import addresses
from qa_service.net.addresses import is_loopback, listening_addresses
from qa_service.net.listener import CHECK_S, UnixListener, tcp_listeners
from qa_service.server.front.socket_folder import NEW_S, SocketFolder
from tests.support import FakeTimeLoop, run_until


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6")


@pytest.fixture
def loop():
    loop = FakeTimeLoop()
    yield loop
    loop.close()


def listen(loop, host: str, port: int = 0):
    clients: list[str] = []

    def take(sock, name):
        sock.close()
        clients.append(name)

    listeners = tcp_listeners(loop, host, port, take)
    for listener in listeners:
        listener.open()
    return listeners, clients


@needs_ipv6
def test_localhost_listens_at_both_of_its_addresses(loop):
    listeners, clients = listen(loop, "localhost")
    [port] = {listener.port for listener in listeners}
    for address in ("127.0.0.1", "::1"):
        with socket.create_connection((address, port)):
            run_until(loop, lambda address=address: any(address in name for name in clients))
    for listener in listeners:
        listener.close()


@needs_ipv6
def test_a_name_whose_only_address_is_ipv6_is_taken_there(loop, monkeypatch):
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))]
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        listeners, _ = listen(loop, "a-name-of-the-tests")
    with socket.create_connection(("::1", listeners[0].port)):
        pass
    listeners[0].close()


def test_without_ipv6_localhost_is_one_address(monkeypatch):
    monkeypatch.setattr(addresses, "LOOPBACK", ("127.0.0.1", "2001:db8::1"))
    assert listening_addresses("localhost") == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("http://localhost", r"it is a URL; a name is needed, as in localhost$"),
        ("localhost:9999", r"there is no address of this name$"),
        ("a..b", r"there is no address of this name$"),
    ],
)
def test_a_host_that_is_no_name_is_refused_with_a_sentence(loop, host, reason):
    with pytest.raises(SetupError, match=rf"cannot listen on {host}:0: {reason}"):
        listen(loop, host)


@needs_ipv6
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_that_is_taken_at_one_address_is_taken(loop, address):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as other:
        other.bind((address, 0))
        other.listen()
        with pytest.raises(SetupError, match="cannot listen on localhost"):
            listen(loop, "localhost", other.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.2", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_is_loopback_knows_local_names(host, expected):
    assert is_loopback(host) == expected


def test_a_removed_unix_socket_is_recreated(loop, tmp_path):
    path, clients = tmp_path / "folder" / "socket", []
    path.parent.mkdir()

    def take(sock, name):
        sock.close()
        clients.append(name)

    listener = UnixListener(loop, path, take)
    listener.open()
    for number, remove in enumerate((path.unlink, lambda: (path.unlink(), path.parent.rmdir())), 1):
        remove()
        loop.clock.pass_s(CHECK_S)
        run_until(loop, path.exists)
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            run_until(loop, lambda number=number: len(clients) == number)
    listener.close()
    assert not path.exists()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_an_abandoned_folder_is_removed_and_one_in_use_is_kept(temporary):
    used = SocketFolder()
    used.socket.touch()
    left = Path(tempfile.mkdtemp(prefix="qa-server-"))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(left / "socket"))
    being_made, old = (Path(tempfile.mkdtemp(prefix="qa-server-")) for _ in range(2))
    os.utime(old, (time.time() - 2 * NEW_S,) * 2)
    other = temporary / "qa-server-of-another-program.txt"
    other.touch()
    (temporary / "qa-server-link").symlink_to(being_made)
    latest = SocketFolder()
    assert used.socket.exists()
    assert not left.exists()
    assert not old.exists()
    assert being_made.exists()
    assert other.exists()
    for folder in (used, latest):
        folder.remove()
        assert not folder.socket.parent.exists()
