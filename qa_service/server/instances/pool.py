"""The pool: it keeps a number of instances alive and gives them work.

It sets the loop's mark when an instance is ready or has ended, and when the pool has failed.

An instance that dies or is overdue is replaced: at once the first time, then with a backoff that
doubles while it keeps dying. The pool reports its batches as lost; the dispatcher decides on
retries. While the pool is booting, the first instance that cannot start fails the pool; later,
`MAX_FAILED_STARTS` in a row of every instance do. A start that a signal from outside has ended says
nothing of the model: it counts for the backoff alone. Each instance proves itself now and then
(`self_tests`); if the replacements of all compute wrongly too, the pool fails.

Its size can change, so that one version can replace another an instance at a time.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from qa_service.instance.messages import ModelFacts, Results
from qa_service.instance.options import InstanceOptions
from qa_service.logs import plural
from qa_service.net.event_loop import EventLoop
from qa_service.net.timers import LazyTimer, Timer, overdue_s
from qa_service.server.instances.base import Worker, WorkerListener, WorkerState
from qa_service.server.instances.instance_times import InstanceTimes
from qa_service.server.instances.self_tests import SelfTests
from qa_service.server.scheduling.ticket import Ticket
from qa_service.server.telemetry.metrics import ModelMetrics

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
"""The backoff after the second death in a row; there is none after the first."""
MAX_BACKOFF_S = 10.0
"""A start takes a core for seconds: an instance that always dies leaves the core to the others."""
MAX_FAILED_STARTS = 4
"""A start that lacked memory for a moment has three more attempts. With broken model files every
attempt fails, and the operator has to learn of it."""
REAP_DELAY_S = 0.1
"""The interval at which ended processes are reaped; no event announces them."""

WorkerFactory = Callable[[int, WorkerListener], Worker]
"""Starts the instance of a number, with the listener that it reports to."""


class BatchListener(Protocol):
    """Receives the results of batches, and reports the waiting work."""

    @property
    def waiting_s(self) -> float:
        """How long one instance would need for the queue."""

    def on_results(self, batch: Sequence[Ticket], results: Results) -> None:
        """A batch is finished."""

    def on_lost(self, batch: Sequence[Ticket], *, were_running: bool) -> None:
        """An instance died with this batch. A request that ran may have killed it."""


class WorkerPool:
    """Keeps instances alive and gives them work.

    Args:
        drain_timeout_s: How long a closed instance may take to end before it is killed.

    Attributes:
        alive: How many instances are ready.
        model: The model of its instances; the defaults until one is ready.
        size: How many instances it should have now.
        is_booting: Whether it has not been complete since it started or last grew.
        is_wrong: Whether it has failed because no instance gives its known answers.
    """

    batches: BatchListener

    def __init__(
        self,
        loop: EventLoop,
        options: InstanceOptions,
        make_worker: WorkerFactory,
        metrics: ModelMetrics,
        name: str = "",
        *,
        drain_timeout_s: float,
    ) -> None:
        self.model = ModelFacts()
        self.alive = self.size = 0
        self.is_booting = True
        self.is_wrong = False
        self._loop = loop
        self._options = options
        self._make_worker = make_worker
        self._metrics = metrics
        self._prefix = f"{name}: " if name else ""
        self._drain_timeout_s = drain_timeout_s
        self._workers: dict[int, Worker] = {}
        self._ending: dict[Worker, float] = {}
        """Closed instances whose processes still run, and when each is killed."""
        self._unexplained: set[Worker] = set()
        """Those of them that ended while they started, without a reason: their status has it."""
        self._wanted: set[int] = set()
        self._deaths_in_row: defaultdict[int, int] = defaultdict(int)
        self._failed_starts: defaultdict[int, int] = defaultdict(int)
        self._wrong_starts: set[int] = set()
        self._restarts: dict[int, Timer] = {}
        self._times: defaultdict[int, InstanceTimes] = defaultdict(InstanceTimes)
        self._failure = ""
        self._is_closed = False
        self._overdue = LazyTimer(loop, self._end_overdue)
        self._self_tests = SelfTests(
            loop, options.self_test_interval_s, self._workers.values, metrics, self._prefix
        )

    def resize(self, size: int) -> None:
        """Starts instances, or ends some after their batches."""
        first, self.size = self.size, size
        self.is_booting = self.is_booting or size > first
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
        """Why the pool cannot serve or grow, reported once; empty if it has not failed."""
        failure, self._failure = self._failure, ""
        return failure

    @property
    def is_complete(self) -> bool:
        """Whether an instance is ready, and every local one is."""
        ready = {w.number for w in self._workers.values() if w.state is WorkerState.READY}
        return bool(ready) and ready.issuperset(self._local)

    @property
    def num_processes(self) -> int:
        """How many processes there are, those that are ending included."""
        return len(self._workers) + len(self._ending)

    @property
    def memory_bytes(self) -> int:
        """The memory of its instances, as each measured it when it became ready."""
        return sum(w.ready.memory_bytes for w in self._workers.values() if w.ready)

    @property
    def _local(self) -> range:
        """The numbers of its local instances: all, except in a `RayPool`."""
        return range(self.size)

    @property
    def workers(self) -> Iterable[Worker]:
        """Its instances, in every state."""
        return self._workers.values()

    @property
    def devices(self) -> list[str]:
        """The devices of its instances, in the order of their numbers."""
        return [worker.device for _, worker in sorted(self._workers.items())]

    def reports(self) -> list[dict[str, object]]:
        """The part of its instances in the reply to a `stats` query."""
        return [worker.report() for _, worker in sorted(self._workers.items())]

    def answering(self, since_s: float) -> int:
        """How many instances are idle, or have been busy only since `since_s`."""
        return sum(
            worker.state is WorkerState.READY and (worker.is_idle or worker.since_s >= since_s)
            for worker in self._workers.values()
        )

    def _end_overdue(self) -> None:
        """Ends instances that are overdue: a C call cannot be interrupted."""
        now_s = self._loop.now_s()
        for worker in list(self._workers.values()):
            if now_s >= self._deadline_s(worker):
                doing = "busy" if worker.ready else "starting"
                worker.failure = f"still {doing} after its time"
                worker.close()
                self.on_worker_death(worker)
        self._overdue.arm(min(map(self._deadline_s, self._workers.values()), default=math.inf))

    def _deadline_s(self, worker: Worker) -> float:
        """When an instance is overdue."""
        if worker.in_flight:
            since_s = min(batch.since_s for batch in worker.in_flight.values())
            return overdue_s(self._loop, since_s, self._options.execution_timeout_s)
        if worker.state is WorkerState.STARTING:
            return overdue_s(self._loop, worker.since_s, self._options.start_timeout_s)
        return math.inf

    def _drop(self, number: int) -> None:
        """Ends an instance once it has finished its batches."""
        self._wanted.discard(number)
        if timer := self._restarts.pop(number, None):
            timer.cancel()
        if worker := self._workers.get(number):
            worker.is_leaving = True
            if not worker.in_flight:
                self._end(worker)

    def close(self) -> None:
        """Closes every channel; an instance that runs a batch ends after it, its results lost."""
        self._is_closed = True
        self._wanted.clear()
        for timer in self._restarts.values():
            timer.cancel()
        for worker in list(self._workers.values()):
            self._end(worker)

    def kill(self) -> None:
        """Kills closed instances that have not ended."""
        for worker in self._ending:
            worker.kill()

    def reap(self) -> None:
        """Removes instances whose processes have ended."""
        for worker in list(self._ending):
            if (status := worker.exit_status()) is not None:
                logger.info("%sinstance %d: %s", self._prefix, worker.number, status)
                del self._ending[worker]
                if worker in self._unexplained:
                    self._unexplained.remove(worker)
                    if worker.number in self._wanted:
                        self._replace(worker)

    @property
    def is_gone(self) -> bool:
        """Whether no process is left."""
        return not self.num_processes

    def on_worker_ready(self, worker: Worker) -> None:
        """Notes its model, and that it started."""
        logger.info("%sinstance %d is ready", self._prefix, worker.number)
        if worker.ready:
            self.model = worker.ready.model
        self._count_alive()
        self._failed_starts[worker.number] = 0
        self._wrong_starts.discard(worker.number)
        self.is_booting = self.is_booting and not self.is_complete
        self._self_tests.look()
        self._loop.mark()

    def on_worker_run(self, worker: Worker) -> None:
        """Arms the batch's timeout."""
        self._overdue.arm(self._deadline_s(worker))

    def on_worker_results(self, worker: Worker, batch: Sequence[Ticket], results: Results) -> None:
        """Passes the results on."""
        self._deaths_in_row[worker.number] = 0
        if worker.is_leaving and not worker.in_flight:
            self._end(worker)
        self.batches.on_results(batch, results)
        self._self_tests.on_results()

    def on_worker_tested(self, worker: Worker) -> None:
        """Counts it; a worker that leaves has been waited for."""
        if worker.is_leaving and not worker.in_flight:
            self._end(worker)
        self._self_tests.on_passed()

    def on_worker_death(self, worker: Worker) -> None:
        """Replaces it, and reports its batches as lost."""
        self._end(worker)
        if worker.ready or worker.failure:
            worker.kill()
            self._replace(worker)
        else:
            self._unexplained.add(worker)
            self.reap()

    def _replace(self, worker: Worker) -> None:
        """Starts an instance again that has ended, or gives up; reports its batches as lost."""
        reason = worker.failure or worker.exit_status() or "its channel closed"
        batches = list(worker.in_flight.values())
        number = sum(len(batch.members) for batch in batches)
        held = plural(number, "request") if number else "no requests"
        logger.error(
            "%sinstance %d ended (%s); it held %s", self._prefix, worker.number, reason, held
        )
        if worker.is_wrong:
            self._self_tests.on_wrong(worker)
        self._note_start(worker)
        if self._is_needed(worker) or self._has_given_up():
            self._fail(f"instance {worker.number} cannot start: {reason}")
        elif self._is_missing(worker.number):
            self._schedule_restart(worker.number)
        self._self_tests.look()
        for place, batch in enumerate(batches):
            were_running = place < worker.max_begun and not worker.is_blameless
            self.batches.on_lost(batch.members, were_running=were_running)

    def _note_start(self, worker: Worker) -> None:
        """Counts it, if a worker that has ended was never ready, unless it was killed."""
        if worker.ready is None and not worker.was_killed:
            self._failed_starts[worker.number] += 1
            if worker.is_wrong:
                self._wrong_starts.add(worker.number)

    def _is_needed(self, worker: Worker) -> bool:
        """Whether the pool cannot boot without this instance, which could not start."""
        return self.is_booting and worker.ready is None and not worker.was_killed

    def _is_missing(self, number: int) -> bool:
        """Whether an instance is wanted that neither is there nor will be started again."""
        is_coming = number in self._workers or number in self._restarts
        return number in self._wanted and not is_coming

    def _has_given_up(self) -> bool:
        """Whether no instance is alive and each local one has failed to start too often.

        Once is enough for one that does not give its known answers: it is no lack of memory.
        """
        numbers = self._local
        hopeless = [
            self._failed_starts[number] >= MAX_FAILED_STARTS or number in self._wrong_starts
            for number in numbers
        ]
        return bool(numbers) and all(hopeless) and not self.alive and not self._is_closed

    def _fail(self, message: str) -> None:
        self.is_wrong = bool(self._wrong_starts)
        self._failure = self._failure or message
        self._loop.mark()

    def _end(self, worker: Worker) -> None:
        worker.close()
        if self._workers.get(worker.number) is worker:
            del self._workers[worker.number]
        self._count_alive()
        if worker not in self._ending:
            self._ending[worker] = self._loop.now_s() + self._drain_timeout_s
            if len(self._ending) == 1:
                self._reap_later()

    def _count_alive(self) -> None:
        self.alive = sum(w.state is WorkerState.READY for w in self._workers.values())

    def _reap_later(self) -> None:
        self._loop.call_at(self._loop.now_s() + REAP_DELAY_S, self._reap_until_none)

    def _reap_until_none(self) -> None:
        self.reap()
        now_s = self._loop.now_s()
        for worker in [one for one, kill_s in self._ending.items() if kill_s <= now_s]:
            logger.warning(
                "%sinstance %d has not ended %.0f s after it was closed, and is killed",
                self._prefix,
                worker.number,
                self._drain_timeout_s,
            )
            self._ending[worker] = math.inf
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
        self._restarts.pop(number, None)
        try:
            self._start_worker(number)
        except OSError as error:  # descriptors, memory or processes ran out, perhaps for a moment
            logger.error("%sinstance %d cannot be started now: %s", self._prefix, number, error)
            self._schedule_restart(number)

    def _start_worker(self, number: int) -> None:
        worker = self._make_worker(number, self)
        if worker.state is not WorkerState.DEAD:  # as if killed before it was sent its setup
            self._workers[number] = worker
            worker.times = self._times[number]
            self._overdue.arm(self._deadline_s(worker))
