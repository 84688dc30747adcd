"""The pool and its workers as the loop sees them; nothing here waits.

A worker's life, by what comes up its channel:

    STARTING ──Ready──▶ IDLE ──batch──▶ BUSY ──Results──▶ IDLE
        └────Failed────────┴──end-of-file──┴──────────▶ DEAD ──backoff──▶ a new worker

What a worker held when it died is handed back to the pool's owner, who decides on retries.
While the pool is booting, a death is not retried but reported: a session that cannot start
is a fault for a person to see, not a loop to spin in.
"""

from __future__ import annotations

import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Protocol

from qa_service.event_loop import EventLoop, Timer
from qa_service.protocol import FrameReader
from qa_service.scheduler import Ticket
from qa_service.stream import Stream
from qa_service.workers.channel import (
    MAX_MESSAGE_BYTES,
    Batch,
    Failed,
    Ready,
    Results,
    Setup,
    encode,
    to_loop_decoder,
)

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0
REAP_DELAY_S = 0.1


class WorkerState(Enum):
    """Where a worker is in its life."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    DEAD = auto()


class Worker(ABC):
    """One inference session, from the loop's side of its channel.

    Attributes:
        number: Which session of the pool it is, from 0.
        state: Where it is in its life.
        tickets: What it is running.
        failure: Why it said it could not start; empty if it did not say.
    """

    def __init__(self, number: int, loop: EventLoop, listener: WorkerListener) -> None:
        self.number = number
        self.state = WorkerState.STARTING
        self.tickets: Sequence[Ticket] = ()
        self.failure = ""
        self._listener = listener
        self._frames = FrameReader(MAX_MESSAGE_BYTES)
        ours, theirs = socket.socketpair()
        self._stream = Stream(loop, ours, self._on_data, self._on_end)
        self._launch(theirs)

    @abstractmethod
    def _launch(self, channel: socket.socket) -> None:
        """Starts what runs the session and gives it its end of the channel."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once, if its kind can be; else it ends after its present batch."""

    @abstractmethod
    def exit_status(self) -> str | None:
        """How it ended, once nothing is left of it; lets the system forget it."""

    def set_up(self, setup: Setup) -> None:
        """Tells it what to be."""
        self._stream.write(encode(setup))

    def run(self, tickets: Sequence[Ticket]) -> None:
        """Gives it a batch."""
        self.state = WorkerState.BUSY
        self.tickets = tickets
        self._stream.write(encode(Batch([ticket.request.as_question() for ticket in tickets])))

    def hang_up(self) -> None:
        """Closes its channel: it ends when it next looks there. Nothing more is heard of it."""
        self.state = WorkerState.DEAD
        self._stream.close()

    def _on_data(self, data: bytes) -> None:
        self._frames.feed(data)
        while (frame := self._frames.next_frame()) is not None:
            message = to_loop_decoder.decode(frame)
            if isinstance(message, Failed):
                self.failure = message.message
                continue
            self.state = WorkerState.IDLE
            if isinstance(message, Ready):
                self._listener.on_worker_ready(self)
            else:
                tickets, self.tickets = self.tickets, ()
                self._listener.on_worker_results(self, tickets, message)

    def _on_end(self) -> None:
        self.state = WorkerState.DEAD
        self._listener.on_worker_death(self)


class WorkerListener(Protocol):
    """Who hears from a worker: the pool."""

    def on_worker_ready(self, worker: Worker) -> None:
        """It can take batches."""

    def on_worker_results(
        self, worker: Worker, tickets: Sequence[Ticket], results: Results
    ) -> None:
        """It has finished a batch."""

    def on_worker_death(self, worker: Worker) -> None:
        """Its channel has ended."""


class PoolOwner(Protocol):
    """Who hears from the pool: the server."""

    def on_pool_ready(self) -> None:
        """Every session has answered its warmup question."""

    def on_results(self, tickets: Sequence[Ticket], results: Results) -> None:
        """A batch is finished."""

    def on_tickets_lost(self, tickets: Sequence[Ticket]) -> None:
        """A session died with these; they may be retried."""

    def on_boot_failure(self, message: str) -> None:
        """A session could not start; the pool cannot serve."""


WorkerFactory = Callable[[int, WorkerListener], Worker]


class WorkerPool:
    """Keeps a number of sessions alive and gives them work.

    Args:
        loop: The loop that waits for them.
        num_sessions: How many.
        make_worker: Starts the worker of that number, with the listener it reports to.
        setup: What each session is to be.
        owner: Who hears of results and losses.
    """

    def __init__(
        self,
        loop: EventLoop,
        num_sessions: int,
        make_worker: WorkerFactory,
        setup: Setup,
        owner: PoolOwner,
    ) -> None:
        self._loop = loop
        self._make_worker = make_worker
        self._setup = setup
        self._owner = owner
        self._workers: dict[int, Worker] = {}
        self._dying: list[Worker] = []
        self._deaths_in_row = dict.fromkeys(range(num_sessions), 0)
        self._restarts: dict[int, Timer] = {}
        self._booting = True
        self._closed = False

    def start(self) -> None:
        """Starts every session; `on_pool_ready` or `on_boot_failure` follows."""
        for number in self._deaths_in_row:
            self._start_worker(number)

    def idle_worker(self) -> Worker | None:
        """A session that can take a batch now."""
        for worker in self._workers.values():
            if worker.state is WorkerState.IDLE:
                return worker
        return None

    @property
    def sessions_alive(self) -> int:
        """Sessions that have answered their warmup question and not died since."""
        return sum(w.state in {WorkerState.IDLE, WorkerState.BUSY} for w in self._workers.values())

    @property
    def is_running_any(self) -> bool:
        """Whether any session holds work."""
        return any(worker.tickets for worker in self._workers.values())

    def close(self) -> None:
        """Hangs up on every session; those that run a batch end after it."""
        self._closed = True
        for timer in self._restarts.values():
            timer.cancel()
        for worker in self._workers.values():
            worker.hang_up()
            self._dying.append(worker)
        self._workers.clear()

    def kill(self) -> None:
        """Ends what has not ended yet."""
        for worker in self._dying:
            worker.kill()

    def reap(self) -> bool:
        """Forgets the workers that have ended; says whether all have."""
        still_dying = []
        for worker in self._dying:
            if (status := worker.exit_status()) is None:
                still_dying.append(worker)
            else:
                logger.info("session %d: %s", worker.number, status)
        self._dying = still_dying
        return not self._dying

    def on_worker_ready(self, worker: Worker) -> None:
        """See `WorkerListener`."""
        logger.info("session %d is ready", worker.number)
        if self._booting and self.sessions_alive == len(self._deaths_in_row):
            self._booting = False
            self._owner.on_pool_ready()

    def on_worker_results(
        self, worker: Worker, tickets: Sequence[Ticket], results: Results
    ) -> None:
        """See `WorkerListener`."""
        self._deaths_in_row[worker.number] = 0
        self._owner.on_results(tickets, results)

    def on_worker_death(self, worker: Worker) -> None:
        """See `WorkerListener`."""
        if self._closed:
            return
        del self._workers[worker.number]
        self._dying.append(worker)
        worker.kill()
        self._loop.call_at(self._loop.now_s() + REAP_DELAY_S, self._reap_soon)
        reason = worker.failure or "it died without a word; see the log"
        if self._booting:
            self._owner.on_boot_failure(f"session {worker.number} cannot start: {reason}")
            return
        self._schedule_restart(worker, reason)
        if worker.tickets:
            self._owner.on_tickets_lost(worker.tickets)

    def _reap_soon(self) -> None:
        if not self.reap():
            self._loop.call_at(self._loop.now_s() + REAP_DELAY_S, self._reap_soon)

    def _schedule_restart(self, worker: Worker, reason: str) -> None:
        deaths = self._deaths_in_row[worker.number] = self._deaths_in_row[worker.number] + 1
        backoff_s = min(FIRST_BACKOFF_S * 2 ** (deaths - 1), MAX_BACKOFF_S) if deaths > 1 else 0.0
        logger.error(
            "session %d died with %d requests (%s); a new one starts in %.1f s",
            worker.number,
            len(worker.tickets),
            reason,
            backoff_s,
        )
        self._restarts[worker.number] = self._loop.call_at(
            self._loop.now_s() + backoff_s, lambda: self._start_worker(worker.number)
        )

    def _start_worker(self, number: int) -> None:
        worker = self._workers[number] = self._make_worker(number, self)
        worker.set_up(self._setup)
