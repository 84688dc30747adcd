"""A service that asks a small model first, and the next one only where that is not sure.

    submit ──▶ first model ──score ≥ min_score──▶ resolved
                    └──below──▶ next model ──answer, sure or the last──▶ resolved
                                     └──error──▶ resolved with the answer that there is

The deadline is one: what the first model takes is gone for the next. A later model's error costs
the better answer and not the answer: its client gets the one that the model before has given, with
the score that it has. So a second model that is overloaded, or gone, makes answers worse and not
fewer. An error of the first model is the request's: asking a larger model instead would pass an
overload on to where it weighs most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from qa_service.net.timers import Clock
from qa_service.scheduling.pending import Answered, Outcome, PendingRequest
from qa_service.serving.options import RouteOptions
from qa_service.serving.service import Service
from qa_service.telemetry.services import CascadeCounts
from qa_service.wire.messages import Answer, AnswerSource, Timings


@dataclass(slots=True, eq=False)
class _Asking:
    """A request under way.

    Attributes:
        whole: The request.
        models_asked: How many models have been asked.
        child: What asks the last of them.
        answers: The last that came; none yet if empty.
        source: What gave them.
        queue_ms: How long it has waited for instances, in all.
        inference_ms: How long instances have run it.
    """

    whole: PendingRequest
    models_asked: int = 0
    child: PendingRequest | None = None
    answers: Sequence[Answer] = ()
    source: AnswerSource | None = None
    queue_ms: float = 0.0
    inference_ms: float = 0.0

    def take(self, outcome: Answered, source: AnswerSource) -> None:
        """Takes the answers of a model, in place of those of the one before."""
        self.answers = outcome.answers
        self.source = source
        self.queue_ms += outcome.timings.queue
        self.inference_ms += outcome.timings.inference

    def resolve(self) -> None:
        """Answers the request with what there is."""
        assert self.source
        self.whole.source = msgspec.structs.replace(self.source, models_asked=self.models_asked)
        timings = Timings(round(self.queue_ms, 3), round(self.inference_ms, 3))
        self.whole.resolve(self.answers, timings)


class Cascade:
    """Asks models in turn until one is sure.

    Args:
        router: Takes a request to the model that it names.
        options: Which models, and when one is sure.
        clock: The loop's.
        counts: Where is counted what it does.
    """

    def __init__(
        self, router: Service, options: RouteOptions, clock: Clock, counts: CascadeCounts
    ) -> None:
        self._router = router
        self._options = options
        self._clock = clock
        self._counts = counts
        self._under_way: dict[PendingRequest, _Asking] = {}

    def submit(self, pending: PendingRequest) -> None:
        """Asks the first model."""
        self._under_way[pending] = asking = _Asking(pending)
        self._ask_next(asking)

    def cancel(self, pending: PendingRequest) -> None:
        """Drops a request at the model that has it."""
        asking = self._under_way.pop(pending, None)
        if asking and asking.child:
            asking.child.abandon()
            self._router.cancel(asking.child)

    def _ask_next(self, asking: _Asking) -> None:
        model = self._options.cascade[asking.models_asked]
        asking.models_asked += 1
        whole = asking.whole
        request = msgspec.structs.replace(whole.request, model=model, version=None)
        on_settled = partial(self._on_settled, asking)
        asking.child = child = whole.derive(request, on_settled, f"[{model}]")
        child.arrived_s = self._clock.now_s()
        self._router.submit(child)

    def _on_settled(self, asking: _Asking, child: PendingRequest, outcome: Outcome) -> None:
        if isinstance(outcome, Answered):
            asking.take(outcome, child.source)
            if not self._is_final(asking):
                self._ask_next(asking)
                return
        elif not asking.answers:
            del self._under_way[asking.whole]
            asking.whole.fail(outcome)
            return
        else:
            self._counts.fallbacks += 1
        del self._under_way[asking.whole]
        self._counts.models_asked[asking.models_asked] += 1
        asking.resolve()

    def _is_final(self, asking: _Asking) -> bool:
        """Whether the answer stands: its model is sure, or the last."""
        is_last = asking.models_asked == len(self._options.cascade)
        return is_last or is_sure(asking.answers[0], self._options)


def is_sure(best: Answer, options: RouteOptions) -> bool:
    """Whether a model's best answer ends the cascade."""
    if best.start is None and options.ask_next_if_unknown:
        return False
    return best.score >= options.min_score
