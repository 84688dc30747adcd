"""The listening socket: accepts a bounded number of clients a round, and pauses on demand."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from qa_service.errors import SetupError
from qa_service.net.event_loop import EventLoop

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted, at most net.core.somaxconn."""
ACCEPTS_A_ROUND = 16
"""So that a flood of new clients does not hold up those that are connected."""
REST_S = 0.1
"""After an accept that failed for lack of descriptors: the socket stays readable, so that the loop
would try again without a pause."""


class Listener:
    """Accepts clients.

    Args:
        host: Address to bind; `::` takes IPv4 clients too.
        port: 0 for a free port.
        keepalive_s: Silence, in seconds, after which the kernel probes a client.
        on_client: Takes a new client's socket and name, `host:port`.

    Raises:
        SetupError: The address cannot be bound.
    """

    def __init__(
        self,
        loop: EventLoop,
        host: str,
        port: int,
        keepalive_s: int,
        on_client: Callable[[socket.socket, str], None],
    ) -> None:
        self._loop = loop
        self._host = host
        self._keepalive_s = keepalive_s
        self._on_client = on_client
        self._accepting = False
        self._closed = False
        self._sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._sock.family == socket.AF_INET6:
            self._sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            self._sock.bind((host, port))
        except (OSError, OverflowError) as error:
            self._sock.close()
            raise SetupError(f"cannot listen on {host}:{port}: {error}") from None
        self._sock.setblocking(False)
        self._port: int = self._sock.getsockname()[1]

    @property
    def address(self) -> str:
        """Where it listens, as `host:port`."""
        return _name(self._host, self._port)

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
            self._tune(sock)
            self._on_client(sock, _name(*address[:2]))

    def _tune(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, self._keepalive_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, self._keepalive_s // 4))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)

    def _rest(self, error: OSError) -> None:
        """Pauses for lack of descriptors or memory."""
        logger.error("cannot accept: %s; resting %.1f s", error.strerror, REST_S)
        self._loop.watch(self._sock)
        self._loop.call_at(self._loop.now_s() + REST_S, self._watch)

    def _watch(self) -> None:
        if not self._closed:
            self._loop.watch(self._sock, self._accept if self._accepting else None)


def _name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
