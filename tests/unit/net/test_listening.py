"""Where a server listens: all addresses of a name, and a Unix socket."""

import resource
import socket

import pytest

from qa_service.errors import SetupError
from qa_service.net import listener as listening
from qa_service.net.listener import (
    CHECK_S,
    LOG_INTERVAL_S,
    REST_S,
    UnixListener,
    is_loopback,
    listening_addresses,
    tcp_listeners,
)
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
    monkeypatch.setattr(listening, "LOOPBACK", ("127.0.0.1", "2001:db8::1"))
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


def test_a_file_that_is_no_socket_is_kept_and_named(loop, tmp_path):
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(SetupError, match=r"cannot listen on .*notes: File exists"):
        UnixListener(loop, path, lambda *_: None)
    assert path.read_text() == "mine"


def test_a_lack_of_descriptors_is_logged_once_a_minute(loop, caplog):
    accepted: list[socket.socket] = []
    [listener] = tcp_listeners(loop, "127.0.0.1", 0, lambda sock, _: accepted.append(sock))
    listener.open()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(("127.0.0.1", listener.port)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            for _ in range(round(1.9 * LOG_INTERVAL_S)):
                loop.clock.pass_s(1.0)
                rounds = iter(range(3))
                run_until(loop, lambda rounds=rounds: next(rounds, None) is None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        words = f"cannot accept: Too many open files; trying every {REST_S} s"
        assert caplog.messages == [words] * 2
        loop.clock.pass_s(REST_S)
        run_until(loop, lambda: bool(accepted))
    accepted[0].close()
    listener.close()
