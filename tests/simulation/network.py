"""Sockets without a kernel: what the real `Stream` and `Listener` take for theirs.

    peer ──send──▶ Pipe ──recv──▶ SimulatedSocket, the server's end
    peer ◀─on_data── Pipe ◀──send── SimulatedSocket

A pipe holds a bounded number of bytes, so that writes are partial and readers that are slow are
felt. Reads may be short as well. A socket that is closed with unread bytes resets its connection,
and what its peer has not read by then is lost, as with TCP.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE

from tests.simulation.world import World
from tests.support import present

SHORT_READS = 0.1
"""How often a read or a write is shorter than it could be."""


class SimulatedSocket:
    """The server's end of a connection.

    Args:
        capacity: Bytes that may be under way to the peer.

    Attributes:
        ready: What it is ready for, as the selector's events.
        closed: Whether the server has closed it.
        num_sent: Bytes that the peer has sent.
        num_read: Bytes of them that the server has read, but for those that it throws away.
    """

    def __init__(self, world: World, peer: Peer, capacity: int) -> None:
        self._world = world
        self._peer = peer
        self._capacity = capacity
        self._in = bytearray()
        self.num_sent = self.num_read = 0
        self._counts = True
        self._in_ended = self._is_reset = False
        self.out = bytearray()
        self.closed = self.out_ended = False
        self.ready = EVENT_WRITE

    # What the server calls.

    def setblocking(self, blocking):
        assert not blocking

    def setsockopt(self, *_):
        pass

    def getpeername(self):
        return ("127.0.0.1", 1)

    def recv(self, size):
        assert not self.closed
        if self._is_reset:
            raise ConnectionResetError
        if not self._in:
            if self._in_ended:
                return b""
            raise BlockingIOError
        data = bytes(self._in[: self._some(min(size, len(self._in)))])
        del self._in[: len(data)]
        self.num_read += len(data) if self._counts else 0
        self._update()
        return data

    def send(self, data):
        assert not self.closed
        if self._is_reset or self.out_ended:
            raise BrokenPipeError
        room = self._capacity - len(self.out)
        if room <= 0:
            raise BlockingIOError
        size = self._some(min(room, len(data)))
        self.out += data[:size]
        self._update()
        self._world.soon(self._peer.pump)
        return size

    def shutdown(self, how):
        assert how == socket.SHUT_WR
        if self._is_reset:
            raise OSError
        self._end_output()

    def close(self):
        if not self.closed:
            self.closed = True
            if self._in:
                self.out.clear()
            self._end_output()

    @property
    def unread_bytes(self) -> int:
        """What has arrived at the server, which has not read it yet."""
        return len(self._in)

    def stop_counting(self) -> None:
        """What is read from now on is thrown away: the connection is being closed."""
        self._counts = False

    # What the peer calls.

    def take(self, size: int) -> bytes:
        """What has arrived at the peer, at most so much."""
        if not self.out:
            return b""
        data = bytes(self.out[:size])
        del self.out[:size]
        self._update()
        return data

    def deliver(self, data: bytes) -> None:
        self.num_sent += len(data)
        if not self.closed:
            self._in += data
            self._update()

    def end_input(self) -> None:
        self._in_ended = True
        self._update()

    def reset(self) -> None:
        """The peer is gone without a word."""
        self._is_reset = True
        self.out.clear()
        self._update()

    def _end_output(self):
        self.out_ended = True
        self._world.soon(self._peer.pump)

    def _some(self, size):
        draws = self._world.random
        return draws.randint(1, size) if draws.random() < SHORT_READS else size

    def _update(self):
        readable = self._in or self._in_ended or self._is_reset
        writable = len(self.out) < self._capacity or self._is_reset
        self.ready = (EVENT_READ if readable else 0) | (EVENT_WRITE if writable else 0)


class Peer:
    """The other end of a connection: a client, or a worker's process."""

    sock: SimulatedSocket

    def pump(self) -> None:
        """Something has arrived, or the server has closed its end."""


class Network:
    """Where clients connect to the server's listening sockets: the port, and the Unix socket."""

    def __init__(self, world: World, capacity: int) -> None:
        self.world = world
        self.capacity = capacity
        self.listening: ListeningSocket | None = None
        self.local: ListeningSocket | None = None
        self._port = 40000

    @property
    def is_open(self) -> bool:
        """Whether a client's attempt to connect succeeds."""
        return bool(self.listening and self.listening.listens)

    def connect(self, peer: Peer) -> bool:
        """Connects a client, whose name is another for each; False if it is refused."""
        if not self.is_open:
            return False
        self._port += 1
        self._arrive(peer, present(self.listening), ("127.0.0.1", self._port))
        return True

    def connect_locally(self, peer: Peer) -> bool:
        """Connects a program of this machine; False if it is refused."""
        if not (self.local and self.local.listens):
            return False
        self._arrive(peer, self.local, "")
        return True

    def _arrive(self, peer, listening, address):
        peer.sock = SimulatedSocket(self.world, peer, self.capacity)
        listening.arrive(peer.sock, address)

    def make_listening_socket(self, *_) -> ListeningSocket:
        """What the server's `socket.socket()` gives."""
        self.listening = ListeningSocket()
        return self.listening

    def make_local_socket(self) -> ListeningSocket:
        """What the server binds to its Unix socket's path."""
        self.local = ListeningSocket()
        return self.local


class ListeningSocket:
    """What the real `Listener` accepts clients from."""

    family = socket.AF_INET

    def __init__(self) -> None:
        self.listens = False
        self.ready = 0
        self._backlog: list[tuple[SimulatedSocket, object]] = []

    def setsockopt(self, *_):
        pass

    def setblocking(self, blocking):
        pass

    def bind(self, address):
        pass

    def getsockname(self):
        return ("127.0.0.1", 9999)

    def listen(self, backlog):
        self.listens = True

    def accept(self):
        if not self._backlog:
            raise BlockingIOError
        accepted = self._backlog.pop(0)
        self.ready = EVENT_READ if self._backlog else 0
        return accepted

    def close(self):
        """Who waits to be accepted is reset."""
        self.listens = False
        for sock, _ in self._backlog:
            sock.close()
        self._backlog.clear()

    def arrive(self, sock: SimulatedSocket, address: object) -> None:
        self._backlog.append((sock, address))
        self.ready = EVENT_READ


class SocketModule:
    """The module `socket`, but for what makes sockets."""

    def __init__(self, make: Callable[..., object]) -> None:
        self.socket = make

    def __getattr__(self, name):
        return getattr(socket, name)
