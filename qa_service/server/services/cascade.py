"""A service that asks a small model first, and the next model only if the score is low.

    submit ──▶ first model ──score ≥ min_score──▶ resolved
                    └──below──▶ next model ──sure, or the last──▶ resolved
                                     └──error──▶ resolved with the model before's answer

All models share the request's deadline. If a later model fails, the client gets the answer of the
model before it: a second model that is overloaded or gone makes answers worse, not fewer. An error
of the first model fails the request: to ask a larger model instead would pass an overload on to
where it costs most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec

from qa_service.net.timers import Clock
from qa_service.server.scheduling.call import Call, Outcome
from qa_service.server.services.service import Service
from qa_service.server.services.service_options import RouteOptions
from qa_service.server.services.tracing import record_model
from qa_service.server.telemetry.services import CascadeCounts
from qa_service.wire.messages import Answer, Answered, Timings


@dataclass(slots=True, eq=False)
class _Asking:
    """A request in progress: the last model's answer, and the times of all models, added up."""

    whole: Call
    models_asked: int = 0
    last: Answered | None = None
    queue_ms: float = 0.0
    inference_ms: float = 0.0

    def take(self, outcome: Answered) -> None:
        self.last = outcome
        self.queue_ms += outcome.timings.queue
        self.inference_ms += outcome.timings.inference

    def resolve(self) -> None:
        assert self.last
        source = msgspec.structs.replace(self.last.source, models_asked=self.models_asked)
        timings = Timings(round(self.queue_ms, 3), round(self.inference_ms, 3))
        self.whole.settle(Answered(self.last.answers, timings, source))


class Cascade:
    """Asks models in turn until one is sure."""

    def __init__(
        self, router: Service, options: RouteOptions, clock: Clock, counts: CascadeCounts
    ) -> None:
        self._router = router
        self._options = options
        self._clock = clock
        self._counts = counts

    def submit(self, call: Call) -> None:
        self._ask_next(_Asking(call))

    def _ask_next(self, asking: _Asking) -> None:
        model = self._options.cascade[asking.models_asked]
        asking.models_asked += 1
        request = msgspec.structs.replace(asking.whole.request, model=model, version=None)
        child = asking.whole.child(request, f"[{model}]", arrived_s=self._clock.now_s())
        child.then(partial(self._on_settled, asking))
        if child.scope.span:
            record_model(child, model, child.scope.span, self._clock)
        self._router.submit(child)

    def _on_settled(self, asking: _Asking, outcome: Outcome) -> None:
        if isinstance(outcome, Answered):
            asking.take(outcome)
            if not self._is_final(outcome.answers[0], asking.models_asked):
                self._ask_next(asking)
                return
        elif asking.last is None:
            asking.whole.fail(outcome)
            return
        else:
            self._counts.fallbacks += 1
        self._counts.models_asked[asking.models_asked] += 1
        asking.resolve()

    def _is_final(self, best: Answer, models_asked: int) -> bool:
        """Whether the model is sure, or the last."""
        its = self._options
        is_sure = best.is_sure(its.min_score, if_unknown=not its.ask_next_if_unknown)
        return is_sure or models_asked == len(its.cascade)
