"""A server's listening sockets: its port, and a Unix socket if one is wanted.

The gRPC gateway asks over the Unix socket; if the options name none, the socket stands in a
temporary folder of its own.
"""

from __future__ import annotations

import logging
import socket
import tempfile
from collections.abc import Callable

from qa_service.errors import SetupError
from qa_service.locked_folder import LockedFolder
from qa_service.net.event_loop import EventLoop
from qa_service.net.listen_options import ListenOptions
from qa_service.net.listener import (
    Listener,
    UnixListener,
    bracketed,
    check_unix_path,
    is_loopback,
    tcp_listeners,
)

logger = logging.getLogger(__name__)

OnClient = Callable[[socket.socket, str], None]


class Listeners:
    """The listening sockets, opened and closed together.

    Attributes:
        address: The port, as `host:port`.
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
        ports = tcp_listeners(loop, options.host, options.port, on_client)
        self._all: list[Listener] = [*ports]
        self.address = f"{bracketed(options.host)}:{ports[0].port}"
        self.unix_path = options.unix_socket
        self._folder: LockedFolder | None = None
        if options.grpc_port and self.unix_path is None:
            try:
                self._folder = LockedFolder("qa-server-")
            except OSError as error:
                raise SetupError(_say_no_place(error)) from None
            self.unix_path = self._folder.path / "socket"
        if self.unix_path is not None:
            self._all.append(UnixListener(loop, self.unix_path, on_local_client))

    def open(self) -> None:
        """Starts to listen; raises `SetupError` if another program listens there."""
        for listener in self._all:
            listener.open()

    def close(self) -> None:
        """Stops listening: further attempts to connect are refused."""
        for listener in self._all:
            listener.close()
        if self._folder:
            self._folder.close()


def check_socket_place(options: ListenOptions) -> None:
    """Raises `SetupError` if a wanted Unix socket could not be made; changes nothing."""
    if options.unix_socket is not None:
        check_unix_path(options.unix_socket)
    elif options.grpc_port:
        try:
            tempfile.gettempdir()
        except OSError as error:
            raise SetupError(_say_no_place(error)) from None


def _say_no_place(error: OSError) -> str:
    return (
        f"--grpc_port needs a Unix socket, and there is no place for one ({error.strerror}): "
        "name a path with --unix_socket, or a folder with TMPDIR"
    )


def warn_if_exposed(host: str, *, is_encrypted: bool, wants_token: bool) -> None:
    """Logs what anyone who can reach this address may do."""
    if is_loopback(host) or is_encrypted:
        return
    if not wants_token:
        logger.warning(
            "no TLS, no tokens: %s is open to anyone (--tls_cert, --auth_token_file)", host
        )
    else:
        logger.warning("tokens are sent to %s unencrypted: there is no --tls_cert", host)
