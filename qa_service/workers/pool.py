"""The pool: it keeps a number of instances alive and gives them work.

It marks whatever else must look at: an instance is ready or has ended, the pool has failed.

A worker that dies, or takes longer than it may, is replaced: at once the first time, then with
a backoff that doubles while it keeps dying. What it held is reported as lost; the dispatcher
decides on retries. An instance that cannot start is a fault for a person to see, not a loop to
spin in: while the pool is booting the first such failure is reported as the pool's own, and
later on, `MAX_FAILED_STARTS` in a row of every instance.

It may begin with a few instances, and have more or fewer later on: so a model can take another's
place an instance at a time.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from qa_service.logs import plural
from qa_service.net.event_loop import EventLoop
from qa_service.net.timers import LazyTimer, Timer
from qa_service.scheduling.ticket import Ticket
from qa_service.telemetry.metrics import ModelMetrics
from qa_service.workers.base import Worker, WorkerListener, WorkerState
from qa_service.workers.devices import InstanceDevice
from qa_service.workers.messages import ModelFacts, Results
from qa_service.workers.options import InstanceOptions

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
"""What the second death in a row waits; the first starts again at once."""
MAX_BACKOFF_S = 10.0
"""A start takes a core for seconds: what always dies leaves most of that time to the others."""
MAX_FAILED_STARTS = 4
"""What a start lacks for a moment, such as memory, may be there at one of three further attempts.
What is wrong with the model's files stays wrong, and the server's end tells its operator."""
REAP_DELAY_S = 0.1
"""Between looks for ended processes, which the loop hears of in no other way."""

WorkerFactory = Callable[[int, WorkerListener], Worker]
"""Starts a worker: its number, and who hears from it."""


class BatchListener(Protocol):
    """Hears what became of batches, and says how much waits."""

    @property
    def waiting_s(self) -> float:
        """How long one instance would need for what waits, in seconds."""

    def on_results(self, batch: Sequence[Ticket], results: Results) -> None:
        """A batch is finished."""

    def on_lost(self, batch: Sequence[Ticket], *, were_running: bool) -> None:
        """An instance died with these. Any of them that ran may be what killed it."""


class WorkerPool:
    """Keeps instances alive and gives them work.

    Args:
        loop: The loop that waits for them.
        options: How many, and how long they may take.
        make_worker: Starts the worker of that number, with the listener it reports to.
        metrics: Where restarts are counted.
        name: What it runs, for the log.

    Attributes:
        model: What its instances run; the defaults until one is ready.
        batches: Hears of results and losses.
    """

    batches: BatchListener

    def __init__(
        self,
        loop: EventLoop,
        options: InstanceOptions,
        make_worker: WorkerFactory,
        metrics: ModelMetrics,
        name: str = "",
    ) -> None:
        self.model = ModelFacts()
        self._loop = loop
        self._options = options
        self._make_worker = make_worker
        self._metrics = metrics
        self._prefix = f"{name}: " if name else ""
        self._workers: dict[int, Worker] = {}
        self._ending: dict[Worker, float] = {}
        """What is closed and has not ended yet, and when it is killed if it still has not."""
        self._size = 0
        self._wanted: set[int] = set()
        self._deaths_in_row: defaultdict[int, int] = defaultdict(int)
        self._failed_starts: defaultdict[int, int] = defaultdict(int)
        self._restarts: dict[int, Timer] = {}
        self._booting = True
        self._failure = ""
        self._is_closed = False
        self._overdue = LazyTimer(loop, self._end_overdue)

    def resize(self, size: int) -> None:
        """Starts or ends instances.

        One that is to end finishes what it runs.
        """
        first, self._size = self._size, size
        self._booting = self._booting or size > first
        try:
            for number in range(first, size):
                self._wanted.add(number)
                if worker := self._workers.get(number):
                    worker.is_leaving = False
                else:
                    self._start_worker(number)
        except OSError as error:
            self._fail(f"an instance cannot be started: {error}")
        for number in range(size, first):
            self._drop(number)

    def take_failure(self) -> str:
        """Why it cannot serve, or cannot grow, if it has failed since this was last asked."""
        failure, self._failure = self._failure, ""
        return failure

    @property
    def size(self) -> int:
        """How many instances it should have now."""
        return self._size

    @property
    def is_complete(self) -> bool:
        """Whether it can serve: an instance is ready, and so are all that it needs for that."""
        ready = {w.number for w in self._workers.values() if w.state is WorkerState.READY}
        return bool(ready) and ready.issuperset(self._local)

    @property
    def is_booting(self) -> bool:
        """Whether an instance that it was to have has never been ready."""
        return self._booting

    @property
    def num_processes(self) -> int:
        """How many instances there are, those that are ending among them."""
        return len(self._workers) + len(self._ending)

    @property
    def memory_bytes(self) -> int:
        """What its instances take, as each measured when it was ready."""
        return sum(w.ready.memory_bytes for w in self._workers.values() if w.ready)

    @property
    def _local(self) -> range:
        """The numbers of its local instances: all of them, but in a `RayPool`."""
        return range(self._size)

    @property
    def workers(self) -> Iterable[Worker]:
        """Its instances, in whatever state they are."""
        return self._workers.values()

    @property
    def devices(self) -> list[InstanceDevice]:
        """Where its instances run, in the order of their numbers."""
        return [InstanceDevice(number, w.device) for number, w in sorted(self._workers.items())]

    @property
    def alive(self) -> int:
        """Instances that have answered their warmup question and not died since."""
        return sum(w.state is WorkerState.READY for w in self._workers.values())

    def answering(self, since_s: float) -> int:
        """Instances alive that have answered lately: idle ones, or busy only since that time."""
        return sum(
            worker.state is WorkerState.READY and (worker.is_idle or worker.since_s >= since_s)
            for worker in self._workers.values()
        )

    def _end_overdue(self) -> None:
        """Ends the workers that take longer than they may; a C call can't be interrupted."""
        now_s = self._loop.now_s()
        for worker in list(self._workers.values()):
            if now_s >= self._deadline_s(worker):
                doing = "busy" if worker.ready else "starting"
                worker.failure = f"still {doing} after its time"
                worker.close()
                self.on_worker_death(worker)
        self._overdue.arm(min(map(self._deadline_s, self._workers.values()), default=math.inf))

    def _deadline_s(self, worker: Worker) -> float:
        if worker.in_flight:
            since_s = min(batch.since_s for batch in worker.in_flight.values())
            return since_s + self._options.execution_timeout_s
        if worker.state is WorkerState.STARTING:
            return worker.since_s + self._options.start_timeout_s
        return math.inf

    def _drop(self, number: int) -> None:
        """Has an instance end when it has finished what it runs."""
        self._wanted.discard(number)
        if timer := self._restarts.pop(number, None):
            timer.cancel()
        if worker := self._workers.get(number):
            worker.is_leaving = True
            if not worker.in_flight:
                self._end(worker)

    def close(self) -> None:
        """Closes every channel; instances that run a batch end after it, unheard."""
        self._is_closed = True
        for timer in self._restarts.values():
            timer.cancel()
        for worker in list(self._workers.values()):
            self._end(worker)

    def kill(self) -> None:
        """Kills what is closed and has not ended yet."""
        for worker in self._ending:
            worker.kill()

    def reap(self) -> None:
        """Forgets the workers that have ended."""
        for worker in list(self._ending):
            if (status := worker.exit_status()) is not None:
                logger.info("%sinstance %d: %s", self._prefix, worker.number, status)
                del self._ending[worker]

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of it."""
        return not self._ending and not self._workers

    def on_worker_ready(self, worker: Worker) -> None:
        """Notes what it runs."""
        logger.info("%sinstance %d is ready", self._prefix, worker.number)
        if worker.ready:
            self.model = worker.ready.model
        self._failed_starts[worker.number] = 0
        self._booting = self._booting and not self.is_complete
        self._loop.mark()

    def on_worker_run(self, worker: Worker) -> None:
        """Sees to it that the batch does not take longer than it may."""
        self._overdue.arm(self._deadline_s(worker))

    def on_worker_results(self, worker: Worker, batch: Sequence[Ticket], results: Results) -> None:
        """Hands the results on."""
        self._deaths_in_row[worker.number] = 0
        if worker.is_leaving and not worker.in_flight:
            self._end(worker)
        self.batches.on_results(batch, results)

    def on_worker_death(self, worker: Worker) -> None:
        """Replaces it, and reports what it held."""
        self._end(worker)
        worker.kill()
        reason = worker.failure or worker.exit_status() or "its channel closed"
        batches = list(worker.in_flight.values())
        number = sum(len(batch.members) for batch in batches)
        held = plural(number, "request") if number else "no requests"
        logger.error(
            "%sinstance %d ended (%s); it held %s", self._prefix, worker.number, reason, held
        )
        self._failed_starts[worker.number] += worker.ready is None
        if self._is_needed(worker) or self._has_given_up():
            self._fail(f"instance {worker.number} cannot start: {reason}")
        elif not self._is_closed and worker.number in self._wanted:
            self._schedule_restart(worker.number)
        for batch in batches:
            were_running = batch.since_s < math.inf and not worker.is_blameless
            self.batches.on_lost(batch.members, were_running=were_running)

    def _is_needed(self, worker: Worker) -> bool:
        """Whether it was to boot, and the pool cannot without it."""
        return self._booting and worker.ready is None

    def _has_given_up(self) -> bool:
        """Whether no instance lives and each local one has failed to start too often."""
        failed_starts = [self._failed_starts[number] for number in self._local]
        hopeless = bool(failed_starts) and min(failed_starts) >= MAX_FAILED_STARTS
        return hopeless and not self.alive and not self._is_closed

    def _fail(self, message: str) -> None:
        self._failure = self._failure or message
        self._loop.mark()

    def _end(self, worker: Worker) -> None:
        worker.close()
        if self._workers.pop(worker.number, None):
            self._ending[worker] = self._loop.now_s() + self._options.execution_timeout_s
            if len(self._ending) == 1:
                self._reap_later()

    def _reap_later(self) -> None:
        self._loop.call_at(self._loop.now_s() + REAP_DELAY_S, self._reap_until_none)

    def _reap_until_none(self) -> None:
        self.reap()
        now_s = self._loop.now_s()
        for worker in [one for one, kill_s in self._ending.items() if kill_s <= now_s]:
            worker.kill()
        if self._ending:
            self._reap_later()
        else:
            self._loop.mark()

    def _schedule_restart(self, number: int) -> None:
        max_backoff_s = self._max_backoff_s(number)
        deaths = self._deaths_in_row[number] = self._deaths_in_row[number] + 1
        backoff_s = min(FIRST_BACKOFF_S * 2 ** (deaths - 2), max_backoff_s) if deaths > 1 else 0.0
        logger.info("%sinstance %d starts again in %.1f s", self._prefix, number, backoff_s)
        self._metrics.session_restarts_total += 1
        self._restarts[number] = self._loop.call_at(
            self._loop.now_s() + backoff_s, lambda: self._start_again(number)
        )

    def _max_backoff_s(self, number: int) -> float:
        return MAX_BACKOFF_S

    def _start_again(self, number: int) -> None:
        try:
            self._start_worker(number)
        except OSError as error:  # of descriptors, memory or processes, and they may come back
            logger.error("%sinstance %d cannot be started now: %s", self._prefix, number, error)
            self._schedule_restart(number)

    def _start_worker(self, number: int) -> None:
        worker = self._workers[number] = self._make_worker(number, self)
        self._overdue.arm(self._deadline_s(worker))
