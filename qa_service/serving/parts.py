"""Reading several parts for one question: passages of a collection, or windows of a long text.

    call ──▶ a child call for each part, all at once ──findings of all──▶ merged ▸ resolved

All parts have one turn, as the segments of a long text have: they share a batch where that is
cheaper, and a client gets no more of the machine by them than by a text of their length. If a part
fails, the question fails with its error.
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
"""A part's request, and where in its text spans may start, in code points."""

Merge = Callable[[Sequence[SegmentResult]], Sequence[Answer]]
"""Makes the answers from what was found in each part, in the order of the parts."""


def read_parts(call: Call, parts: Sequence[Part], merge: Merge, dispatcher: Dispatcher) -> None:
    """Reads the parts and settles the call; fails it if there is no room or no time for them."""
    tokens = [estimate_tokens(request) for request, _ in parts]
    whole = Ticket(call, sum(tokens))
    try:
        dispatcher.admit(whole, is_long=True)
    except QaError as error:
        call.fail(error)
        return
    _Reading(whole, merge, dispatcher).submit(parts, tokens)


class _Reading:
    """One question's parts, from their submission to the answer."""

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
        """Submits all parts; each takes its cost from what was reserved for the whole."""
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
        """Ends the reservation of a cost, or of what is still reserved if that is less."""
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
