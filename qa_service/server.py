"""The server: it joins the loop, the connections, the scheduler and the pool.

    accept ──▶ Connection ──on_request──▶ Scheduler ──dispatch──▶ WorkerPool
                   ▲                                                  │
                   └──────answer / fail◀── on_results, on_tickets_lost┘

    STARTING ──pool ready──▶ SERVING ──signal──▶ DRAINING ──nothing left──▶ STOPPED

Every accepted request is in exactly one place (the scheduler or a worker) until it is answered.
"""

from __future__ import annotations

import itertools
import logging
import math
import signal
import socket
from collections.abc import Callable, Sequence
from enum import Enum, auto

from qa_service.config import ServerConfig
from qa_service.connection import Connection
from qa_service.errors import (
    ERROR_KINDS,
    DeadlineExceededError,
    SetupError,
    ShuttingDownError,
    WorkerCrashedError,
)
from qa_service.event_loop import EventLoop
from qa_service.manifest import load_manifest
from qa_service.protocol import Request, Timings
from qa_service.scheduler import Scheduler, Ticket, estimate_tokens
from qa_service.workers.base import Worker, WorkerFactory, WorkerPool
from qa_service.workers.channel import Failure, Results
from qa_service.workers.process import ProcessWorker
from qa_service.workers.thread import ThreadWorker

logger = logging.getLogger(__name__)

LISTEN_BACKLOG = 1024
ACCEPTS_A_ROUND = 16
MAX_ATTEMPTS = 2
ACCEPT_REST_S = 0.1
REAP_INTERVAL_S = 0.02
EXIT_TIMEOUT_S = 3.0


class _Phase(Enum):
    STARTING = auto()
    SERVING = auto()
    DRAINING = auto()
    STOPPING = auto()


class QaServer:
    """A question-answering server.

    Args:
        config: Everything that can be set.
        on_ready: Called once, when every session has answered its warmup question.

    Raises:
        SetupError: The model is not prepared, or the address cannot be had.
    """

    def __init__(self, config: ServerConfig, on_ready: Callable[[QaServer], None]) -> None:
        self.config = config
        self.manifest = load_manifest(config.model)
        self._on_ready = on_ready
        self._listener = _bind(config.host, config.port)
        self._loop = EventLoop()
        self._scheduler = Scheduler(config.scheduler_config)
        self._pool = WorkerPool(
            self._loop,
            config.num_inference_sessions,
            _worker_factory(config, self._loop),
            config.worker_setup,
            self,
        )
        self._connections: set[Connection] = set()
        self._ticket_keys = itertools.count()
        self._phase = _Phase.STARTING
        self._wake_s = math.inf
        self._drain_deadline_s = math.inf
        self._exit_deadline_s = math.inf
        self._boot_failure = ""

    @property
    def address(self) -> str:
        """Where it listens, as `host:port`."""
        port: int = self._listener.getsockname()[1]
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{host}:{port}"

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT; returns when all is answered and ended.

        Raises:
            SetupError: A session could not start.
        """
        self._loop.after_each = self._after_round
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(signum, self.stop)
        try:
            self._pool.start()
            self._loop.run()
        finally:
            self._pool.close()
            self._pool.kill()
            self._listener.close()
            self._loop.close()
        if self._boot_failure:
            raise SetupError(self._boot_failure)

    def stop(self) -> None:
        """Drains: takes no new work, answers what it has, and ends. Asked twice, ends now."""
        if self._phase is _Phase.SERVING:
            logger.info("draining: %d waiting", len(self._scheduler))
            self._phase = _Phase.DRAINING
            self._loop.watch(self._listener)
            self._listener.close()
            self._drain_deadline_s = self._loop.now_s() + self.config.drain_timeout_ms / 1e3
        else:
            self._end_now()

    # What the pool reports.

    def on_pool_ready(self) -> None:
        """See `PoolOwner`."""
        try:
            self._listener.listen(LISTEN_BACKLOG)
        except OSError as error:
            self.on_boot_failure(f"cannot listen on {self.address}: {error.strerror}")
            return
        self._phase = _Phase.SERVING
        self._accept_while_room()
        self._on_ready(self)

    def on_boot_failure(self, message: str) -> None:
        """See `PoolOwner`."""
        self._boot_failure = self._boot_failure or message
        self._end_now()

    def on_results(self, tickets: Sequence[Ticket], results: Results) -> None:
        """See `PoolOwner`."""
        for ticket, outcome in zip(tickets, results.outcomes, strict=True):
            if isinstance(outcome, Failure):
                ticket.owner.fail(ticket, ERROR_KINDS[outcome.code](outcome.message))
            else:
                queue_ms = round((ticket.dispatched_s - ticket.arrived_s) * 1e3, 3)
                timings = Timings(queue_ms, results.inference_ms)
                ticket.owner.answer(ticket, outcome.answers, timings)

    def on_tickets_lost(self, tickets: Sequence[Ticket]) -> None:
        """See `PoolOwner`. A request gets one more try, alone: it may be what killed it."""
        for ticket in tickets:
            ticket.attempts += 1
            if ticket.attempts == MAX_ATTEMPTS:
                ticket.owner.fail(ticket, WorkerCrashedError())
            elif ticket.owner.wants(ticket):
                self._scheduler.retry(ticket)

    # What the connections report.

    def on_request(self, connection: Connection, request: Request) -> Ticket:
        """See `ConnectionOwner`."""
        if self._phase is not _Phase.SERVING:
            raise ShuttingDownError
        now_s = self._loop.now_s()
        ticket = Ticket(
            key=next(self._ticket_keys),
            request=request,
            owner=connection,
            arrived_s=now_s,
            deadline_s=self._deadline_s(now_s, request),
            tokens=estimate_tokens(request),
        )
        if len(self._scheduler) >= self.config.max_queue_size:
            self._dispatch(now_s)  # what came in this same round may have a session waiting
        self._scheduler.add(ticket)
        return ticket

    def on_connection_end(self, connection: Connection) -> None:
        """See `ConnectionOwner`. Work that nobody waits for any more is not done."""
        logger.debug("%s has gone with %d in flight", connection.name, len(connection.tickets))
        for ticket in connection.tickets.values():
            self._scheduler.remove(ticket)
        connection.tickets.clear()
        self._connections.discard(connection)
        if self._phase is _Phase.SERVING:
            self._accept_while_room()

    # The loop's own business.

    def _deadline_s(self, now_s: float, request: Request) -> float | None:
        limits_ms = [ms for ms in (self.config.request_timeout_ms, request.timeout_ms) if ms]
        return now_s + min(limits_ms) / 1e3 if limits_ms else None

    def _accept_while_room(self) -> None:
        has_room = len(self._connections) < self.config.max_connections
        self._loop.watch(self._listener, self._accept if has_room else None)

    def _accept(self) -> None:
        room = self.config.max_connections - len(self._connections)
        for _ in range(min(room, ACCEPTS_A_ROUND)):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                break
            except OSError as error:
                self._rest(error)
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = f"{address[0]}:{address[1]}"
            limits = self.config.connection_limits
            self._connections.add(Connection(self._loop, sock, name, limits, self))
            logger.debug("%s has connected", name)
        self._accept_while_room()

    def _rest(self, error: OSError) -> None:
        """Out of descriptors or memory: the listener would be ready again at once, in vain."""
        logger.error("cannot accept: %s; resting %.1f s", error.strerror, ACCEPT_REST_S)
        self._loop.watch(self._listener)
        self._loop.call_at(self._loop.now_s() + ACCEPT_REST_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._phase is _Phase.SERVING:
            self._accept_while_room()

    def _after_round(self) -> None:
        now_s = self._loop.now_s()
        for ticket in self._scheduler.expired(now_s):
            ticket.owner.fail(ticket, DeadlineExceededError())
        worker = self._dispatch(now_s)
        times_s = [self._scheduler.next_deadline_s()]
        if worker:
            times_s.append(self._scheduler.next_departure_s())
        self._wake_at(min((t for t in times_s if t is not None), default=math.inf))
        if self._phase is _Phase.DRAINING:
            self._drain(now_s)

    def _dispatch(self, now_s: float) -> Worker | None:
        """Gives work to idle sessions; returns one that is left idle."""
        while worker := self._pool.idle_worker():
            batch = self._scheduler.next_batch(now_s)
            if not batch:
                break
            for ticket in batch:
                ticket.dispatched_s = now_s
            worker.run(batch)
        return worker

    def _wake_at(self, when_s: float) -> None:
        """Makes sure of a round by that time; one that comes too early is harmless."""
        if when_s < self._wake_s:
            self._wake_s = when_s
            self._loop.call_at(when_s, self._forget_wake)

    def _forget_wake(self) -> None:
        self._wake_s = math.inf

    def _drain(self, now_s: float) -> None:
        """Ends when every accepted request is answered, or its time to be is over."""
        if now_s >= self._drain_deadline_s:
            for connection in self._connections:
                for ticket in list(connection.tickets.values()):
                    self._scheduler.remove(ticket)
                    connection.fail(ticket, ShuttingDownError())
        if any(connection.tickets for connection in self._connections):
            self._wake_at(self._drain_deadline_s)
            return
        self._phase = _Phase.STOPPING
        self._pool.close()
        for connection in list(self._connections):
            connection.close_gently()
        self._exit_deadline_s = now_s + EXIT_TIMEOUT_S
        self._finish()

    def _finish(self) -> None:
        """Waits for the last bytes to be read and the workers to end, but not for long."""
        now_s = self._loop.now_s()
        if (self._pool.reap() and not self._connections) or now_s >= self._exit_deadline_s:
            self._loop.stop()
        else:
            self._loop.call_at(now_s + REAP_INTERVAL_S, self._finish)

    def _end_now(self) -> None:
        self._phase = _Phase.STOPPING
        for connection in list(self._connections):
            connection.close()
        self._loop.stop()


def _bind(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        sock.close()
        raise SetupError(f"cannot listen on {host}:{port}: {error}") from None
    sock.setblocking(False)
    return sock


def _worker_factory(config: ServerConfig, loop: EventLoop) -> WorkerFactory:
    if config.worker_type == "thread":
        return lambda number, listener: ThreadWorker(number, loop, listener)
    return lambda number, listener: ProcessWorker(
        number,
        loop,
        listener,
        intra_op_num_threads=config.intra_op_num_threads,
        log_level=config.log_level,
        log_format=config.log_format,
    )
