"""The listening socket: accepts a bounded number of clients a round."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import itertools
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qa_service.errors import SetupError
from qa_service.net.event_loop import EventLoop

logger = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1")
"""`localhost`, whatever the machine's files of hosts say (RFC 6761, section 6.3)."""
_NOT_HERE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def listening_addresses(host: str) -> list[str]:
    """The IP addresses of a name that this machine has: of `localhost` both, if it has IPv6.

    Raises:
        OSError: It has none of them, or the name is unknown or a URL.
    """
    addresses = _addresses(host)
    if len(addresses) == 1:
        return addresses
    failure: OSError | None = None
    found = []
    for address in addresses:
        try:
            with make_socket(address) as sock:
                sock.bind((address, 0))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            failure = error
        else:
            found.append(address)
    if failure and not found:
        raise failure
    return found


def try_port(address: str, port: int) -> None:
    """Binds for a moment; raises `OSError` if the port cannot be had."""
    with make_socket(address) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))


def make_socket(address: str) -> socket.socket:
    """A TCP socket of the address' family; one of `::` takes IPv4 clients too."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return sock


def is_loopback(host: str) -> bool:
    try:
        return all(ipaddress.ip_address(one).is_loopback for one in _addresses(host))
    except (OSError, ValueError):
        return False


def _addresses(host: str) -> list[str]:
    if host == "localhost":
        return list(LOOPBACK)
    if "/" in host:
        raise OSError("it is a URL; a name is needed, as in localhost")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise OSError("there is no address of this name") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted, at most net.core.somaxconn."""
ACCEPTS_A_ROUND = 16
"""So that a flood of new clients does not hold up those that are connected."""
LOG_INTERVAL_S = 60.0
"""Between two lines that say that nothing can be accepted."""
CHECK_S = 1.0
"""Between looks at the Unix socket's file, each of some microseconds."""
KEEPALIVE_S = 60
"""Silence after which the kernel probes whether a client is there: a host that vanished is seen
within two minutes."""
MAX_PORT_TRIES = 10
"""A port that is free at one address of a name may be taken at another."""
MAX_PATH_BYTES = 107
"""Of a Unix socket (unix(7)), without the byte that ends it."""
_File = tuple[int, int]
REST_S = 0.1
"""After an accept that failed for lack of descriptors: the socket stays readable, so that the loop
would try again without a pause."""


class Listener:
    """Accepts clients at a bound socket."""

    def __init__(
        self,
        loop: EventLoop,
        sock: socket.socket,
        address: str,
        on_client: Callable[[socket.socket, str], None],
    ) -> None:
        self.address = address
        self._loop = loop
        self._on_client = on_client
        self._closed = False
        self._quiet_until_s = 0.0
        self._sock = sock
        self._sock.setblocking(False)

    def open(self) -> None:
        """Starts to listen; raises `SetupError` if another program listens there."""
        try:
            self._sock.listen(BACKLOG)
        except OSError as error:
            raise SetupError(f"cannot listen on {self.address}: {error.strerror}") from None
        self._watch()

    def close(self) -> None:
        """Stops listening: further connections are refused."""
        if not self._closed:
            self._closed = True
            self._loop.watch(self._sock)
            self._sock.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_ROUND):
            if self._closed:
                break
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionError):
                break
            except OSError as error:  # descriptors or memory ran out
                now_s = self._loop.now_s()
                if now_s >= self._quiet_until_s:
                    logger.error("cannot accept: %s; trying every %.1f s", error.strerror, REST_S)
                    self._quiet_until_s = now_s + LOG_INTERVAL_S
                self._loop.watch(self._sock)
                self._loop.call_at(now_s + REST_S, self._watch)
                break
            self._on_client(sock, self._welcome(sock, address))

    def _welcome(self, sock: socket.socket, address: Any) -> str:  # noqa: ANN401 - of its family
        """Sets the options of a client's socket; returns its name."""
        raise NotImplementedError

    def _watch(self) -> None:
        if not self._closed:
            self._loop.watch(self._sock, self._accept)


class TcpListener(Listener):
    """A TCP port at one address.

    Args:
        on_client: Takes a new client's socket and its name, `host:port`.

    Raises:
        OSError: The address cannot be had.
    """

    def __init__(
        self, loop: EventLoop, host: str, port: int, on_client: Callable[[socket.socket, str], None]
    ) -> None:
        sock = make_socket(host)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            sock.close()
            raise
        self.port: int = sock.getsockname()[1]
        super().__init__(loop, sock, _name(host, self.port), on_client)

    def _welcome(self, sock: socket.socket, address: Any) -> str:  # noqa: ANN401
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S // 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        return _name(*address[:2])


def tcp_listeners(
    loop: EventLoop, host: str, port: int, on_client: Callable[[socket.socket, str], None]
) -> list[TcpListener]:
    """Listeners on one port at all addresses of a name.

    Args:
        port: 0 for a port that is free at all of them.

    Raises:
        SetupError: An address cannot be had.
    """
    for is_last_try in (*[False] * MAX_PORT_TRIES, True):
        listeners: list[TcpListener] = []
        try:
            for address in listening_addresses(host):
                its_port = listeners[0].port if listeners else port
                listeners.append(TcpListener(loop, address, its_port, on_client))
        except (OSError, OverflowError) as error:
            for listener in listeners:
                listener.close()
            if port or is_last_try or not listeners:
                raise SetupError(f"cannot listen on {host}:{port}: {error}") from None
        else:
            return listeners
    raise AssertionError


class UnixListener(Listener):
    """A Unix socket, which only this user may connect to.

    A socket that a killed server left at the path is replaced; closing removes the socket. A file
    that somebody removes meanwhile, as programs do that clean /tmp, is made again.

    Args:
        on_client: Takes a new client's socket and its name, `unix:number`.

    Raises:
        SetupError: The path cannot be had.
    """

    def __init__(
        self, loop: EventLoop, path: Path, on_client: Callable[[socket.socket, str], None]
    ) -> None:
        self._path = path
        self._numbers = itertools.count(1)
        self._has_failed = False
        try:
            sock, self._file = _bound(path)
        except OSError as error:
            raise SetupError(f"cannot listen on {path}: {error.strerror or error}") from None
        super().__init__(loop, sock, str(path), on_client)

    def open(self) -> None:
        super().open()
        self._loop.call_at(self._loop.now_s() + CHECK_S, self._check)

    def close(self) -> None:
        if not self._closed:
            super().close()
            if self._file == _file_at(self._path):
                with contextlib.suppress(OSError):
                    self._path.unlink()

    def _check(self) -> None:
        """Makes the file again if it is gone, and looks again later."""
        if self._closed:
            return
        self._loop.call_at(self._loop.now_s() + CHECK_S, self._check)
        if _file_at(self._path) is None:
            try:
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                sock, self._file = _bound(self._path)
                sock.setblocking(False)
                sock.listen(BACKLOG)
                self._accept()  # those that connected before the file was removed
                self._loop.watch(self._sock)
                self._sock.close()
                self._sock = sock
                self._watch()
            except OSError as error:
                if not self._has_failed:
                    logger.error("%s was removed and cannot be recreated: %s", self._path, error)
                self._has_failed = True
            else:
                logger.warning("%s was removed by another program: recreated", self._path)
                self._has_failed = False

    def _welcome(self, sock: socket.socket, address: Any) -> str:  # noqa: ANN401
        return f"unix:{next(self._numbers)}"


def check_unix_path(path: Path) -> None:
    """Raises `SetupError` if no Unix socket could be made at a path; changes nothing."""
    try:
        _try_path(path)
    except OSError as error:
        raise SetupError(f"cannot listen on {path}: {error.strerror}") from None


def _try_path(path: Path) -> None:
    """Raises the `OSError` that binding to the path would."""
    fault = 0
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, f"a path of more than {MAX_PATH_BYTES} bytes")
    if not path.parent.is_dir():
        fault = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        fault = errno.EACCES
    elif _file_at(path) and not path.is_socket():
        fault = errno.EEXIST
    elif _file_at(path) and not _is_stale(path):
        fault = errno.EADDRINUSE
    if fault:
        raise OSError(fault, os.strerror(fault))


def _bound(path: Path) -> tuple[socket.socket, _File | None]:
    """A socket bound to a path, and its file; raises `OSError` if it cannot be had."""
    _try_path(path)
    sock = socket.socket(socket.AF_UNIX)
    try:
        if _file_at(path):
            path.unlink()
        sock.bind(str(path))
        path.chmod(0o600)  # nobody can connect before it listens
    except OSError:
        sock.close()
        raise
    return sock, _file_at(path)


def _file_at(path: Path) -> _File | None:
    """The device and the number of the file at a path; None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_stale(path: Path) -> bool:
    """Whether nobody listens on a socket any more."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return True
        except BlockingIOError:  # its backlog is full
            return False
    return False


def bracketed(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def _name(host: str, port: int) -> str:
    return f"{bracketed(host)}:{port}"
