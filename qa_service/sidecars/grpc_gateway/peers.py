"""Which peers make room for new ones at the gRPC port, as connections do at the server's port.

    under --max_connections       a new peer is served
    over it                       the one that has been silent longest is closed, but none that asks
    over it by more than RESERVE  grpcio closes a new connection at once

grpcio accepts and keeps the connections, and has a bound but no choice. Their descriptors are this
process's, so the kernel says how long each peer has been silent (tcp(7), TCP_INFO), and a shutdown
closes a connection as a peer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from qa_service.machine import allow_descriptors

logger = logging.getLogger(__name__)

RESERVE = 64
"""Connections over the bound until the next look."""
LOOK_S = 0.25
"""Between two looks; one takes some milliseconds with a thousand connections, else much less."""
GRACE_MS = 1000
"""A peer has this long to send its first call."""
OTHER_DESCRIPTORS = 128
"""What the gateway has open that is no connection: its log, its libraries and ports."""
_TCP_INFO = struct.Struct("=44xI4xI")
"""Of `struct tcp_info` (linux/tcp.h): the milliseconds since data was sent and was received."""


@dataclass(frozen=True, slots=True)
class _Peer:
    name: str
    silent_ms: int
    sock: socket.socket


def fitting_peers(wanted: int) -> int:
    """How many peers fit into this process's limit of descriptors, which it raises if it can.

    A peer takes one for its connection, and one for its connection to the server.
    """
    needed = 2 * wanted + RESERVE + OTHER_DESCRIPTORS
    if (found := allow_descriptors(needed)) >= needed:
        return wanted
    fitting = max(1, (found - RESERVE - OTHER_DESCRIPTORS) // 2)
    logger.warning(
        "at most %d of --max_connections %d peers fit into the limit of %d descriptors "
        "(ulimit -n %d)", fitting, wanted, found, needed
    )  # fmt: skip
    return fitting


class SilentPeers:
    """Closes the connections of silent peers where there are too many.

    Args:
        port: Where they connect.
        busy: Returns the names of the peers that have calls; grpcio's, as in `ipv4:10.0.0.1:5000`.
    """

    def __init__(self, port: int, max_peers: int, busy: Callable[[], Collection[str]]) -> None:
        self._port = port
        self._max = max_peers
        self._busy = busy
        self._has_said = False

    async def run(self) -> NoReturn:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Closes as many silent connections as there are too many."""
        if sum(1 for _ in Path("/proc/self/fd").iterdir()) <= self._max:
            return
        with contextlib.ExitStack() as opened:
            peers = list(_peers_at(self._port, opened))
            busy = self._busy()
            silent = [peer for peer in peers if peer.name not in busy]
            silent.sort(key=lambda peer: peer.silent_ms, reverse=True)
            for peer in silent[: max(0, len(peers) - self._max)]:
                if peer.silent_ms < GRACE_MS:
                    return
                if not self._has_said:
                    self._has_said = True
                    logger.warning(
                        "%d peers, as many as --max_connections: from now on the one that has been "
                        "silent longest is closed to make room",
                        self._max,
                    )
                logger.debug("%s makes room", peer.name)
                with contextlib.suppress(OSError):  # it has just ended by itself
                    peer.sock.shutdown(socket.SHUT_RDWR)


def _peers_at(port: int, opened: contextlib.ExitStack) -> Iterator[_Peer]:
    """The peers at a port, each with a descriptor that is closed with the stack."""
    for path in list(Path("/proc/self/fd").iterdir()):
        try:
            if not path.is_socket():
                continue
            sock = opened.enter_context(socket.socket(fileno=os.dup(int(path.name))))
        except OSError:  # closed meanwhile
            continue
        is_tcp = sock.family in {socket.AF_INET, socket.AF_INET6}
        is_tcp = is_tcp and sock.type == socket.SOCK_STREAM
        if not is_tcp or sock.getsockname()[1] != port:
            continue
        try:
            host, its_port = sock.getpeername()[:2]
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:  # it listens, or its peer has gone
            continue
        host = host.removeprefix("::ffff:")
        name = f"ipv6:%5B{host}%5D:{its_port}" if ":" in host else f"ipv4:{host}:{its_port}"
        yield _Peer(name, min(_TCP_INFO.unpack(info)), sock)
