"""The pool: it keeps a number of sessions alive and gives them work.

A worker that dies, or takes longer than it may, is replaced: at once the first time, then with
a backoff that doubles while it keeps dying. What it held goes back to the pool's owner, who
decides on retries. A session that cannot start is a fault for a person to see, not a loop to
spin in: while the pool is booting the first such failure is reported as the pool's own, and
later on, `MAX_FAILED_STARTS` in a row of every session.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from qa_service.event_loop import EventLoop, LazyTimer, Timer
from qa_service.placement import Place
from qa_service.scheduler import Ticket
from qa_service.workers.base import Worker, WorkerListener, WorkerState
from qa_service.workers.channel import Results, Setup

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0
MAX_FAILED_STARTS = 4
REAP_DELAY_S = 0.1

WorkerFactory = Callable[[int, WorkerListener], Worker]


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How many sessions there are, and how long they may take.

    Attributes:
        num_sessions: Sessions that the pool keeps alive.
        start_timeout_s: From a worker's start to its answer to the warmup question.
        execution_timeout_s: From a batch's departure to its results.
    """

    num_sessions: int
    start_timeout_s: float
    execution_timeout_s: float


class PoolOwner(Protocol):
    """Who hears from the pool."""

    def on_pool_ready(self, pool: WorkerPool) -> None:
        """Every session has answered its warmup question."""

    def on_pool_failure(self, pool: WorkerPool, message: str) -> None:
        """The pool cannot serve: its sessions cannot start."""

    def on_session_restart(self) -> None:
        """A session has died and is to be started anew."""

    def on_results(self, tickets: Sequence[Ticket], results: Results) -> None:
        """A batch is finished."""

    def on_tickets_lost(self, tickets: Sequence[Ticket], were_running: bool) -> None:
        """A session died with these; they may be retried. Any that ran may be what killed it."""


class WorkerPool:
    """Keeps sessions alive and gives them work.

    Args:
        loop: The loop that waits for them.
        config: How many, and how long they may take.
        make_worker: Starts the worker of that number, with the listener it reports to.
        setup: What each session is to be.
        owner: Who hears of results and losses.

    Attributes:
        model: The name of the model that its sessions run; empty until one is ready.
    """

    def __init__(
        self,
        loop: EventLoop,
        config: PoolConfig,
        make_worker: WorkerFactory,
        setup: Setup,
        owner: PoolOwner,
    ) -> None:
        self.model = ""
        self._loop = loop
        self._config = config
        self._make_worker = make_worker
        self._setup = setup
        self._owner = owner
        self._workers: dict[int, Worker] = {}
        self._dying: list[Worker] = []
        self._deaths_in_row = dict.fromkeys(range(config.num_sessions), 0)
        self._failed_starts = dict(self._deaths_in_row)
        self._restarts: dict[int, Timer] = {}
        self._booting = True
        self._retiring = False
        self._overdue = LazyTimer(loop, self._end_overdue)

    def start(self) -> None:
        """Starts every session; `on_pool_ready` or `on_pool_failure` follows."""
        try:
            for number in range(self._config.num_sessions):
                self._start_worker(number)
        except OSError as error:
            message = f"a session cannot be started: {error}"
            self._loop.call_soon(lambda: self._owner.on_pool_failure(self, message))

    @property
    def workers(self) -> Iterable[Worker]:
        """Its sessions, in whatever state they are."""
        return self._workers.values()

    @property
    def places(self) -> list[Place]:
        """Where the sessions that there are run, in the order of their numbers."""
        return [
            Place(number, worker.device or worker.placement.device, worker.placement.cores)
            for number, worker in sorted(self._workers.items())
        ]

    @property
    def sessions_alive(self) -> int:
        """Sessions that have answered their warmup question and not died since."""
        return sum(w.state is WorkerState.READY for w in self._workers.values())

    def sessions_answering(self, since_s: float) -> int:
        """Sessions alive that have answered lately: idle ones, or busy only since that time."""
        return sum(
            worker.state is WorkerState.READY and (worker.is_idle or worker.since_s >= since_s)
            for worker in self._workers.values()
        )

    def run(self, worker: Worker, tickets: Sequence[Ticket]) -> None:
        """Gives one of its sessions a batch."""
        worker.run(tickets)
        self._overdue.by(self._deadline_s(worker))

    def _end_overdue(self) -> None:
        """Ends the workers that take longer than they may; a C call can't be interrupted."""
        now_s = self._loop.now_s()
        for worker in list(self._workers.values()):
            if now_s >= self._deadline_s(worker):
                doing = "busy" if worker.was_ready else "starting"
                worker.failure = f"still {doing} after its time"
                worker.hang_up()
                self.on_worker_death(worker)
        self._overdue.by(min(map(self._deadline_s, self._workers.values()), default=math.inf))

    def _deadline_s(self, worker: Worker) -> float:
        if worker.in_flight:
            since_s = min(batch.since_s for batch in worker.in_flight.values())
            return since_s + self._config.execution_timeout_s
        if worker.state is WorkerState.STARTING:
            return worker.since_s + self._config.start_timeout_s
        return math.inf

    def retire(self) -> None:
        """Takes no more work: each session ends when it has finished what it runs."""
        self._retiring = True
        for timer in self._restarts.values():
            timer.cancel()
        for worker in list(self._workers.values()):
            if not worker.in_flight:
                self._dismiss(worker)

    def close(self) -> None:
        """Hangs up on every session; those that run a batch end after it, unheard."""
        self.retire()
        for worker in list(self._workers.values()):
            self._dismiss(worker)

    def kill(self) -> None:
        """Ends what has been hung up on and not ended yet."""
        for worker in self._dying:
            worker.kill()

    def reap(self) -> None:
        """Forgets the workers that have ended."""
        still_dying = []
        for worker in self._dying:
            if (status := worker.exit_status()) is None:
                still_dying.append(worker)
            else:
                logger.info("session %d: %s", worker.number, status)
        self._dying = still_dying

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of it."""
        return not self._dying and not self._workers

    def on_worker_ready(self, worker: Worker) -> None:
        """See `WorkerListener`."""
        logger.info("session %d is ready", worker.number)
        self.model = worker.model
        self._failed_starts[worker.number] = 0
        if self._booting and self.sessions_alive == self._config.num_sessions:
            self._booting = False
            self._owner.on_pool_ready(self)

    def on_worker_results(
        self, worker: Worker, tickets: Sequence[Ticket], results: Results
    ) -> None:
        """See `WorkerListener`."""
        self._deaths_in_row[worker.number] = 0
        if self._retiring and not worker.in_flight:
            self._dismiss(worker)
        self._owner.on_results(tickets, results)

    def on_worker_death(self, worker: Worker) -> None:
        """See `WorkerListener`."""
        self._dismiss(worker)
        worker.kill()
        reason = worker.failure or "it died without a word"
        batches = list(worker.in_flight.values())
        num_requests = sum(len(batch.tickets) for batch in batches)
        logger.error("session %d died with %d requests: %s", worker.number, num_requests, reason)
        self._failed_starts[worker.number] += not worker.was_ready
        if self._booting or self._has_given_up():
            message = f"session {worker.number} cannot start: {reason}"
            self._owner.on_pool_failure(self, message)
        elif not self._retiring:
            self._schedule_restart(worker.number)
        for batch in batches:
            self._owner.on_tickets_lost(batch.tickets, were_running=batch.since_s < math.inf)

    def _has_given_up(self) -> bool:
        """Whether no session lives and each has failed to start too often."""
        hopeless = min(self._failed_starts.values()) >= MAX_FAILED_STARTS
        return hopeless and not self.sessions_alive and not self._retiring

    def _dismiss(self, worker: Worker) -> None:
        worker.hang_up()
        if self._workers.pop(worker.number, None):
            self._dying.append(worker)
            if len(self._dying) == 1:
                self._reap_later()

    def _reap_later(self) -> None:
        self._loop.call_at(self._loop.now_s() + REAP_DELAY_S, self._reap_until_none)

    def _reap_until_none(self) -> None:
        self.reap()
        if self._dying:
            self._reap_later()

    def _schedule_restart(self, number: int) -> None:
        deaths = self._deaths_in_row[number] = self._deaths_in_row[number] + 1
        backoff_s = min(FIRST_BACKOFF_S * 2 ** (deaths - 2), MAX_BACKOFF_S) if deaths > 1 else 0.0
        logger.info("session %d starts anew in %.1f s", number, backoff_s)
        self._owner.on_session_restart()
        self._restarts[number] = self._loop.call_at(
            self._loop.now_s() + backoff_s, lambda: self._start_again(number)
        )

    def _start_again(self, number: int) -> None:
        try:
            self._start_worker(number)
        except OSError as error:  # of descriptors, memory or processes, and they may come back
            logger.error("session %d cannot be started now: %s", number, error)
            self._schedule_restart(number)

    def _start_worker(self, number: int) -> None:
        worker = self._workers[number] = self._make_worker(number, self)
        worker.set_up(self._setup)
        self._overdue.by(self._deadline_s(worker))
