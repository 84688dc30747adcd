"""Reading several parts for one question: passages of a collection, or windows of a long text.

    call ──▶ a child call for each part, all at once ──findings of all──▶ merged ▸ resolved

They have the turn of one long text, so that they run together where that pays, and no client gets
more of the machine by them than by a text of that length. The error of one is that of the question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from qa_service.errors import DeadlineExceededError, QaError
from qa_service.scheduling.call import Answered, Call, Outcome
from qa_service.scheduling.request_cost import estimate_tokens
from qa_service.scheduling.ticket import Ticket
from qa_service.serving.dispatcher import Dispatcher
from qa_service.wire.messages import Answer, Request, Timings
from qa_service.wire.spans import SegmentResult

Part = tuple[Request, tuple[int, int]]
"""What is asked of a part, and where in it spans may start, in code points."""

Merge = Callable[[Sequence[SegmentResult]], Sequence[Answer]]
"""Makes the answers of what was found in each part, in their order."""


def read_parts(call: Call, parts: Sequence[Part], merge: Merge, dispatcher: Dispatcher) -> None:
    """Reads the parts and settles the call; refuses it if there is no room or no time for them."""
    tokens = [estimate_tokens(request) for request, _ in parts]
    whole = Ticket(call, sum(tokens))
    try:
        dispatcher.admit(whole, is_long=True)
    except QaError as error:
        call.fail(error)
        return
    _Reading(whole, merge, dispatcher).submit(parts, tokens)


class _Reading:
    """The parts of one question under way."""

    def __init__(self, whole: Ticket, merge: Merge, dispatcher: Dispatcher) -> None:
        self._whole = whole
        self._merge = merge
        self._dispatcher = dispatcher
        self._num_parts = 0
        self._found: dict[int, SegmentResult] = {}
        self._queue_ms = math.inf
        self._inference_ms = 0.0
        self._reserved = whole.cost

    def submit(self, parts: Sequence[Part], tokens: Sequence[int]) -> None:
        """Submits all parts."""
        call = self._whole.call
        self._num_parts = len(parts)
        self._dispatcher.begin(self._whole)
        call.on_end(lambda _: self._release(self._reserved))
        for number, (request, core) in enumerate(parts):
            child = call.child(request, f"[{number + 1}/{len(parts)}]")
            child.then(partial(self._on_settled, number))
            ticket = Ticket(child, tokens[number], core, self._whole.finish)
            self._dispatcher.submit_segment(ticket)
            self._release(ticket.cost)
        self._release(self._reserved)

    def _release(self, cost: float) -> None:
        """Takes back what was reserved, as far as there is any."""
        cost = min(cost, self._reserved)
        self._reserved -= cost
        self._dispatcher.reserve(self._whole, -cost)

    def _on_settled(self, number: int, outcome: Outcome) -> None:
        if isinstance(outcome, Answered) and outcome.segment is not None:
            self._found[number] = outcome.segment
            self._queue_ms = min(self._queue_ms, outcome.timings.queue)
            self._inference_ms += outcome.timings.inference
            if len(self._found) == self._num_parts:
                self._finish()
            return
        self._whole.call.fail(outcome if isinstance(outcome, QaError) else DeadlineExceededError())

    def _finish(self) -> None:
        answers = self._merge([self._found[number] for number in range(self._num_parts)])
        timings = Timings(self._queue_ms, round(self._inference_ms, 3))
        self._whole.call.resolve(answers, timings)
