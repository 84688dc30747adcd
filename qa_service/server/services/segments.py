"""A service that reads a long text as many short ones, and merges their answers.

A text of more than a few windows is cut into the sections of `wire/sections.py`, a segment each;
the merged score is the one softmax over the text.

A few segments are under way at a time: so that a text uses every idle instance, is dropped within
a segment when its client goes, and estimates of its tokens are corrected as they come true.
"""

from __future__ import annotations

from functools import partial

import msgspec

from qa_service.errors import DeadlineExceededError, ExecutionTimeoutError, QaError
from qa_service.instance.messages import ModelFacts
from qa_service.server.scheduling.call import Call, Outcome, SegmentRead, total_timings
from qa_service.server.scheduling.request_cost import estimate_tokens, tokens_of
from qa_service.server.scheduling.ticket import Ticket
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.wire.sections import Section, is_one_section, sections
from qa_service.wire.spans import merge, to_answers

AHEAD_PER_INSTANCE = 2
"""One that runs and one that lies ready: no instance waits for the loop, and the rest of the text
waits where others can have their turns."""


class Segments:
    """Cuts long texts into segments for the dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def submit(self, call: Call) -> None:
        """Passes a short text on, and begins with a long one."""
        model = self._dispatcher.pool.model
        overlap_tokens = model.reading.window_overlap_tokens
        if is_one_section(call.request, model.window_tokens, overlap_tokens):
            self._dispatcher.submit(call)
            return
        text = Ticket(call, estimate_tokens(call.request))
        try:
            self._dispatcher.admit(text, is_long=True)
        except QaError as error:
            call.fail(error)
            return
        _LongText(text, model, self._dispatcher).submit_next()


class _LongText:
    """One long text under way."""

    def __init__(self, whole: Ticket, model: ModelFacts, dispatcher: Dispatcher) -> None:
        self._whole = whole
        self._model = model
        overlap_tokens = model.reading.window_overlap_tokens
        self._sections = sections(whole.call.request, model.window_tokens, overlap_tokens)
        self._dispatcher = dispatcher
        self._text = whole.call.request.text
        self._chars_per_token = max(1.0, len(self._text) / whole.tokens)
        self._cut_chars = 0
        self._num_under_way = 0
        self._read: list[tuple[int, SegmentRead]] = []
        self._reserved = whole.cost
        self._read_chars = self._read_tokens = 0
        self._estimated_tokens = 0.0
        dispatcher.begin(whole)
        whole.call.on_end(lambda _: self._release(self._reserved))

    def submit_next(self) -> None:
        """Submits segments, as many as may be under way."""
        ahead = AHEAD_PER_INSTANCE * max(1, self._dispatcher.pool.alive)
        while not self._is_cut and self._num_under_way < ahead:
            self._submit(next(self._sections))

    @property
    def _is_cut(self) -> bool:
        return self._cut_chars == len(self._text)

    def _submit(self, section: Section) -> None:
        self._cut_chars = section.core_end
        text = self._text[section.start : section.end]
        request = msgspec.structs.replace(self._whole.call.request, text=text)
        call = self._whole.call.child(request, f"[{section.core_start}:{section.core_end}]")
        call.then(partial(self._on_settled, section, text))
        tokens = max(1, round(len(text) / self._chars_per_token))
        segment = Ticket(call, tokens, section.core, self._whole.finish)
        self._num_under_way += 1
        self._dispatcher.submit_segment(segment)
        self._release(segment.cost)

    def _release(self, cost: float) -> None:
        """Takes back what was reserved, as far as there is any; a negative cost reserves more."""
        cost = min(cost, self._reserved)
        self._reserved -= cost
        self._dispatcher.reserve(self._whole, -cost)

    def _on_settled(self, section: Section, text: str, outcome: Outcome) -> None:
        self._num_under_way -= 1
        if not isinstance(outcome, SegmentRead):
            self._fail(outcome)
            return
        self._read.append((section.start, outcome))
        if outcome.segment.tokens:
            self._chars_per_token = len(text) / outcome.segment.tokens
        self._read_chars += section.core_end - section.core_start
        self._read_tokens += outcome.segment.tokens
        self._estimated_tokens += tokens_of(text)
        if not self._has_time():
            self._fail(self._late("the rest was found to take longer than its time"))
            return
        self.submit_next()
        if not self._num_under_way and self._is_cut:
            self._finish()

    def _has_time(self) -> bool:
        """Estimates the rest again, by what estimates have been worth; whether it can be done."""
        rest = self._text[self._cut_chars :]
        error = self._read_tokens / self._estimated_tokens
        cost = self._dispatcher.cost_of(int(tokens_of(rest) * error)) if rest else 0.0
        self._release(self._reserved - cost)
        return not rest or self._dispatcher.can_finish(self._whole, cost)

    def _late(self, when: str) -> ExecutionTimeoutError:
        read = f"{self._read_chars} of {len(self._text)} characters had been read"
        return ExecutionTimeoutError(f"reading the text was stopped: {read} when {when}")

    def _fail(self, outcome: Outcome) -> None:
        error = outcome if isinstance(outcome, QaError) else QaError()
        if isinstance(error, DeadlineExceededError) and self._read:
            error = self._late("its time was over")
        self._whole.call.fail(error)

    def _finish(self) -> None:
        top_k = self._whole.call.request.top_k
        found = merge([(start, part.segment) for start, part in self._read])
        answers = to_answers(self._text, found, self._model.reading.null_log_score, top_k)
        self._whole.call.resolve(answers, total_timings(part for _, part in self._read))
