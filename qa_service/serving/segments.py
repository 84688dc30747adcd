"""A service that reads a long text as many short ones, and merges what comes back.

A text of more than a few windows is cut into the sections of `wire/sections.py`, a segment each;
the merged score is the one softmax over the text.

A few segments are under way at a time: so that a text uses every idle instance, is dropped within
a segment when its client goes, and estimates of its tokens are corrected as they come true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from qa_service.errors import DeadlineExceededError, ExecutionTimeoutError, QaError
from qa_service.scheduling.pending import Answered, Outcome, PendingRequest, tokens_of
from qa_service.serving.dispatcher import Dispatcher
from qa_service.wire.messages import Timings
from qa_service.wire.sections import Section, sections
from qa_service.wire.spans import Findings, merge, to_answers
from qa_service.workers.messages import ModelFacts

AHEAD_PER_INSTANCE = 2


class Segments:
    """Cuts long texts into segments for the dispatcher.

    Args:
        dispatcher: Where requests and segments go.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._readings: dict[PendingRequest, _Reading] = {}

    def submit(self, pending: PendingRequest) -> None:
        """Passes a short text on, and begins with a long one."""
        model = self._dispatcher.instances.model
        first = next(_cut(pending, model))
        if first.core_end == len(pending.request.text):
            self._dispatcher.submit(pending)
            return
        try:
            self._dispatcher.admit(pending, is_long=True)
        except QaError as error:
            pending.fail(error)
            return
        reading = _Reading(pending, model, self._dispatcher, self._forget)
        self._readings[pending] = reading
        reading.submit_next()

    def cancel(self, pending: PendingRequest) -> None:
        """Drops what waits of a request."""
        if reading := self._readings.get(pending):
            reading.end()
        else:
            self._dispatcher.cancel(pending)

    def _forget(self, pending: PendingRequest) -> None:
        self._readings.pop(pending, None)


def _cut(pending: PendingRequest, model: ModelFacts) -> Iterator[Section]:
    return sections(pending.request, model.window_tokens, model.overlap_tokens)


class _Reading:
    """One long text under way."""

    def __init__(
        self,
        whole: PendingRequest,
        model: ModelFacts,
        dispatcher: Dispatcher,
        on_end: Callable[[PendingRequest], None],
    ) -> None:
        self._whole = whole
        self._model = model
        self._sections = _cut(whole, model)
        self._dispatcher = dispatcher
        self._on_end = on_end
        self._text = whole.request.text
        self._chars_per_token = max(1.0, len(self._text) / whole.tokens)
        self._cut_chars = 0
        self._under_way: dict[PendingRequest, int] = {}
        self._parts: list[tuple[int, Findings]] = []
        self._first_queue_ms: float | None = None
        self._inference_ms = 0.0
        self._reserved = whole.cost
        self._read_chars = self._read_tokens = 0
        self._estimated_tokens = 0.0
        dispatcher.begin(whole)

    def submit_next(self) -> None:
        """Submits segments, as many as may be under way."""
        ahead = AHEAD_PER_INSTANCE * max(1, self._dispatcher.instances.alive)
        while not self._is_cut and len(self._under_way) < ahead:
            if self._whole.is_settled:
                return
            self._submit(next(self._sections))

    def end(self) -> None:
        """Drops what waits of it."""
        self._on_end(self._whole)
        self._release(self._reserved)
        for segment in list(self._under_way):
            segment.abandon()
            self._dispatcher.cancel(segment)
        self._under_way.clear()

    @property
    def _is_cut(self) -> bool:
        return self._cut_chars == len(self._text)

    def _submit(self, section: Section) -> None:
        self._cut_chars = section.core_end
        whole = self._whole
        text = self._text[section.start : section.end]
        request = msgspec.structs.replace(whole.request, text=text)
        name = f"[{section.core_start}:{section.core_end}]"
        segment = whole.derive(request, self._on_settled, name)
        segment.tokens = max(1, round(len(text) / self._chars_per_token))
        segment.core = section.core
        segment.is_admitted = True
        segment.finish = whole.finish
        self._under_way[segment] = section.start
        self._dispatcher.submit(segment)
        self._release(segment.cost)

    def _release(self, cost: float) -> None:
        """Takes back what was reserved, as far as there is any; a negative cost reserves more."""
        cost = min(cost, self._reserved)
        self._reserved -= cost
        self._dispatcher.reserve(self._whole, -cost)

    def _on_settled(self, segment: PendingRequest, outcome: Outcome) -> None:
        start = self._under_way.pop(segment)
        if not isinstance(outcome, Answered) or outcome.findings is None:
            self._fail(outcome)
            return
        self._parts.append((start, outcome.findings))
        self._inference_ms += outcome.timings.inference
        if self._first_queue_ms is None:
            self._first_queue_ms = outcome.timings.queue
        if outcome.findings.tokens:
            self._chars_per_token = len(segment.request.text) / outcome.findings.tokens
        if segment.core:
            self._read_chars += segment.core[1] - segment.core[0]
        self._read_tokens += outcome.findings.tokens
        self._estimated_tokens += tokens_of(segment.request.text)
        if not self._has_time():
            self._fail(self._late("the rest was found to take longer than its time"))
            return
        self.submit_next()
        if not self._under_way and self._is_cut:
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
        return ExecutionTimeoutError(f"the text was begun and given up: {read} when {when}")

    def _fail(self, outcome: Outcome) -> None:
        error = outcome if isinstance(outcome, QaError) else QaError()
        if isinstance(error, DeadlineExceededError) and self._parts:
            error = self._late("its time was over")
        self.end()
        self._whole.fail(error)

    def _finish(self) -> None:
        self._on_end(self._whole)
        self._release(self._reserved)
        top_k = self._whole.request.top_k
        found = merge(self._parts, top_k)
        answers = to_answers(self._text, found, self._model.null_log_score, top_k)
        timings = Timings(self._first_queue_ms or 0.0, round(self._inference_ms, 3))
        self._whole.resolve(answers, timings)
