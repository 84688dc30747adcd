"""The pool: it keeps a number of instances alive and gives them work.

It sets the loop's mark when an instance is ready or has ended, and when the pool has failed.

An instance that dies or is overdue is replaced, with a backoff that doubles while it keeps dying.
The pool reports its batches as lost; the dispatcher decides on retries. While the pool is booting,
the first instance that cannot start fails the pool; later, `MAX_FAILED_STARTS` in a row of every
instance do. A start that a signal from outside has ended says nothing of the model: it counts for
the backoff alone. Each instance proves itself now and then (`self_tests`); if the replacements of
all compute wrongly too, the pool fails.

Its size can change, so that one version can replace another an instance at a time.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.worker_messages import MAX_MESSAGE_BYTES, ModelFacts, Results
from qa_service.logs import plural
from qa_service.net.event_loop import EventLoop
from qa_service.server.children.child import MAX_BACKOFF_S, Child
from qa_service.server.instances.base import (
    InstanceProgram,
    InstanceTimes,
    ProgramFactory,
    Worker,
    WorkerState,
)
from qa_service.server.instances.self_tests import SelfTests
from qa_service.server.scheduling.ticket import Ticket
from qa_service.server.telemetry.metrics import ModelMetrics

logger = logging.getLogger(__name__)

MAX_REMOTE_BACKOFF_S = 30.0
"""Longer than a local one's: a cluster takes longer to have room, and each attempt starts a Ray
driver."""
MAX_FAILED_STARTS = 4
"""A start that lacked memory for a moment has three more attempts. With broken model files every
attempt fails, and the operator has to learn of it."""


class BatchListener(Protocol):
    """Receives the results of batches, and reports the waiting work."""

    @property
    def waiting_s(self) -> float:
        """How long one instance would need for the queue."""

    def on_results(self, batch: Sequence[Ticket], results: Results) -> None: ...

    def on_lost(self, batch: Sequence[Ticket], *, were_running: bool) -> None:
        """An instance died with this batch. A request that ran may have killed it."""


@dataclass(eq=False)
class WorkerPool:
    """Keeps instances alive and gives them work.

    Args:
        drain_timeout_s: How long a closed instance may take to end before it is killed.

    Attributes:
        model: The model of its instances; the defaults until one is ready.
        is_booting: Whether it has not been complete since it started or last grew.
        is_wrong: Whether it has failed because no instance gives its known answers.
    """

    loop: EventLoop
    options: InstanceOptions
    make_program: ProgramFactory
    metrics: ModelMetrics
    drain_timeout_s: float
    name: str = ""
    batches: BatchListener = field(init=False)

    def __post_init__(self) -> None:
        self.model = ModelFacts()
        self.alive = self.size = 0
        self.is_booting = True
        self.is_wrong = False
        self._prefix = f"{self.name}: " if self.name else ""
        self._children: dict[int, Child] = {}
        self._workers: dict[int, Worker] = {}
        self._wanted: set[int] = set()
        self._failed_starts: defaultdict[int, int] = defaultdict(int)
        self._wrong_starts: set[int] = set()
        self._times: defaultdict[int, InstanceTimes] = defaultdict(InstanceTimes)
        self._failure = ""
        self._is_closed = False
        self._self_tests = SelfTests(
            self.loop,
            self.options.self_test_interval_s,
            self._workers.values,
            self.metrics,
            self._prefix,
        )

    def resize(self, size: int) -> None:
        first, self.size = self.size, size
        self.is_booting = self.is_booting or size > first
        try:
            for number in range(first, size):
                self._wanted.add(number)
                if worker := self._workers.get(number):
                    worker.is_leaving = False
                else:
                    self._child(number).start()
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
        return sum(child.num_processes for child in self._children.values())

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

    def _drop(self, number: int) -> None:
        """Ends an instance once it has finished its batches."""
        self._wanted.discard(number)
        worker = self._workers.get(number)
        if worker:
            worker.is_leaving = True
        if not worker or not worker.in_flight:
            self._end(number)

    def close(self) -> None:
        """Closes every channel; an instance that runs a batch ends after it, its results lost."""
        self._is_closed = True
        self._wanted.clear()
        for number in self._children:
            self._end(number)

    def kill(self) -> None:
        for child in self._children.values():
            child.kill()

    def reap(self) -> bool:
        """Whether all its processes have ended."""
        ended = [child.reap() for child in self._children.values()]
        return all(ended)

    def on_worker_ready(self, worker: Worker) -> None:
        logger.info("%sinstance %d is ready", self._prefix, worker.number)
        if worker.ready:
            self.model = worker.ready.model
        self._count_alive()
        self._failed_starts[worker.number] = 0
        self._wrong_starts.discard(worker.number)
        self.is_booting = self.is_booting and not self.is_complete
        self._self_tests.look()
        self.loop.mark()

    def on_worker_results(self, worker: Worker, batch: Sequence[Ticket], results: Results) -> None:
        worker.child.deaths_in_row = 0
        if worker.is_leaving and not worker.in_flight:
            self._end(worker.number)
        self.batches.on_results(batch, results)
        self._self_tests.on_results()

    def on_worker_tested(self, worker: Worker) -> None:
        """Counts it; a worker that leaves has been waited for."""
        if worker.is_leaving and not worker.in_flight:
            self._end(worker.number)
        self._self_tests.on_passed()

    def _child(self, number: int) -> Child:
        if number not in self._children:
            program = self.make_program(number)
            self._children[number] = Child(
                self.loop,
                f"{self._prefix}instance {number}",
                program.launch,
                on_data=lambda body: self._workers[number].take(body),  # noqa: PLW0108 - the latest
                max_frame_bytes=MAX_MESSAGE_BYTES,
                on_start=partial(self._on_start, number, program),
                on_end=partial(self._on_end, number),
                on_late=partial(self._on_late, number),
                max_backoff_s=MAX_REMOTE_BACKOFF_S if program.is_remote else MAX_BACKOFF_S,
                drain_timeout_s=self.drain_timeout_s,
            )
        return self._children[number]

    def _on_start(self, number: int, program: InstanceProgram) -> None:
        child = self._children[number]
        self._begin(Worker(number, self.loop, self, program, child))

    def _begin(self, worker: Worker) -> None:
        self._workers[worker.number] = worker
        worker.times = self._times[worker.number]
        worker.begin()

    def _on_late(self, number: int, _: Sequence[object]) -> None:
        """Notes why an instance is killed: a C call cannot be interrupted."""
        worker = self._workers[number]
        worker.failure = f"still {'busy' if worker.ready else 'starting'} after its time"

    def _on_end(self, number: int) -> None:
        """Replaces an instance that has died; its status says why it could not start."""
        worker = self._forget(number)

        def replace_if_wanted() -> None:
            if number in self._wanted:
                self._replace(worker)

        if worker.ready or worker.failure or worker.child.failure:
            self._replace(worker)
        else:
            worker.child.when_exited(replace_if_wanted)

    def _forget(self, number: int) -> Worker:
        worker = self._workers.pop(number)
        worker.state = WorkerState.DEAD
        worker.times.end(self.loop.now_s())
        self._count_alive()
        return worker

    def _replace(self, worker: Worker) -> None:
        """Starts an instance again that has ended, or gives up; reports its batches as lost."""
        status = worker.child.status and f"it {worker.child.status}"
        reason = worker.failure or worker.child.failure or status or "its channel closed"
        batches = list(worker.in_flight.values())
        number = sum(len(batch.members) for batch in batches)
        held = plural(number, "request") if number else "no requests"
        logger.error(
            "%sinstance %d ended (%s); it held %s", self._prefix, worker.number, reason, held
        )
        if worker.is_wrong:
            self._self_tests.on_wrong(worker)
        if worker.ready is None and not worker.child.was_killed:
            self._failed_starts[worker.number] += 1
            if worker.is_wrong:
                self._wrong_starts.add(worker.number)
        is_coming = worker.number in self._workers or worker.child.is_waiting
        if self._is_needed(worker) or self._has_given_up():
            self._fail(f"instance {worker.number} cannot start: {reason}")
        elif worker.number in self._wanted and not is_coming:
            self.metrics.session_restarts_total += 1
            worker.child.start_later()
        self._self_tests.look()
        for place, batch in enumerate(batches):
            were_running = place < worker.max_begun and not worker.is_blameless
            self.batches.on_lost(batch.members, were_running=were_running)

    def _is_needed(self, worker: Worker) -> bool:
        """Whether the pool cannot boot without this instance, which could not start."""
        return self.is_booting and worker.ready is None and not worker.child.was_killed

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
        self.loop.mark()

    def _end(self, number: int) -> None:
        """Closes an instance's channel; a start that is due is not made."""
        if child := self._children.get(number):
            child.close()
        if number in self._workers:
            self._forget(number)

    def _count_alive(self) -> None:
        self.alive = sum(w.state is WorkerState.READY for w in self._workers.values())
