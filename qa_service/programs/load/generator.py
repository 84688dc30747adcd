"""Makes the load of a plan in one process and thread, and yields the results.

A process for each client would take cores from the measured server; here a request costs some tens
of microseconds, and `measure` reports the sum. A latency ends when this loop reads the reply: when
its core is full, the latencies are the loop's own.
"""

from __future__ import annotations

import functools
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Generator

from qa_service.client import Server, look_up, split_hosts
from qa_service.programs.load.connection import LoadConnection, LoadLoop, Owner, SentRequest
from qa_service.programs.load.plan import LoadPlan, Report, Sample

_REPORT_INTERVAL_S = 0.1
"""A progress bar moves smoothly, and the generator spends next to nothing on it."""
_RECONNECT_PAUSE_S = 0.01
"""A client whose server is gone does not fill a core with attempts."""


def run_load(plan: LoadPlan) -> Generator[list[Sample], None, None]:
    """Makes the load, and yields results, in no order, ten times a second.

    Raises:
        OSError: The host has no address, or the process cannot open enough connections.
        TlsError: A file of the plan's access cannot be used.
    """
    load = _Load(plan)
    clients = _OpenLoop(load) if plan.is_open else _ClosedLoop(load)
    try:
        clients.start()
        while not clients.are_done():
            until_s = time.perf_counter() + _REPORT_INTERVAL_S
            while time.perf_counter() < until_s and not clients.are_done():
                load.turn(until_s)
            samples, load.samples = load.samples, []
            yield samples
    finally:
        load.close()


def measure(plan: LoadPlan, progress: Callable[[int], object] = lambda _: None) -> Report:
    """Makes the load and reports on it; Ctrl-C ends it early. Raises what `run_load` raises."""
    samples: list[Sample] = []
    interrupted = False
    cpu_s, started_s = time.process_time(), time.perf_counter()
    try:
        for batch in run_load(plan):
            samples += batch
            progress(len(batch))
    except KeyboardInterrupt:
        interrupted = True
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - started_s
    return Report.of(samples, generator_cores=cpu_s / wall_s, interrupted=interrupted)


class _Load:
    """What all clients share: the loop, the questions in turn, the timeout, and the results."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.loop = LoadLoop()
        self.samples: list[Sample] = []
        self.end_s = float("inf")
        self._terms = plan.access.terms(plan.timeout_s)
        servers = [
            Server(host, port, addresses)
            for host, port in split_hosts(plan.host, plan.port)
            for addresses in look_up(host, port)
        ]
        self._servers = itertools.cycle(servers)
        self._wire = plan.wire()
        self._bodies: dict[int, bytes] = {}
        self._turns = itertools.count()
        self._ids = itertools.count(1)
        self._connections: set[LoadConnection] = set()
        # All requests have the same timeout, so the first one sent is the first to time out.
        self._waiting: deque[tuple[LoadConnection, SentRequest]] = deque()

    def start_clock(self) -> None:
        if self.plan.duration_s is not None:
            self.end_s = time.perf_counter() + self.plan.duration_s

    def connect(self, owner: Owner) -> LoadConnection:
        """Makes a connection; the caller opens it."""
        server, wire = next(self._servers), self.plan.wire()
        connection = LoadConnection(self.loop, server, self._terms, wire, owner)
        self._connections.add(connection)
        self.loop.call_at(time.perf_counter() + self.plan.timeout_s, connection.give_up_opening)
        return connection

    def ask(self, connection: LoadConnection, started_s: float) -> None:
        index = next(self._turns) % len(self.plan.questions)
        question = self.plan.questions[index]
        body = self._bodies.get(index) or self._wire.body(question)
        self._bodies[index] = body
        deadline_s = time.perf_counter() + self.plan.timeout_s
        request_id = next(self._ids)
        frame = connection.wire.request(request_id, body)
        check = self.plan.check
        request = SentRequest(request_id, frame, index, question, started_s, deadline_s, check)
        self._waiting.append((connection, request))
        connection.ask(request)

    def record(self, started_s: float, code: str, index: int = -1) -> None:
        """Adds the result of a request that ends now."""
        latency_ms = (time.perf_counter() - started_s) * 1e3
        self.samples.append(Sample(started_s, latency_ms, code, index))

    def forget(self, connection: LoadConnection) -> None:
        connection.close()
        self._connections.discard(connection)

    def turn(self, until_s: float) -> None:
        """Waits for an event or a timeout, at most until a time, and handles it."""
        if self._waiting:
            until_s = min(until_s, self._waiting[0][1].deadline_s)
        self.loop.turn(until_s)
        now_s = time.perf_counter()
        while self._waiting:
            connection, request = self._waiting[0]
            if not request.is_settled:
                if request.deadline_s > now_s:
                    return
                connection.give_up(request)
            self._waiting.popleft()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self.loop.close()


class _ClosedLoop:
    """A number of clients at a time, until all have had their turn or the time is up."""

    def __init__(self, load: _Load) -> None:
        self.load = load
        plan = load.plan
        is_timed = plan.duration_s is not None
        self._num_left = plan.num_simultaneous_clients if is_timed else plan.num_total_clients
        self._num_asking = 0
        self._staying: set[LoadConnection] = set()

    def start(self) -> None:
        self.load.start_clock()
        for _ in range(self.load.plan.num_simultaneous_clients):
            self._start_one()

    def are_done(self) -> bool:
        return not self._num_asking and not self._staying

    def finished(self, connection: LoadConnection) -> None:
        """Replaces a client that has its last answer by another."""
        self._num_asking -= 1
        on_answered = self.load.plan.on_answered
        if on_answered is None:
            self.load.forget(connection)
        elif not connection.is_closed:
            self._staying.add(connection)
        self._start_one()
        if on_answered is not None and not self._num_asking:
            on_answered()

    def left(self, connection: LoadConnection, code: str) -> bool:
        """Drops a lost connection; returns whether its client had its last answer."""
        self.load.forget(connection)
        if connection not in self._staying:
            return False
        self._staying.remove(connection)
        if code != "connection_lost":
            self.load.record(time.perf_counter(), code)
        return True

    def _start_one(self) -> None:
        if self._num_left:
            self._num_left -= 1
            self._num_asking += 1
            _Client(self).connect()


class _Client:
    """One client: one connection, one question after another."""

    def __init__(self, clients: _ClosedLoop) -> None:
        self._clients = clients
        self._load = clients.load
        plan = self._load.plan
        counted = float(plan.num_request_per_client)
        self._num_left = counted if plan.duration_s is None else float("inf")
        self._connecting_s = 0.0

    def connect(self) -> None:
        self._connecting_s = time.perf_counter()
        self._load.connect(self).open()

    def opened(self, connection: LoadConnection) -> None:
        self._go_on(connection)

    def settled(self, connection: LoadConnection, request: SentRequest, code: str) -> None:
        self._load.record(request.started_s, code, request.index)
        if connection.is_closed:
            return
        if connection.conversation.is_leaving:
            self._load.forget(connection)
            self._connect_again(connection)
        else:
            self._go_on(connection)

    def lost(self, connection: LoadConnection, code: str) -> None:
        if self._clients.left(connection, code):
            return
        if not connection.was_open:
            self._num_left -= 1
            self._load.record(self._connecting_s, code)
        connect_again = functools.partial(self._connect_again, connection)
        self._load.loop.call_at(time.perf_counter() + _RECONNECT_PAUSE_S, connect_again)

    def _connect_again(self, lost: LoadConnection) -> None:
        if self._wants_more(time.perf_counter()):
            self.connect()
        else:
            self._clients.finished(lost)

    def _go_on(self, connection: LoadConnection) -> None:
        now_s = time.perf_counter()
        if self._wants_more(now_s):
            self._num_left -= 1
            self._load.ask(connection, now_s)
        else:
            self._clients.finished(connection)

    def _wants_more(self, now_s: float) -> bool:
        return self._num_left > 0 and now_s < self._load.end_s


class _OpenLoop:
    """Requests at random times, over connections that take turns.

    A latency counts from when the request was due, so that neither a server that stops reading nor
    a late loop can hide a delay (Gil Tene's "coordinated omission").
    """

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._moments = random.Random(load.plan.seed)
        self._connections: deque[LoadConnection] = deque()
        num_requests = load.plan.num_requests
        self._num_to_come = float("inf") if num_requests is None else float(num_requests)
        self._num_in_flight = self._num_opening = 0
        self._due_s = 0.0

    def start(self) -> None:
        self._num_opening = self._load.plan.num_simultaneous_clients
        self._connections.extend(self._load.connect(self) for _ in range(self._num_opening))
        for connection in list(self._connections):
            connection.open()

    def are_done(self) -> bool:
        return not self._num_to_come and not self._num_in_flight

    def opened(self, connection: LoadConnection) -> None:
        self._count_opening()

    def settled(self, connection: LoadConnection, request: SentRequest, code: str) -> None:
        self._num_in_flight -= 1
        self._load.record(request.started_s, code, request.index)
        if connection.conversation.is_over:
            self._load.forget(connection)

    def lost(self, connection: LoadConnection, code: str) -> None:
        self._load.forget(connection)
        if not connection.was_open:
            self._count_opening()

    def _count_opening(self) -> None:
        """Starts the clock once every first connection is open or has failed."""
        self._num_opening -= 1
        if not self._num_opening:
            self._load.start_clock()
            self._due_s = time.perf_counter()
            self._wait_for_next()

    def _wait_for_next(self) -> None:
        assert self._load.plan.rate_per_s is not None
        self._due_s += self._moments.expovariate(self._load.plan.rate_per_s)
        if self._due_s > self._load.end_s:
            self._num_to_come = 0
        if self._num_to_come:
            self._load.loop.call_at(self._due_s, self._ask)

    def _ask(self) -> None:
        self._num_to_come -= 1
        self._num_in_flight += 1
        connection = self._connections.popleft()
        if connection.is_closed or connection.conversation.is_leaving:
            connection = self._load.connect(self)
        self._connections.append(connection)
        self._load.ask(connection, self._due_s)
        self._wait_for_next()
