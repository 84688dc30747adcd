"""A service that reads a long text as many short ones; and the reading of parts that it is made of.

    call ──▶ a child call for each part ──findings of all──▶ merged ▸ resolved

Parts are the segments of a long text, or the passages of a collection. All have one turn: they
share a batch where that is cheaper, and a client gets no more of the machine by them than by a text
of their length. What is not submitted yet is reserved. If a part fails, the question fails with its
error.

A text of more than a few windows is cut into the sections of `wire/sections.py`, a segment each;
the merged score is the one softmax over the text. A few segments are under way at a time: so that a
text uses every idle instance, is dropped within a segment when its client goes, and estimates of
its tokens are corrected as they come true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import msgspec

from qa_service.errors import DeadlineExceededError, ExecutionTimeoutError, QaError
from qa_service.instance.worker_messages import ModelFacts
from qa_service.server.scheduling.call import Call, Outcome, SegmentRead
from qa_service.server.scheduling.request_cost import estimate_tokens, tokens_of
from qa_service.server.scheduling.ticket import Ticket
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.wire.messages import Answer, Request, Timings
from qa_service.wire.sections import Section, is_one_section, sections
from qa_service.wire.spans import SegmentResult, merge, to_answers

AHEAD_PER_INSTANCE = 2
"""One that runs and one that lies ready: no instance waits for the loop, and the rest of the text
waits where others can have their turns."""

Part = tuple[Request, tuple[int, int]]
"""A part's request, and where in its text spans may start, in code points."""

Merge = Callable[[Sequence[SegmentResult]], Sequence[Answer]]
"""Makes the answers from what was found in each part, in the order of the parts."""


@dataclass(eq=False)
class Segments:
    dispatcher: Dispatcher

    def submit(self, call: Call) -> None:
        model = self.dispatcher.pool.model
        overlap_tokens = model.reading.window_overlap_tokens
        if is_one_section(call.request, model.window_tokens, overlap_tokens):
            self.dispatcher.submit(call)
            return
        if whole := _admitted(call, estimate_tokens(call.request), self.dispatcher):
            _LongText(whole, model, self.dispatcher).submit_next()


def read_parts(call: Call, parts: Sequence[Part], merge: Merge, dispatcher: Dispatcher) -> None:
    """Reads the parts, all at once; fails the call if there is no room or no time for them."""
    pieces = [
        _Piece(request, core, f"{number}/{len(parts)}", estimate_tokens(request))
        for number, (request, core) in enumerate(parts, 1)
    ]
    if whole := _admitted(call, sum(piece.tokens for piece in pieces), dispatcher):
        _Reading(whole, iter(pieces), merge, dispatcher).submit_next()


def _admitted(call: Call, tokens: int, dispatcher: Dispatcher) -> Ticket | None:
    """The ticket of all parts; without room or time for them, the call fails."""
    whole = Ticket(call, tokens)
    try:
        dispatcher.admit(whole, is_long=True)
    except QaError as error:
        call.fail(error)
        return None
    return whole


class _Piece(NamedTuple):
    request: Request
    core: tuple[int, int]
    name: str
    tokens: int


@dataclass(eq=False)
class _Reading:
    """A question's parts under way, from the first to the answer."""

    ahead_per_instance: ClassVar[float] = math.inf  # all at once

    whole: Ticket
    pieces: Iterator[_Piece]
    merge: Merge
    dispatcher: Dispatcher

    def __post_init__(self) -> None:
        self._reserved = self.whole.cost
        self._num_submitted = 0
        self._read: dict[int, SegmentRead] = {}
        self.dispatcher.begin(self.whole)
        self.whole.call.on_end(lambda _: self._release(self._reserved))

    def submit_next(self) -> None:
        """Submits parts, as many as may be under way; after the last, resolves the call."""
        ahead = self.ahead_per_instance * max(1, self.dispatcher.pool.alive)
        while self._num_under_way < ahead and not self.whole.call.is_settled:
            piece = next(self.pieces, None)
            if piece is None:
                self._release(self._reserved)  # from here on the parts' own cost counts
                break
            call = self.whole.call.child(piece.request, f"[{piece.name}]")
            call.then(partial(self._on_settled, self._num_submitted))
            part = Ticket(call, piece.tokens, piece.core, self.whole.finish)
            self._num_submitted += 1
            self.dispatcher.submit_segment(part)
            self._release(part.cost)
        if not self._num_under_way:
            read = [self._read[number] for number in range(self._num_submitted)]
            # The time until the first of them ran, and what all of them took.
            queue_ms = min(its.timings.queue for its in read)
            inference_ms = round(sum(its.timings.inference for its in read), 3)
            answers = self.merge([its.segment for its in read])
            self.whole.call.resolve(answers, Timings(queue_ms, inference_ms))

    @property
    def _num_under_way(self) -> int:
        return self._num_submitted - len(self._read)

    def _release(self, cost: float) -> None:
        """Takes back what was reserved, as far as there is any; a negative cost reserves more."""
        cost = min(cost, self._reserved)
        self._reserved -= cost
        self.dispatcher.reserve(self.whole, -cost)

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
        self.whole.call.fail(error)


class _LongText(_Reading):
    ahead_per_instance = AHEAD_PER_INSTANCE

    def __init__(self, whole: Ticket, model: ModelFacts, dispatcher: Dispatcher) -> None:
        self._request = whole.call.request
        self._text = self._request.text
        self._model = model
        self._chars_per_token = max(1.0, len(self._text) / whole.tokens)
        self._cut: list[Section] = []
        self._read_chars = self._read_tokens = 0
        self._estimated_tokens = 0.0
        super().__init__(whole, self._segments(), self._merged, dispatcher)

    def _segments(self) -> Iterator[_Piece]:
        overlap_tokens = self._model.reading.window_overlap_tokens
        for section in sections(self._request, self._model.window_tokens, overlap_tokens):
            self._cut.append(section)
            text = self._text[section.start : section.end]
            request = msgspec.structs.replace(self._request, text=text)
            tokens = max(1, round(len(text) / self._chars_per_token))
            name = f"{section.core_start}:{section.core_end}"
            yield _Piece(request, section.core, name, tokens)

    def _may_go_on(self, number: int, read: SegmentRead) -> bool:
        """Estimates the rest again, by what estimates have been worth; whether it can be done."""
        section = self._cut[number]
        text = self._text[section.start : section.end]
        if read.segment.tokens:
            self._chars_per_token = len(text) / read.segment.tokens
        self._read_chars += section.core_end - section.core_start
        self._read_tokens += read.segment.tokens
        self._estimated_tokens += tokens_of(text)
        rest = self._text[self._cut[-1].core_end :]
        error = self._read_tokens / self._estimated_tokens
        cost = self.dispatcher.cost_of(int(tokens_of(rest) * error)) if rest else 0.0
        self._release(self._reserved - cost)
        if rest and not self.dispatcher.can_finish(self.whole, cost):
            self._fail(self._late("the rest was found to take longer than its time"))
            return False
        return True

    def _late(self, when: str) -> ExecutionTimeoutError:
        read = f"{self._read_chars} of {len(self._text)} characters had been read"
        return ExecutionTimeoutError(f"reading the text was stopped: {read} when {when}")

    def _fail(self, error: QaError) -> None:
        if isinstance(error, DeadlineExceededError) and self._read:
            error = self._late("its time was over")
        super()._fail(error)

    def _merged(self, found: Sequence[SegmentResult]) -> list[Answer]:
        merged = merge(
            [(section.start, its) for section, its in zip(self._cut, found, strict=True)]
        )
        null_log_score = self._model.reading.null_log_score
        return to_answers(self._text, merged, null_log_score, self._request.top_k)
