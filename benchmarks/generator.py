"""The load: N clients in one thread, each asking its next question when it has its answer.

One generator serves every contestant, over each one's own wire. It is kept light, since it
shares the machine with what it measures: epoll, requests encoded beforehand, replies looked at
for their length and status alone. Its own CPU time is part of what it reports.

A measurement is a window. The load starts before it and is drained after it: throughput counts
the answers that end within the window, latency all requests that start in it, the slowest too.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.tables import percentile
from benchmarks.wires import Wire

HOST = "127.0.0.1"
MAX_DRAIN_S = 60.0
MAX_WAIT_S = 0.5
RECEIVE_BYTES = 1 << 16


class Sample(NamedTuple):
    """One request.

    Attributes:
        index: Which of the requests it was.
        started_s: When its first byte was sent; a probe's, when it was due.
        ended_s: When its reply's last byte was there.
        is_answer: Whether the reply was an answer.
    """

    index: int
    started_s: float
    ended_s: float
    is_answer: bool


@dataclass(slots=True)
class Load:
    """What a load saw.

    Attributes:
        samples: The clients' requests, in the order of their ends.
        probes: The probe's.
        window_s: When the measurement started and ended.
        cpu_share: Of one core, what the generator used within the window.
    """

    samples: list[Sample] = field(default_factory=list)
    probes: list[Sample] = field(default_factory=list)
    window_s: tuple[float, float] = (0.0, 0.0)
    cpu_share: float = 0.0

    @property
    def throughput_per_s(self) -> float:
        """Answers that ended within the window, a second."""
        start_s, end_s = self.window_s
        ended = sum(s.is_answer and start_s <= s.ended_s < end_s for s in self.samples)
        return ended / (end_s - start_s)

    def work_per_s(self, weights: Sequence[float]) -> float:
        """Answers that ended within the window, a second, each counted by its request's weight."""
        start_s, end_s = self.window_s
        ended = [s for s in self.samples if s.is_answer and start_s <= s.ended_s < end_s]
        return sum(weights[sample.index] for sample in ended) / (end_s - start_s)

    @property
    def num_failed(self) -> int:
        """Requests that got no answer."""
        return sum(not sample.is_answer for sample in self.samples)

    def latencies_ms(self, kinds: Sequence[str] = (), kind: str = "") -> list[float]:
        """Latencies of the answered requests that started in the window.

        Args:
            kinds: The kind of each of the requests, if only one kind is wanted.
            kind: That kind.
        """
        return [
            (sample.ended_s - sample.started_s) * 1e3
            for sample in self._measured(self.samples)
            if not kind or kinds[sample.index] == kind
        ]

    def probe_latencies_ms(self) -> list[float]:
        """The probe's latencies."""
        return [(probe.ended_s - probe.started_s) * 1e3 for probe in self._measured(self.probes)]

    def p_ms(self, percent: float) -> float:
        """A percentile of the latencies."""
        return percentile(self.latencies_ms(), percent)

    def _measured(self, samples: list[Sample]) -> list[Sample]:
        start_s, end_s = self.window_s
        return [s for s in samples if s.is_answer and start_s <= s.started_s < end_s]


class _Client:
    """One connection, with at most one request on its way."""

    __slots__ = ("buffer", "index", "sock", "started_s")

    def __init__(self, port: int) -> None:
        self.sock = connect(port)
        self.buffer = b""
        self.index = -1
        self.started_s = 0.0


def connect(port: int) -> socket.socket:
    """A connection to a contestant."""
    sock = socket.create_connection((HOST, port), 30.0)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@dataclass(frozen=True, slots=True)
class Probe:
    """A small request sent at a steady rate on a connection of its own.

    Attributes:
        request: It.
        interval_s: From one to the next.
    """

    request: bytes
    interval_s: float


class Generator:
    """Closed-loop clients of one contestant.

    Args:
        port: Where it listens.
        wire: How it is spoken to.
        requests: What to ask, over and over.
        first: Which request to start with.
    """

    def __init__(self, port: int, wire: Wire, requests: Sequence[bytes], first: int = 0) -> None:
        self._port = port
        self._wire = wire
        self._requests = requests
        self._next = first
        self._left: float = float("inf")
        self._probe: Probe | None = None
        self._probe_due_s = 0.0
        self._prober: _Client | None = None
        self._epoll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._load = Load()

    def run(
        self, num_clients: int, warmup_s: float, duration_s: float, probe: Probe | None = None
    ) -> Load:
        """Loads the contestant for a while.

        Raises:
            OSError: It does not accept connections.
            RuntimeError: It left requests unanswered for a minute.
        """
        self._probe = probe
        try:
            clients = [self._connect() for _ in range(num_clients)]
            self._prober = self._connect() if probe else None
            self._measure(clients, warmup_s, duration_s)
            self._drain()
        finally:
            for client in self._clients.values():
                client.sock.close()
            self._epoll.close()
        return self._load

    def run_count(self, num_clients: int, num_requests: int) -> Load:
        """Loads the contestant with so many requests; the window is the whole run."""
        self._left = num_requests
        return self.run(num_clients, 0.0, float("inf"))

    def _measure(self, clients: Sequence[_Client], warmup_s: float, duration_s: float) -> None:
        start_s = time.perf_counter() + warmup_s
        for client in clients:
            self._send(client)
        self._turn_until(start_s)
        cpu_s = time.process_time()
        self._turn_until(start_s + duration_s)
        end_s = min(time.perf_counter(), start_s + duration_s)
        self._load.cpu_share = (time.process_time() - cpu_s) / (end_s - start_s)
        self._load.window_s = (start_s, end_s)

    def _connect(self) -> _Client:
        client = _Client(self._port)
        self._register(client)
        return client

    def _register(self, client: _Client) -> None:
        self._clients[client.sock.fileno()] = client
        self._epoll.register(client.sock.fileno(), select.EPOLLIN)

    def _drain(self) -> None:
        self._left = 0
        give_up_s = time.perf_counter() + MAX_DRAIN_S
        while any(client.index >= 0 for client in self._clients.values()):
            if time.perf_counter() > give_up_s:
                raise RuntimeError("requests were left unanswered for a minute")
            self._turn(1.0)

    def _turn_until(self, end_s: float) -> None:
        """Plays the clients and the probe."""
        while (now_s := time.perf_counter()) < end_s:
            wait_s = self._send_probe(now_s) if self._prober else MAX_WAIT_S
            self._turn(max(0.0, min(end_s - now_s, wait_s)))
            if not self._left and not any(c.index >= 0 for c in self._clients.values()):
                return

    def _send_probe(self, now_s: float) -> float:
        """Sends the probe if it is due and the last one is back; says when to look again."""
        prober, probe = self._prober, self._probe
        if not prober or not probe or prober.index >= 0:
            return MAX_WAIT_S
        if self._probe_due_s <= now_s:
            prober.index, prober.started_s = 0, self._probe_due_s or now_s
            self._probe_due_s = prober.started_s + probe.interval_s
            prober.sock.sendall(probe.request)
            return MAX_WAIT_S
        return self._probe_due_s - now_s

    def _turn(self, timeout_s: float) -> None:
        if self._prober:
            # By `select`, which waits in microseconds: `epoll` rounds up to whole milliseconds.
            select.select([self._epoll], [], [], timeout_s)
            timeout_s = 0.0
        for descriptor, _ in self._epoll.poll(timeout_s):
            client = self._clients[descriptor]
            if client is self._prober:
                self._receive(client, self._load.probes)
            else:
                self._receive(client, self._load.samples)
                if client.index < 0:
                    self._send(client)

    def _send(self, client: _Client) -> None:
        if not self._left:
            return
        self._left -= 1
        client.index = self._next % len(self._requests)
        self._next += 1
        client.started_s = time.perf_counter()
        client.sock.sendall(self._requests[client.index])

    def _receive(self, client: _Client, samples: list[Sample]) -> None:
        """Reads; where that completes the reply, the client is free again."""
        data = client.sock.recv(RECEIVE_BYTES)
        now_s = time.perf_counter()
        if not data:
            if client.index >= 0:  # else it is tired of a connection that keeps silent
                samples.append(Sample(client.index, client.started_s, now_s, False))
            self._replace(client)
            return
        buffer = client.buffer + data if client.buffer else data
        end = self._wire.end(buffer)
        client.buffer = buffer[end:] if end else buffer
        if end:
            is_answer = self._wire.is_answer(buffer[:end])
            samples.append(Sample(client.index, client.started_s, now_s, is_answer))
            client.index = -1

    def _replace(self, client: _Client) -> None:
        """The contestant has hung up: the client calls again."""
        self._epoll.unregister(client.sock.fileno())
        del self._clients[client.sock.fileno()]
        client.sock.close()
        client.sock, client.buffer, client.index = connect(self._port), b"", -1
        self._register(client)


def ask(port: int, wire: Wire, request: bytes) -> bytes:
    """Asks one thing on a connection of its own; returns the reply.

    Raises:
        OSError: There is nobody, or they hang up.
    """
    with connect(port) as sock:
        sock.settimeout(MAX_DRAIN_S)
        sock.sendall(request)
        buffer = b""
        while not wire.end(buffer):
            data = sock.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("hung up without an answer")
            buffer += data
    return buffer
