"""A server's listening sockets: its port, and a Unix socket if one is wanted.

The gRPC gateway asks over the Unix socket; if the options name none, the socket stands in a
temporary folder of its own.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from qa_service.net.event_loop import EventLoop
from qa_service.net.listener import Listener, TcpListener, UnixListener
from qa_service.net.options import ListenOptions

OnClient = Callable[[socket.socket, str], None]


class Listeners:
    """The listening sockets, opened and closed together.

    Args:
        on_client: Takes a client of the port, and its name.
        on_local_client: Takes one of the Unix socket.

    Attributes:
        unix_path: The Unix socket's path; None without one.

    Raises:
        SetupError: An address cannot be used.
    """

    def __init__(
        self,
        loop: EventLoop,
        options: ListenOptions,
        on_client: OnClient,
        on_local_client: OnClient,
    ) -> None:
        keepalive_s = options.tcp_keepalive_s
        self._port = TcpListener(loop, options.host, options.port, keepalive_s, on_client)
        self._all: list[Listener] = [self._port]
        self._folder = ""
        self.unix_path = options.unix_socket
        if options.grpc_port and self.unix_path is None:
            self._folder = tempfile.mkdtemp(prefix="qa-server-")
            self.unix_path = Path(self._folder, "socket")
        if self.unix_path is not None:
            self._all.append(UnixListener(loop, self.unix_path, on_local_client))

    @property
    def address(self) -> str:
        """The port, as `host:port`."""
        return self._port.address

    def open(self) -> None:
        """Starts to listen.

        Raises:
            SetupError: Another program listens there.
        """
        for listener in self._all:
            listener.open()

    def set_accepting(self, accepting: bool) -> None:
        """Accepts, or leaves clients waiting in the kernel's backlog."""
        for listener in self._all:
            listener.set_accepting(accepting)

    def close(self) -> None:
        """Stops listening: further attempts to connect are refused."""
        for listener in self._all:
            listener.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
