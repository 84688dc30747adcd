"""Reading several parts for one question: passages of a collection, or segments of a long text.

    call ──▶ a child call for each part ──findings of all──▶ merged ▸ resolved

All parts have one turn: they share a batch where that is cheaper, and a client gets no more of the
machine by them than by a text of their length. What is not submitted yet is reserved. If a part
fails, the question fails with its error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

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
    """Reads the parts, all at once; fails the call if there is no room or no time for them."""
    pieces = [
        Piece(request, core, f"{number}/{len(parts)}", estimate_tokens(request))
        for number, (request, core) in enumerate(parts, 1)
    ]
    if whole := admitted(call, sum(piece.tokens for piece in pieces), dispatcher):
        Reading(whole, iter(pieces), merge, dispatcher).submit_next()


def admitted(call: Call, tokens: int, dispatcher: Dispatcher) -> Ticket | None:
    """The ticket of all parts; without room or time for them, the call fails."""
    whole = Ticket(call, tokens)
    try:
        dispatcher.admit(whole, is_long=True)
    except QaError as error:
        call.fail(error)
        return None
    return whole


class Piece(NamedTuple):
    request: Request
    core: tuple[int, int]
    name: str
    tokens: int


class Reading:
    """A question's parts under way, from the first to the answer."""

    ahead_per_instance: float = math.inf  # all at once

    def __init__(
        self, whole: Ticket, pieces: Iterator[Piece], merge: Merge, dispatcher: Dispatcher
    ) -> None:
        self._whole = whole
        self._pieces = pieces
        self._merge = merge
        self._dispatcher = dispatcher
        self._reserved = whole.cost
        self._num_submitted = 0
        self._read: dict[int, SegmentRead] = {}
        dispatcher.begin(whole)
        whole.call.on_end(lambda _: self._release(self._reserved))

    def submit_next(self) -> None:
        """Submits parts, as many as may be under way; after the last, resolves the call."""
        ahead = self.ahead_per_instance * max(1, self._dispatcher.pool.alive)
        while self._num_under_way < ahead and not self._whole.call.is_settled:
            piece = next(self._pieces, None)
            if piece is None:
                self._release(self._reserved)  # from here on the parts' own cost counts
                break
            call = self._whole.call.child(piece.request, f"[{piece.name}]")
            call.then(partial(self._on_settled, self._num_submitted))
            part = Ticket(call, piece.tokens, piece.core, self._whole.finish)
            self._num_submitted += 1
            self._dispatcher.submit_segment(part)
            self._release(part.cost)
        if not self._num_under_way:
            found = [self._read[number].segment for number in range(self._num_submitted)]
            self._whole.call.resolve(self._merge(found), total_timings(self._read.values()))

    @property
    def _num_under_way(self) -> int:
        return self._num_submitted - len(self._read)

    def _release(self, cost: float) -> None:
        """Takes back what was reserved, as far as there is any; a negative cost reserves more."""
        cost = min(cost, self._reserved)
        self._reserved -= cost
        self._dispatcher.reserve(self._whole, -cost)

    def _on_settled(self, number: int, outcome: Outcome) -> None:
        if not isinstance(outcome, SegmentRead):
            self._fail(outcome if isinstance(outcome, QaError) else QaError())
            return
        self._read[number] = outcome
        if self._may_go_on(number, outcome):
            self.submit_next()

    def _may_go_on(self, number: int, read: SegmentRead) -> bool:
        """Notes what was found in a part; False if the question has failed by it."""
        return True

    def _fail(self, error: QaError) -> None:
        self._whole.call.fail(error)
