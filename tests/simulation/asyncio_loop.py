"""An asyncio program in the simulated world: its event loop, its Unix sockets, their transports.

    task ─▶ asyncio's own loop, tasks and timers ─▶ Transport ─▶ UnixSocket ─▶ SimulatedSocket
                    │ time, turns                                                │
                    └──────────────────────── World ◀────────────────────────────┘

The loop never waits. What it would run soon or at a time is a happening of the world, which gives
the loop a turn; between two turns the server's loop runs. So one thread runs both programs, in an
order that the seed decides.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import Context
from types import SimpleNamespace
from typing import Any, TypeVarTuple

from tests.simulation.network import Network, Peer, SimulatedSocket
from tests.simulation.world import Violation, World

Ts = TypeVarTuple("Ts")

READ_BYTES = 1 << 18
"""All that may be under way to it."""
FULL_BACKLOG = 0.1
"""How often a Unix socket's backlog is full."""
DELAYS_S = (0.0, 0.0, 0.0005)
"""How long bytes may wait until the program reads them."""
MAX_LAST_TURNS = 50
"""More than what is cancelled takes to end."""


class SimulatedAsyncLoop(asyncio.BaseEventLoop):
    """The loop of one process.

    Attributes:
        sockets: Its open sockets, in the order of their opening.
        num_turns: How often it has run what is ready.
        lost_s: When it last saw that one of its connections was closed, or was refused one.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.world: World = network.world
        self.sockets: dict[UnixSocket, None] = {}
        self.num_turns = 0
        self.lost_s = -math.inf
        self._network = network
        self._selector = SimpleNamespace(select=lambda _: ())
        self._paused_until_s = 0.0
        self._faults: list[BaseException] = []

    @property
    def is_paused(self) -> bool:
        return self.world.time_s < self._paused_until_s

    def pause(self, seconds: float) -> None:
        self._paused_until_s = max(self._paused_until_s, self.world.time_s + seconds)
        self.world.after(seconds, self._turn)

    def kill(self) -> None:
        """Ends its process: its connections are reset, and its tasks have no effect any more."""
        for sock in list(self.sockets):
            sock.close()
        for _ in range(MAX_LAST_TURNS):
            if not (tasks := asyncio.all_tasks(self)):
                break
            for task in tasks:
                task.cancel()
            self._run_what_is_ready()
        self.close()

    def make_socket(self) -> UnixSocket:
        """What its `socket.socket` gives."""
        return UnixSocket(self, self._network)

    def make_channel(self, capacity: int) -> UnixSocket:
        """A socket that is connected from the start, to whoever takes its `sock`."""
        channel = self.make_socket()
        channel.sock = SimulatedSocket(self.world, channel, capacity)
        self.sockets[channel] = None
        return channel

    # What asyncio's loop is made of.

    def time(self):
        return self.world.now_s()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.world.soon(self._turn)
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.world.after(max(0.0, when - self.world.time_s), self._turn)
        return super().call_at(when, callback, *args, context=context)

    async def create_connection(self, protocol_factory, *_, sock=None, **__):
        protocol = protocol_factory()
        transport = Transport(self, sock, protocol)
        protocol.connection_made(transport)
        await asyncio.sleep(0)
        return transport, protocol

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        pass

    def call_exception_handler(self, context):
        fault = context.get("exception")
        if not isinstance(fault, Violation):
            fault = Violation("exception", f"{context['message']}: {fault!r}")
        self._faults.append(fault)

    def _process_events(self, event_list):
        pass

    def _turn(self):
        if not (self.is_closed() or self.is_paused):
            self._run_what_is_ready()
            if self._faults:
                raise self._faults[0]

    def _run_what_is_ready(self) -> None:
        self.num_turns += 1
        self.stop()
        self.run_forever()


class UnixSocket(Peer):
    """A socket of the program, as the client's end of a connection.

    Attributes:
        protocol: What reads it; None until there is a transport.
    """

    def __init__(self, loop: SimulatedAsyncLoop, network: Network) -> None:
        self.protocol: asyncio.Protocol | None = None
        self.on_event: Callable[[], None] = lambda: None
        self._loop, self._network = loop, network
        self._is_open = True

    def setblocking(self, blocking):
        assert not blocking

    def dup(self):
        return self

    def connect(self, _path):
        if self._loop.world.random.random() < FULL_BACKLOG:
            raise BlockingIOError
        if not self._network.connect_locally(self):
            self._loop.lost_s = self._loop.world.time_s
            raise ConnectionRefusedError
        self._loop.sockets[self] = None

    def send(self, data):
        if self._is_open:
            self.sock.deliver(data)

    def close(self):
        if self._is_open and self in self._loop.sockets:
            del self._loop.sockets[self]
            self.sock.reset() if self.sock.out else self.sock.end_input()
        self._is_open = False

    def pump(self):
        self.on_event() if self._is_open else self.sock.out.clear()


class Transport(asyncio.Transport):
    """asyncio's transport over a socket, which brings what arrives a little late."""

    def __init__(self, loop: SimulatedAsyncLoop, sock: UnixSocket, protocol) -> None:
        super().__init__()
        self._loop, self._sock, self._protocol = loop, sock, protocol
        self._is_closing = self._is_due = self._has_ended = False
        sock.protocol, sock.on_event = protocol, self._read_later
        self._read_later()

    def is_closing(self):
        return self._is_closing

    def write(self, data):
        if not self._is_closing:
            self._sock.send(bytes(data))

    def abort(self):
        if not self._is_closing:
            self._is_closing = True
            self._sock.close()
            self._loop.call_soon(self._protocol.connection_lost, None)

    close = abort

    def _read_later(self) -> None:
        if not (self._is_due or self._has_ended):
            self._is_due = True
            self._loop.call_later(self._loop.world.random.choice(DELAYS_S), self._read)

    def _read(self) -> None:
        self._is_due = False
        if data := not self._is_closing and self._sock.sock.take(READ_BYTES):
            self._protocol.data_received(data)
        if not (self._is_closing or self._has_ended) and self._sock.sock.out_ended:
            self._has_ended = True
            if not self._protocol.eof_received():
                self._loop.lost_s = self._loop.world.time_s
                self.abort()
