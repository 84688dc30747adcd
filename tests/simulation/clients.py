"""Clients: what they send, how fast they read, and when they go.

A client has one connection at a time, and another when that has ended. What it sends goes out in
pieces, one behind the other. The simulation is notified of each reply, and of a connection's end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tests.simulation.network import Network, Peer
from tests.simulation.wires import Asked, FrameWire, HttpWire, Reply

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

READ_EVERY_S = 0.01
CONNECT_EVERY_S = 0.05
MAX_ATTEMPTS = 100
READ_BYTES = 1 << 20


@dataclass(frozen=True)
class ClientPlan:
    """What a client is like.

    Attributes:
        wire: `frames` or `http`.
        read_bytes: How much it reads every `READ_EVERY_S`; 0 for all there is, at once.
    """

    wire: str
    token: str | None = None
    read_bytes: int = 0


class Client:
    """A client, with one connection at a time."""

    def __init__(self, plan: ClientPlan, network: Network, sim: Simulation) -> None:
        self.plan = plan
        self.talks: list[Talk] = []
        self.flood: Flood | None = None
        self._network, self._sim = network, sim
        self._waiting: deque[tuple[Asked, int, float]] = deque()
        self._attempts = 0

    @property
    def talk(self) -> Talk | None:
        """Its connection; None without an open one."""
        return self.talks[-1] if self.talks and not self.talks[-1].has_ended else None

    def send(self, asked: Asked, pieces: int = 1, gap_s: float = 0.0) -> None:
        """Sends something, in this many pieces; connects first if it must."""
        self._waiting.append((asked, pieces, gap_s))
        if len(self._waiting) == 1:
            self._attempts = 0
            self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting:
            talk = self.talk or self._connect()
            if talk is None:
                self._attempts += 1
                if self._attempts < MAX_ATTEMPTS:
                    self._network.world.after(CONNECT_EVERY_S, self._send_waiting)
                else:
                    self._waiting.clear()
                return
            talk.send(*self._waiting.popleft())

    def _connect(self) -> Talk | None:
        talk = Talk(self, self.plan, self._network, self._sim)
        if not self._network.connect(talk):
            self._sim.on_refused()
            return None
        self.talks.append(talk)
        talk.begin()
        return talk


class Asker(Protocol):
    """What asks: a connection, or a gRPC call.

    Attributes:
        reasons: Why the server may close it.
    """

    client: Client
    reasons: set[str]


class Talk(Peer):
    """One connection of a client.

    Attributes:
        reasons: Why the server may close it.
        has_ended: Whether either side has closed it.
        is_gone: Whether the client has, without waiting for its answers.
        quiet_since_s: When it last sent or got something.
    """

    def __init__(self, client: Client, plan: ClientPlan, network: Network, sim: Simulation) -> None:
        self.client = client
        self.wire = (FrameWire if plan.wire == "frames" else HttpWire)(plan.token)
        self.reasons: set[str] = set()
        self.has_ended = self.is_gone = False
        self.quiet_since_s = network.world.time_s
        self._world, self._sim = network.world, sim
        self._read_bytes = plan.read_bytes
        self._reads = True
        self._is_reading_later = False
        self._pieces: deque[tuple[bytes, float, Asked | None]] = deque()
        self._is_sending = False
        if plan.read_bytes:
            self.reasons.add("reads slowly")

    def begin(self) -> None:
        """Shows the token, where that is the first that is sent."""
        if hello := self.wire.hello():
            asked, data = hello
            self._pieces.append((data, 0.0, asked))

    def send(self, asked: Asked, pieces: int, gap_s: float) -> None:
        data = self.wire.encode(asked)
        pieces = min(pieces, len(data))
        size = -(-len(data) // pieces)
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        for number, part in enumerate(parts, 1):
            is_last = number == len(parts)
            self._pieces.append((part, gap_s if number > 1 else 0.0, asked if is_last else None))
        if pieces > 1 and gap_s:
            self.reasons.add("drips")
        if not self._is_sending:
            self._send_pieces()

    def cancel(self, number: int) -> None:
        """Cancels one of its questions, behind what is being sent."""
        if data := self.wire.cancel(number):
            self._pieces.append((data, 0.0, None))
            if not self._is_sending:
                self._send_pieces()

    def _send_pieces(self) -> None:
        """Sends what needs no waiting, and the next piece later."""
        while self._pieces and not self.has_ended and not self._pieces[0][1]:
            self._send_piece()
        self._is_sending = bool(self._pieces) and not self.has_ended
        if self._is_sending:
            self._world.after(self._pieces[0][1], self._send_late_piece)

    def _send_late_piece(self) -> None:
        if self._pieces and not self.has_ended:
            self._send_piece()
            self._send_pieces()

    def _send_piece(self) -> None:
        data, _, asked = self._pieces.popleft()
        self.quiet_since_s = self._world.time_s
        if asked:
            asked.sent_s = self._world.time_s
            asked.end = self.sock.num_sent + len(data)
            self._sim.on_sent(self, asked)
        self.sock.deliver(data)

    def hurry(self) -> None:
        """Sends all that is left, and reads all there is."""
        while self._pieces and not self.has_ended:
            self._send_piece()
        self._reads, self._read_bytes = True, 0
        self.pump()

    def stall(self, seconds: float) -> None:
        """Reads nothing for a while."""
        self._reads = False
        self.reasons.add("reads slowly")
        self._world.after(seconds, self._read_again)

    def _read_again(self) -> None:
        self._reads = True
        self.pump()

    def hang_up(self, how: str) -> None:
        """Goes without waiting for what it has asked."""
        if not self.has_ended:
            self.has_ended = self.is_gone = True
            self._sim.on_hang_up(self)
            self.sock.reset() if how == "reset" else self.sock.end_input()

    def pump(self) -> None:
        if self.is_gone:
            self.sock.out.clear()
        elif self._reads and not self.has_ended:
            if self._read_bytes:
                self._read_later()
            else:
                self._read(READ_BYTES)

    def _read_later(self) -> None:
        if not self._is_reading_later:
            self._is_reading_later = True
            self._world.after(READ_EVERY_S, self._read_slowly)

    def _read_slowly(self) -> None:
        self._is_reading_later = False
        if self._reads and not self.has_ended:
            self._read(self._read_bytes or READ_BYTES)
            if self.sock.out:
                self.pump()

    def _read(self, size: int) -> None:
        if data := self.sock.take(size):
            self.quiet_since_s = self._world.time_s
            for reply in self.wire.feed(data):
                self._sim.on_reply(self, reply)
                if self.client.flood:
                    self.client.flood.on_reply(reply)
        if self.sock.out_ended and not self.sock.out and not self.has_ended:
            self.has_ended = True
            self._sim.on_end(self)


class Flood:
    """Keeps `in_flight` requests of a client in flight, until it has asked `total`."""

    def __init__(self, client: Client, in_flight: int, make, total: int) -> None:
        self._client, self._make, self._left = client, make, total
        client.flood = self
        for _ in range(in_flight):
            self._ask()

    def on_reply(self, reply: Reply) -> None:
        if reply.asked and reply.asked.kind == "ask":
            self._ask()

    def end(self) -> None:
        self._left = 0

    def _ask(self) -> None:
        if self._left > 0:
            self._left -= 1
            self._client.send(self._make())
