"""The listening socket: accepts a bounded number of clients a round, and pauses on demand."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qa_service.errors import SetupError
from qa_service.net.event_loop import EventLoop

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted, at most net.core.somaxconn."""
ACCEPTS_A_ROUND = 16
"""So that a flood of new clients does not hold up those that are connected."""
LOG_INTERVAL_S = 60.0
"""Between two lines that say that nothing can be accepted."""
REST_S = 0.1
"""After an accept that failed for lack of descriptors: the socket stays readable, so that the loop
would try again without a pause."""


class Listener:
    """Accepts clients at a bound socket.

    Args:
        on_client: Takes a new client's socket and name.
    """

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
        self._accepting = False
        self._closed = False
        self._quiet_until_s = 0.0
        self._sock = sock
        self._sock.setblocking(False)

    def open(self) -> None:
        """Starts to listen; until then, connections are refused.

        Raises:
            SetupError: Another program listens there.
        """
        try:
            self._sock.listen(BACKLOG)
        except OSError as error:
            raise SetupError(f"cannot listen on {self.address}: {error.strerror}") from None
        self.set_accepting(True)

    def set_accepting(self, accepting: bool) -> None:
        """Accepts, or leaves clients waiting in the kernel's backlog."""
        if accepting != self._accepting and not self._closed:
            self._accepting = accepting
            self._watch()

    def close(self) -> None:
        """Stops listening: further connections are refused."""
        if not self._closed:
            self.set_accepting(False)
            self._closed = True
            self._sock.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_ROUND):
            if not self._accepting:
                break
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionError):
                break
            except OSError as error:
                self._rest(error)
                break
            self._on_client(sock, self._welcome(sock, address))

    def _welcome(self, sock: socket.socket, address: Any) -> str:  # noqa: ANN401 - of its family
        """Sets the options of a client's socket; returns its name."""
        raise NotImplementedError

    def _rest(self, error: OSError) -> None:
        """Pauses for lack of descriptors or memory; logs it once a minute."""
        now_s = self._loop.now_s()
        if now_s >= self._quiet_until_s:
            logger.error("cannot accept: %s; trying every %.1f s", error.strerror, REST_S)
            self._quiet_until_s = now_s + LOG_INTERVAL_S
        self._loop.watch(self._sock)
        self._loop.call_at(now_s + REST_S, self._watch)

    def _watch(self) -> None:
        if not self._closed:
            self._loop.watch(self._sock, self._accept if self._accepting else None)


class TcpListener(Listener):
    """A TCP port.

    Args:
        host: Address to bind; `::` takes IPv4 clients too.
        port: Port to bind; 0 for a free one.
        keepalive_s: Silence after which the kernel probes whether a client is there.
        on_client: Takes a new client's socket and its name, `host:port`.

    Raises:
        SetupError: The address cannot be had.
    """

    def __init__(
        self,
        loop: EventLoop,
        host: str,
        port: int,
        keepalive_s: int,
        on_client: Callable[[socket.socket, str], None],
    ) -> None:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            sock.bind((host, port))
        except (OSError, OverflowError) as error:
            sock.close()
            raise SetupError(f"cannot listen on {host}:{port}: {error}") from None
        self._keepalive_s = keepalive_s
        super().__init__(loop, sock, _name(host, sock.getsockname()[1]), on_client)

    def _welcome(self, sock: socket.socket, address: Any) -> str:  # noqa: ANN401
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, self._keepalive_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, self._keepalive_s // 4))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        return _name(*address[:2])


class UnixListener(Listener):
    """A Unix socket, which only this user may connect to.

    A socket that a killed server left at the path is replaced; closing removes the socket.

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
        sock = socket.socket(socket.AF_UNIX)
        try:
            _remove_stale(path)
            sock.bind(str(path))
            path.chmod(0o600)  # nobody can connect before it listens
        except OSError as error:
            sock.close()
            raise SetupError(f"cannot listen on {path}: {error.strerror or error}") from None
        super().__init__(loop, sock, str(path), on_client)

    def close(self) -> None:
        """Stops listening, and removes the socket's file."""
        if not self._closed:
            super().close()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _welcome(self, sock: socket.socket, address: Any) -> str:  # noqa: ANN401
        return f"unix:{next(self._numbers)}"


def _remove_stale(path: Path) -> None:
    """Removes a socket that nobody listens on any more."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except BlockingIOError:
            return  # its backlog is full


def _name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
