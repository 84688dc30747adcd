"""Reading several parts for one question: passages of a collection, or windows of a long text.

    call ──▶ a child call for each part, all at once ──findings of all──▶ merged ▸ resolved

All parts have one turn, as the segments of a long text have: they share a batch where that is
cheaper, and a client gets no more of the machine by them than by a text of their length. If a part
fails, the question fails with its error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from qa_service.errors import QaError
from qa_service.server.scheduling.call import Call, Outcome, SegmentRead, total_timings
from qa_service.server.scheduling.request_cost import estimate_tokens
from qa_service.server.scheduling.ticket import Ticket
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.wire.messages import Answer, Request
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
    reading = _Parts(call, len(parts), merge)
    dispatcher.begin(whole)
    try:
        for number, (request, core) in enumerate(parts):
            child = call.child(request, f"[{number + 1}/{len(parts)}]")
            child.then(partial(reading.on_settled, number))
            dispatcher.submit_segment(Ticket(child, tokens[number], core, whole.finish))
    finally:  # from here on the parts' own cost counts
        dispatcher.reserve(whole, -whole.cost)


class _Parts:
    """One question's parts, from their submission to the answer."""

    def __init__(self, call: Call, num_parts: int, merge: Merge) -> None:
        self._call = call
        self._num_parts = num_parts
        self._merge = merge
        self._read: dict[int, SegmentRead] = {}

    def on_settled(self, number: int, outcome: Outcome) -> None:
        """Takes a part's outcome; after the last part, resolves the call."""
        if not isinstance(outcome, SegmentRead):
            self._call.fail(outcome if isinstance(outcome, QaError) else QaError())
            return
        self._read[number] = outcome
        if len(self._read) == self._num_parts:
            answers = self._merge([self._read[number].segment for number in range(self._num_parts)])
            self._call.resolve(answers, total_timings(self._read.values()))
