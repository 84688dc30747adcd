"""One version of a model as it is served: its services, its queue and its instances.

    LOADING ──instances ready──▶ READY ──drain──▶ DRAINING ──all answered──▶ ENDING ──▶ GONE
        └───────close, failure─────┴────────────────────────────────────────────▲

It is a service, which says in each answer that it comes from it. Whatever is given to it is
answered by it, in whatever state it is by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto

from qa_service.errors import UnavailableError
from qa_service.net.event_loop import EventLoop
from qa_service.scheduling.admission import Admission
from qa_service.scheduling.call import Answered, Call, Outcome
from qa_service.scheduling.options import QueueOptions
from qa_service.scheduling.scheduler import Scheduler
from qa_service.serving.dispatcher import Dispatcher
from qa_service.serving.plan import VersionSpec
from qa_service.serving.service import Service
from qa_service.telemetry.metrics import ABANDONED, ANSWERED, ModelMetrics
from qa_service.wire.messages import AnswerSource
from qa_service.workers.pool import WorkerFactory, WorkerPool

logger = logging.getLogger(__name__)


class VersionState(Enum):
    """Where a version is in its life."""

    LOADING = auto()
    READY = auto()
    DRAINING = auto()
    ENDING = auto()
    GONE = auto()


class Version:
    """A version of a model, from its first instance to its last.

    Args:
        spec: What it is.
        loop: The server's loop.
        queue: Bounds on what waits for it.
        make_worker: Starts its instances.
        around: Makes the services that stand before its dispatcher.
        metrics: Where what it does is counted.
        on_change: Called when its state may be another, or its pool has what it was to have.
        on_failure: Called with a message when it cannot be loaded, or no instance lives any more.

    Attributes:
        spec: What it is.
        state: Where it is in its life.
        metrics: What it has done.
        pool: Its instances.
    """

    def __init__(
        self,
        spec: VersionSpec,
        loop: EventLoop,
        queue: QueueOptions,
        make_worker: WorkerFactory,
        around: Callable[[Dispatcher], Service],
        *,
        metrics: ModelMetrics,
        on_change: Callable[[], None],
        on_failure: Callable[[Version, str], None],
    ) -> None:
        self.spec = spec
        self.state = VersionState.LOADING
        self.metrics = metrics
        self._loop = loop
        self._on_change = on_change
        self._on_failure = on_failure
        self._in_flight: dict[Call, None] = {}

        def make_pool(dispatcher: Dispatcher) -> WorkerPool:
            self.pool = WorkerPool(
                loop, spec.instances, make_worker, listener=self, batches=dispatcher,
                metrics=metrics, name=str(spec),
            )  # fmt: skip
            return self.pool

        self._dispatcher = Dispatcher(loop, Scheduler(queue), make_pool, metrics, Admission(queue))
        self._service = around(self._dispatcher)

    def submit(self, call: Call) -> None:
        """Takes a request, and says in its outcome what has answered; fails it once it ends."""
        if self.state in _HAS_ENDED:
            call.fail(UnavailableError())
            return
        self._in_flight[call] = None
        call.then(self._count)
        call.on_end(self._drop)
        self._service.submit(call)

    def dispatch(self) -> None:
        """Gives work to the instances that can take some now."""
        self._dispatcher.dispatch()

    @property
    def queue_length(self) -> int:
        """Requests waiting for an instance."""
        return self._dispatcher.queue_length

    @property
    def full_size(self) -> int:
        """How many instances it has when it is whole."""
        return self.spec.instances.num_instances

    @property
    def is_growing(self) -> bool:
        """Whether it is to have more instances than have been ready so far."""
        if self.state is VersionState.READY:
            return self.pool.size < self.full_size or self.pool.is_booting
        return self.state is VersionState.LOADING

    @property
    def is_idle(self) -> bool:
        """Whether an instance has nothing to do, and nothing waits for it."""
        return not self.queue_length and any(worker.is_idle for worker in self.pool.workers)

    @property
    def memory_bytes(self) -> int:
        """What its instances take."""
        return self.pool.memory_bytes

    def resize(self, size: int) -> None:
        """Gives it more instances or fewer."""
        self.pool.resize(size)

    def make_ready(self) -> None:
        """Lets it take requests."""
        self._become(VersionState.READY)

    def drain(self) -> None:
        """Takes no more requests, answers those that it has, and ends."""
        self._become(VersionState.DRAINING)
        self._end_if_drained()

    def close(self) -> None:
        """Ends it; its instances end when they have finished what they do."""
        if self.state not in _HAS_ENDED:
            self._become(VersionState.ENDING)
            self.pool.close()
            self._look_for_end()

    def kill(self) -> None:
        """Ends it at once; what it has not answered is failed."""
        self.close()
        self.pool.kill()
        for call in list(self._in_flight):
            call.fail(UnavailableError())

    def reap(self) -> None:
        """Forgets the processes that have ended."""
        self.pool.reap()
        self._look_for_end()

    # What its requests and its pool report.

    def _count(self, outcome: Outcome) -> Answered | None:
        if not isinstance(outcome, Answered):
            self.metrics.model_requests_total[outcome.code] += 1
            return None
        self.metrics.model_requests_total[ANSWERED] += 1
        source = AnswerSource(self.spec.model, self.spec.number, outcome.source.is_cached)
        return Answered(outcome.answers, outcome.timings, source)

    def _drop(self, call: Call) -> None:
        del self._in_flight[call]
        if call.is_cancelled:
            self.metrics.model_requests_total[ABANDONED] += 1
        self._end_if_drained()

    def on_pool_change(self, pool: WorkerPool) -> None:
        """An instance is ready, or has ended."""
        self._look_for_end()
        self._on_change()

    def on_pool_failure(self, pool: WorkerPool, message: str) -> None:
        """It cannot be loaded, or no instance lives any more."""
        if self.state in _HAS_INSTANCES:
            self._on_failure(self, message)

    # Its own business.

    def _become(self, state: VersionState) -> None:
        assert state in _NEXT[self.state], (self.state, state)
        logger.debug("%s: %s", self.spec, state.name.lower())
        self.state = state

    def _end_if_drained(self) -> None:
        """Ends in a round of its own: what has just settled may still be in an instance's hands."""
        if self.state is VersionState.DRAINING and not self._in_flight:
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        if self.state is VersionState.DRAINING:
            self._become(VersionState.ENDING)
            self.pool.close()
            self._look_for_end()

    def _look_for_end(self) -> None:
        if self.state is VersionState.ENDING and self.pool.is_gone:
            self._become(VersionState.GONE)
            self._on_change()


_HAS_ENDED = {VersionState.ENDING, VersionState.GONE}
_HAS_INSTANCES = {VersionState.LOADING, VersionState.READY, VersionState.DRAINING}
_NEXT = {
    VersionState.LOADING: {VersionState.READY, VersionState.ENDING},
    VersionState.READY: {VersionState.DRAINING, VersionState.ENDING},
    VersionState.DRAINING: {VersionState.ENDING},
    VersionState.ENDING: {VersionState.GONE},
    VersionState.GONE: set(),
}
"""The states that may follow each; another is our bug."""
