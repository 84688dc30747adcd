"""One version of a model as it is served: its services, its queue and its instances.

    LOADING ──instances ready──▶ READY ──drain──▶ DRAINING ──all answered──▶ ENDING ──▶ GONE
        └───────close, failure─────┴────────────────────────────────────────────▲

It is a service, which adds its name and number to each answer. A version that drains still answers
the calls it has.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum, auto

from msgspec.structs import replace

from qa_service.errors import UnavailableError
from qa_service.net.timers import Clock
from qa_service.server.instances.pool import WorkerPool
from qa_service.server.models.plan import VersionSpec
from qa_service.server.scheduling.call import Call, Outcome
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.services.service import Service
from qa_service.server.telemetry.metrics import ABANDONED, ANSWERED, ModelMetrics
from qa_service.wire.messages import Answered

logger = logging.getLogger(__name__)


class VersionState(Enum):
    LOADING = auto()
    READY = auto()
    DRAINING = auto()
    ENDING = auto()
    GONE = auto()


@dataclass(eq=False)
class Version:
    spec: VersionSpec
    clock: Clock
    pool: WorkerPool
    dispatcher: Dispatcher
    service: Service
    metrics: ModelMetrics

    def __post_init__(self) -> None:
        self.state = VersionState.LOADING
        self._in_flight: dict[Call, None] = {}

    def submit(self, call: Call) -> None:
        """Takes a call, and adds the version to its answer; fails it if the version has ended."""
        if self.state in _HAS_ENDED:
            call.fail(UnavailableError())
            return
        self._in_flight[call] = None
        call.then(self._count)
        call.on_end(self._drop)
        self.service.submit(call)

    @property
    def full_size(self) -> int:
        return self.spec.instances.num_instances

    @property
    def is_growing(self) -> bool:
        """Whether it still needs instances that have never been ready."""
        if self.state is VersionState.READY:
            return self.pool.size < self.full_size or self.pool.is_booting
        return self.state is VersionState.LOADING

    @property
    def is_idle(self) -> bool:
        return not self.dispatcher.queue_length and any(
            worker.is_idle for worker in self.pool.workers
        )

    def make_ready(self) -> None:
        self._become(VersionState.READY)

    def drain(self) -> None:
        """Gets no more calls, answers those that it has, and ends."""
        self._become(VersionState.DRAINING)

    def close(self) -> None:
        """Ends it; its instances end after their present batch."""
        if self.state not in _HAS_ENDED:
            self._become(VersionState.ENDING)
            self.pool.close()

    def kill(self) -> None:
        self.close()
        self.pool.kill()
        for call in list(self._in_flight):
            call.fail(UnavailableError())

    def end_if_done(self) -> None:
        """Closes it if it has drained; it is gone once its processes are."""
        if self.state is VersionState.DRAINING and not self._in_flight:
            self.close()
        if self.state is VersionState.ENDING and not self.pool.num_processes:
            self._become(VersionState.GONE)

    def _count(self, outcome: Outcome) -> Answered | None:
        if not isinstance(outcome, Answered):
            self.metrics.model_requests_total[outcome.code] += 1
            return None
        self.metrics.model_requests_total[ANSWERED] += 1
        source = replace(outcome.source, model=self.spec.model, version=self.spec.number)
        return replace(outcome, source=source)

    def _drop(self, call: Call) -> None:
        del self._in_flight[call]
        if call.is_cancelled:
            self.metrics.model_requests_total[ABANDONED] += 1
        if not self._in_flight and self.state is VersionState.DRAINING:
            self.clock.mark()

    def _become(self, state: VersionState) -> None:
        assert state in _NEXT[self.state], (self.state, state)
        logger.debug("%s: %s", self.spec, state.name.lower())
        self.state = state
        self.clock.mark()


_HAS_ENDED = (VersionState.ENDING, VersionState.GONE)
_NEXT = {
    VersionState.LOADING: {VersionState.READY, VersionState.ENDING},
    VersionState.READY: {VersionState.DRAINING, VersionState.ENDING},
    VersionState.DRAINING: {VersionState.ENDING},
    VersionState.ENDING: {VersionState.GONE},
    VersionState.GONE: set(),
}
"""The states that may follow each; any other transition is a bug."""
