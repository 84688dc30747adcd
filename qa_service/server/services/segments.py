"""A service that reads a long text as many short ones, and merges their answers.

A text of more than a few windows is cut into the sections of `wire/sections.py`, a segment each;
the merged score is the one softmax over the text.

A few segments are under way at a time: so that a text uses every idle instance, is dropped within
a segment when its client goes, and estimates of its tokens are corrected as they come true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from qa_service.errors import DeadlineExceededError, ExecutionTimeoutError, QaError
from qa_service.instance.worker_messages import ModelFacts
from qa_service.server.scheduling.call import Call, SegmentRead
from qa_service.server.scheduling.request_cost import estimate_tokens, tokens_of
from qa_service.server.scheduling.ticket import Ticket
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.services.parts import Piece, Reading, admitted
from qa_service.wire.messages import Answer
from qa_service.wire.sections import Section, is_one_section, sections
from qa_service.wire.spans import SegmentResult, merge, to_answers

AHEAD_PER_INSTANCE = 2
"""One that runs and one that lies ready: no instance waits for the loop, and the rest of the text
waits where others can have their turns."""


class Segments:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def submit(self, call: Call) -> None:
        model = self._dispatcher.pool.model
        overlap_tokens = model.reading.window_overlap_tokens
        if is_one_section(call.request, model.window_tokens, overlap_tokens):
            self._dispatcher.submit(call)
            return
        if whole := admitted(call, estimate_tokens(call.request), self._dispatcher):
            _LongText(whole, model, self._dispatcher).submit_next()


class _LongText(Reading):
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

    def _segments(self) -> Iterator[Piece]:
        overlap_tokens = self._model.reading.window_overlap_tokens
        for section in sections(self._request, self._model.window_tokens, overlap_tokens):
            self._cut.append(section)
            text = self._text[section.start : section.end]
            request = msgspec.structs.replace(self._request, text=text)
            tokens = max(1, round(len(text) / self._chars_per_token))
            name = f"{section.core_start}:{section.core_end}"
            yield Piece(request, section.core, name, tokens)

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
        cost = self._dispatcher.cost_of(int(tokens_of(rest) * error)) if rest else 0.0
        self._release(self._reserved - cost)
        if rest and not self._dispatcher.can_finish(self._whole, cost):
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
