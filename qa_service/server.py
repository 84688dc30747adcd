"""The server: it joins the loop, the connections, the scheduler and the sessions.

    Listener ──▶ Connection ──on_request──▶ Scheduler ──dispatch──▶ Sessions
                     ▲                                                 │
                     └──────answer, fail◀── on_results, on_tickets_lost┘

    STARTING ──sessions ready──▶ SERVING ──signal──▶ DRAINING ──all answered──▶ STOPPING

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

from qa_service.admission import Admission
from qa_service.batching import CostTable
from qa_service.config import ServerConfig
from qa_service.connection import Connection
from qa_service.engines import check_precision
from qa_service.errors import (
    ERROR_KINDS,
    DeadlineExceededError,
    QaError,
    QueueFullError,
    SessionsLostError,
    SetupError,
    ShuttingDownError,
    UnavailableError,
    WorkerCrashedError,
)
from qa_service.event_loop import EventLoop, LazyTimer
from qa_service.listener import Listener
from qa_service.manifest import load_manifest
from qa_service.metrics import ABANDONED, Metrics
from qa_service.placement import Place, Placement, place_sessions
from qa_service.protocol import QUERY_TYPES, Query, Request, Timings
from qa_service.scheduler import Scheduler, Ticket, estimate_tokens
from qa_service.status import Status
from qa_service.workers.base import Worker
from qa_service.workers.channel import Failure, Results
from qa_service.workers.pool import PoolOwner, WorkerFactory, WorkerPool
from qa_service.workers.process import ProcessWorker
from qa_service.workers.sessions import Sessions
from qa_service.workers.thread import ThreadWorker

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
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
        SetupError: The model is not prepared, or the address or a device cannot be had.
    """

    def __init__(self, config: ServerConfig, on_ready: Callable[[QaServer], None]) -> None:
        self.config = config
        self.manifest = load_manifest(config.model)
        check_precision(config.inference_engine_type, config.precision)
        self._window_tokens = self.manifest.window_tokens
        self._on_ready = on_ready
        self._loop = EventLoop()
        self._admission = Admission(self._loop, config.admission_config)
        self._listener = Listener(
            self._loop, config.host, config.port, config.tcp_keepalive_s, self._on_client
        )
        self._placements = place_sessions(
            config.num_inference_sessions,
            config.devices,
            cores_per_session=config.intra_op_num_threads,
            cpu_affinity=config.cpu_affinity,
        )
        self._scheduler = Scheduler(config.scheduler_config)
        self._sessions = Sessions(self._make_pool, self)
        self._connections: set[Connection] = set()
        self._metrics = Metrics(ERROR_KINDS, QUERY_TYPES)
        self._status = Status(config, self._loop, self._scheduler, self._sessions, self._metrics)
        self._connection_limits = config.connection_limits
        self._ticket_keys = itertools.count()
        self._phase = _Phase.STARTING
        self._wake = LazyTimer(self._loop, lambda: None)
        self._expiry = LazyTimer(self._loop, self._fail_expired)
        self._drain_deadline_s = math.inf
        self._exit_deadline_s = math.inf
        self._failure: SetupError | None = None

    @property
    def address(self) -> str:
        """Where it listens, as `host:port`."""
        return self._listener.address

    @property
    def places(self) -> list[Place]:
        """Where the sessions run, in the order of their numbers."""
        return self._sessions.places

    @property
    def cost_tables(self) -> set[CostTable]:
        """What its sessions have measured, each table once."""
        tables = (worker.rule.costs for worker in self._sessions.workers)
        return {table for table in tables if table}

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT; returns when all is answered and ended.

        Raises:
            SetupError: A session could not start.
            SessionsLostError: Sessions died and none could be started any more.
        """
        self._loop.after_each = self._after_round
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(signum, self.stop)
        self._loop.on_signal(signal.SIGHUP, self.reload)
        try:
            self._sessions.start()
            self._loop.run()
        finally:
            self._sessions.close()
            self._sessions.kill()
            self._listener.close()
            self._loop.close()
        if self._failure:
            raise self._failure

    def stop(self) -> None:
        """Drains: takes no new work, answers what it has, and ends. Asked twice, ends now."""
        if self._phase is _Phase.SERVING:
            logger.info("draining: %d waiting", len(self._scheduler))
            self._phase = _Phase.DRAINING
            self._listener.close()
            self._drain_deadline_s = self._loop.now_s() + self.config.drain_timeout_ms / 1e3
        else:
            self._end_now()

    def reload(self) -> None:
        """Loads certificates, tokens and model anew; what serves goes on until the new can."""
        if self._phase is _Phase.SERVING:
            self._admission.reload()
            self._sessions.reload()

    # What the sessions report.

    def on_sessions_ready(self) -> None:
        """See `SessionsOwner`."""
        if self._phase is not _Phase.STARTING:
            return
        try:
            self._listener.open()
        except SetupError as error:
            self._failure = error
            self._end_now()
            return
        self._phase = _Phase.SERVING
        self._admission.warn(self.config.host)
        self._on_ready(self)

    def on_sessions_failure(self, message: str) -> None:
        """See `SessionsOwner`. Of several that fail at once, the first has said why."""
        if self._phase is _Phase.STARTING:
            self._failure = self._failure or SetupError(message)
            self._end_now()
        elif self._phase is not _Phase.STOPPING:
            logger.critical("no session can be started any more: %s", message)
            self._failure = SessionsLostError(message)
            self._listener.close()
            self._fail_all(UnavailableError())
            self._end_gently()

    def on_results(self, tickets: Sequence[Ticket], results: Results) -> None:
        """See `PoolOwner`."""
        now_s = self._loop.now_s()
        self._metrics.count_batch(len(tickets), results.inference_ms, results.stages_ms)
        for ticket, outcome in zip(tickets, results.outcomes, strict=True):
            queue_ms = round((results.started_s - ticket.arrived_s) * 1e3, 3)
            self._metrics.queue_ms.observe(queue_ms)
            self._metrics.request_ms.observe((now_s - ticket.arrived_s) * 1e3)
            if isinstance(outcome, Failure):
                ticket.owner.fail(ticket, ERROR_KINDS[outcome.code](outcome.message))
            else:
                timings = Timings(queue_ms, results.inference_ms)
                ticket.owner.answer(ticket, outcome.answers, timings)

    def on_tickets_lost(self, tickets: Sequence[Ticket], were_running: bool) -> None:
        """See `PoolOwner`. What ran gets one more try, alone: it may be what killed it."""
        for ticket in filter(lambda ticket: ticket.owner.wants(ticket), tickets):
            ticket.attempts += were_running
            if ticket.attempts == MAX_ATTEMPTS:
                ticket.owner.fail(ticket, WorkerCrashedError())
            elif not were_running:
                self._scheduler.put_back(ticket)
                self._expiry.by(ticket.deadline_s)
            else:
                logger.debug("request %d: its session died; it is put back", ticket.key)
                self._metrics.request_retries_total += 1
                self._scheduler.retry(ticket)
                self._expiry.by(ticket.deadline_s)

    def on_session_restart(self) -> None:
        """See `PoolOwner`."""
        self._metrics.session_restarts_total += 1

    # What the connections report.

    def on_request(self, connection: Connection, request: Request) -> Ticket:
        """See `ConnectionOwner`."""
        if self._phase is not _Phase.SERVING:
            raise ShuttingDownError
        now_s = self._loop.now_s()
        tokens = estimate_tokens(request)
        ticket = Ticket(
            key=next(self._ticket_keys),
            request=request,
            owner=connection,
            arrived_s=now_s,
            deadline_s=self._deadline_s(now_s, request),
            tokens=tokens,
            is_long=tokens > self._window_tokens,
        )
        if len(self._scheduler) >= self.config.max_queue_size:
            self._dispatch(now_s)  # what came in this same round may have a session waiting
        try:
            self._scheduler.add(ticket)
        except QueueFullError:
            raise QueueFullError(retry_after_ms=self._status.retry_after_ms()) from None
        self._expiry.by(ticket.deadline_s)
        return ticket

    def on_query(self, query: Query) -> object:
        """See `ConnectionOwner`."""
        self._metrics.queries_total[query.type] += 1
        if query.type == "stats":
            return self._status.stats([len(c.tickets) for c in self._connections])
        return self._status.health(self._phase.name.lower())

    def on_outcome(self, outcome: str) -> None:
        """See `ConnectionOwner`."""
        self._metrics.requests_total[outcome] += 1

    def on_connection_end(self, connection: Connection) -> None:
        """See `ConnectionOwner`. Work that nobody waits for any more is not done."""
        logger.debug("%s has gone with %d in flight", connection.name, len(connection.tickets))
        for ticket in connection.tickets.values():
            logger.debug("%s: request %d: abandoned", connection.name, ticket.key)
            self._scheduler.remove(ticket)
            self.on_outcome(ABANDONED)
        connection.tickets.clear()
        self._connections.discard(connection)
        self._listener.set_accepting(len(self._connections) < self.config.max_connections)

    # The loop's own business.

    def _make_pool(self, owner: PoolOwner) -> WorkerPool:
        config = self.config
        factory = _worker_factory(config, self._loop, self._placements)
        return WorkerPool(self._loop, config.pool_config, factory, config.worker_setup, owner)

    def _deadline_s(self, now_s: float, request: Request) -> float:
        limits_ms = [ms for ms in (self.config.request_timeout_ms, request.timeout_ms) if ms]
        return now_s + min(limits_ms) / 1e3 if limits_ms else math.inf

    def _on_client(self, sock: socket.socket, name: str) -> None:
        limits = self._connection_limits
        connection = Connection(self._loop, sock, name, limits, self, admission=self._admission)
        self._connections.add(connection)
        self._metrics.connections_accepted_total += 1
        if len(self._connections) >= self.config.max_connections:
            self._metrics.listener_rests_total += 1
            self._listener.set_accepting(False)
        logger.debug("%s has connected", name)

    def _after_round(self) -> None:
        now_s = self._loop.now_s()
        if len(self._scheduler):
            self._dispatch(now_s)
            self._wake.by(self._next_turn_s(now_s))
        if self._phase is _Phase.DRAINING:
            self._drain(now_s)

    def _next_turn_s(self, now_s: float) -> float:
        """When a session can be given what waits, if none gives results before."""
        if not len(self._scheduler):
            return math.inf
        departure_s = self._scheduler.next_departure_s() or 0.0
        turns_s = (max(worker.takes_from_s(), departure_s) for worker in self._sessions.workers)
        return min((turn_s for turn_s in turns_s if turn_s > now_s), default=math.inf)

    def _fail_expired(self) -> None:
        """Answers what has waited too long."""
        for ticket in self._scheduler.expired(self._loop.now_s()):
            ticket.owner.fail(ticket, DeadlineExceededError())
        self._expiry.by(self._scheduler.next_deadline_s())

    def _dispatch(self, now_s: float) -> None:
        """Gives work to the sessions that can take some now, the idle ones first."""
        while len(self._scheduler) and self._dispatch_one(now_s):
            pass

    def _dispatch_one(self, now_s: float) -> bool:
        free = [(w.takes_from_s(), w.number, w) for w in self._sessions.workers]
        for takes_from_s, _, worker in sorted(free):
            if takes_from_s > now_s:
                break
            if self._give(worker, now_s):
                return True
        return False

    def _give(self, worker: Worker, now_s: float) -> bool:
        """Gives a session a batch, if there is one for it."""
        batch = self._scheduler.next_batch(
            now_s, worker.rule, is_idle=worker.is_idle, takes_long=worker.takes_long
        )
        if batch:
            for ticket in batch:
                logger.debug("request %d: given to session %d", ticket.key, worker.number)
            self._sessions.run(worker, batch)
        return bool(batch)

    def _drain(self, now_s: float) -> None:
        """Ends when every accepted request is answered, or its time to be is over."""
        is_over = now_s >= self._drain_deadline_s
        if is_over:
            self._fail_all(ShuttingDownError())
        if not is_over and any(connection.is_busy for connection in self._connections):
            self._wake.by(self._drain_deadline_s)
        else:
            self._end_gently()

    def _fail_all(self, error: QaError) -> None:
        for connection in list(self._connections):
            for ticket in list(connection.tickets.values()):
                self._scheduler.remove(ticket)
                connection.fail(ticket, error)

    def _end_gently(self) -> None:
        self._phase = _Phase.STOPPING
        self._sessions.close()
        for connection in list(self._connections):
            connection.close_gently()
        self._exit_deadline_s = self._loop.now_s() + EXIT_TIMEOUT_S
        self._finish()

    def _finish(self) -> None:
        """Waits for the last bytes to be read and the workers to end, but not for long."""
        now_s = self._loop.now_s()
        if (self._sessions.reap() and not self._connections) or now_s >= self._exit_deadline_s:
            self._loop.stop()
        else:
            self._loop.call_at(now_s + REAP_INTERVAL_S, self._finish)

    def _end_now(self) -> None:
        self._phase = _Phase.STOPPING
        for connection in list(self._connections):
            connection.close()
        self._loop.stop()


def _worker_factory(
    config: ServerConfig, loop: EventLoop, placements: Sequence[Placement]
) -> WorkerFactory:
    rule = config.batch_rule
    if config.worker_type == "thread":
        return lambda number, listener: ThreadWorker(
            number, loop, listener, placements[number], rule
        )
    return lambda number, listener: ProcessWorker(
        number,
        loop,
        listener,
        placements[number],
        rule,
        intra_op_num_threads=config.intra_op_num_threads,
        niceness=config.worker_niceness,
        log_level=config.log_level,
        log_format=config.log_format,
    )
