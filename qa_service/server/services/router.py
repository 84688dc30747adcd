"""The service that sends each call to the route or the model that it names; a route's cascade.

    model is a route's name, or there is none ─▶ the route's cascade
    model is a model's name                   ─▶ its version of that number or label, else by share

A cascade asks a small model first, and the next one only if the score is low.

    submit ──▶ first model ──score ≥ min_score──▶ resolved
                    └──below──▶ next model ──sure, or the last──▶ resolved
                                     └──error──▶ resolved with the model before's answer

All models share the request's deadline. If a later model fails, the client gets the answer of the
model before it: a second model that is overloaded or gone makes answers worse, not fewer. An error
of the first model fails the request: to ask a larger model instead would pass an overload on to
where it costs most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from qa_service.errors import QaError, UnknownModelError
from qa_service.net.timers import Clock
from qa_service.server.scheduling.call import Call, Outcome
from qa_service.server.services.service import Service
from qa_service.server.services.service_options import DEFAULT_ROUTE, RouteOptions
from qa_service.server.services.tracing import record_model
from qa_service.server.telemetry.services import CascadeCounts, ServiceCounts
from qa_service.wire.messages import Answered, Timings


class Models(Protocol):
    def find(self, name: str | None) -> Service:
        """A model, the default one without a name; raises `UnknownModelError`."""


class Router:
    def __init__(self, models: Models, clock: Clock, counts: ServiceCounts) -> None:
        self._models = models
        self._clock = clock
        self._counts = counts
        self._options: Mapping[str, RouteOptions] = {}
        self._routes: dict[str, Service] = {}

    def use(self, routes: Mapping[str, RouteOptions]) -> None:
        """Takes other routes; the services of unchanged ones stay."""
        self._routes = {
            name: self._routes[name]
            if self._options.get(name) == options
            else Cascade(self, options, self._clock, self._counts.cascade(name))
            for name, options in routes.items()
        }
        self._options = routes

    def submit(self, call: Call) -> None:
        request = call.request
        route = self._routes.get(request.model or DEFAULT_ROUTE)
        try:
            if route is None:
                self._models.find(request.model).submit(call)
                return
            if request.version is not None:
                raise UnknownModelError("a route has no versions; name a model with the version")
        except QaError as error:
            call.fail(error)
            return
        route.submit(call)


class _Asking(msgspec.Struct, eq=False):
    """A request in progress: the last model's answer, and the times of all models, added up."""

    whole: Call
    models_asked: int = 0
    last: Answered | None = None
    queue_ms: float = 0.0
    inference_ms: float = 0.0


@dataclass(frozen=True)
class Cascade:
    router: Service
    options: RouteOptions
    clock: Clock
    counts: CascadeCounts

    def submit(self, call: Call) -> None:
        self._ask_next(_Asking(call))

    def _ask_next(self, asking: _Asking) -> None:
        model = self.options.cascade[asking.models_asked]
        asking.models_asked += 1
        request = msgspec.structs.replace(asking.whole.request, model=model, version=None)
        child = asking.whole.child(request, f"[{model}]", arrived_s=self.clock.now_s())
        child.then(partial(self._on_settled, asking))
        if child.scope.span:
            record_model(child, model, child.scope.span, self.clock)
        self.router.submit(child)

    def _on_settled(self, asking: _Asking, outcome: Outcome) -> None:
        if isinstance(outcome, Answered):
            asking.last = outcome
            asking.queue_ms += outcome.timings.queue
            asking.inference_ms += outcome.timings.inference
            its = self.options
            best, if_unknown = outcome.answers[0], not its.ask_next_if_unknown
            is_last = asking.models_asked == len(its.cascade)
            if not (is_last or best.is_sure(its.min_score, if_unknown=if_unknown)):
                self._ask_next(asking)
                return
        elif asking.last is None:
            asking.whole.fail(outcome)
            return
        else:
            self.counts.fallbacks += 1
        self.counts.models_asked[asking.models_asked] += 1
        source = msgspec.structs.replace(asking.last.source, models_asked=asking.models_asked)
        timings = Timings(round(asking.queue_ms, 3), round(asking.inference_ms, 3))
        asking.whole.settle(Answered(asking.last.answers, timings, source))
