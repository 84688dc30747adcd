"""A service that reads a long text as many short ones, and merges what comes back.

    text   |-------------------------------------------------------|
    cores  |===============|================|======================|
    segment|-------------------|
                       |------------------------|
                                        |--------------------------|

A text of more than a few windows is cut at white space into segments. Each span belongs to the
segment in whose core it starts; the characters around a core are context. So each span counts
once, and the sums of all segments are the sum over the text: the merged score is the one softmax.

A few segments are under way at a time: so that a text uses every idle instance, is dropped within
a segment when its client goes, and estimates of its tokens are corrected as they come true.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from qa_service.errors import DeadlineExceededError, ExecutionTimeoutError, QaError
from qa_service.scheduling.pending import Answered, Outcome, PendingRequest, tokens_of
from qa_service.serving.dispatcher import Dispatcher
from qa_service.wire.messages import Timings
from qa_service.wire.spans import Findings, merge, to_answers
from qa_service.workers.messages import ModelFacts

SEGMENT_WINDOWS = 2
AHEAD_PER_INSTANCE = 2
MAX_SEGMENT_CHARS = 1 << 14
WORD_CHARS = 64


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
        if pending.tokens <= segment_tokens(model):
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


def segment_tokens(model: ModelFacts) -> int:
    """How many tokens a segment has at most, its context included."""
    overlap = model.overlap_tokens
    return overlap + SEGMENT_WINDOWS * (model.window_tokens - overlap)


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
        self._dispatcher = dispatcher
        self._on_end = on_end
        self._text = whole.request.text
        self._chars_per_token = max(1.0, len(self._text) / whole.tokens)
        self._next_char = 0
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
        while self._next_char < len(self._text) and len(self._under_way) < ahead:
            if self._whole.is_settled:
                return
            self._submit(*self._cut())

    def end(self) -> None:
        """Drops what waits of it."""
        self._on_end(self._whole)
        self._release(self._reserved)
        for segment in list(self._under_way):
            segment.abandon()
            self._dispatcher.cancel(segment)
        self._under_way.clear()

    def _cut(self) -> tuple[int, int, int, int]:
        """The next segment: where it starts, its core starts and ends, and it ends."""
        text, begin = self._text, self._next_char
        overlap = self._model.overlap_tokens
        core_chars = int((segment_tokens(self._model) - overlap) * self._chars_per_token)
        core_chars = min(max(1, core_chars), MAX_SEGMENT_CHARS)
        context_chars = int(overlap * self._chars_per_token / 2)
        end = _at_space(text, begin + core_chars, begin)
        start = _at_space(text, begin - context_chars, 0)
        return start, begin, end, _at_space(text, end + context_chars, end)

    def _submit(self, start: int, begin: int, end: int, stop: int) -> None:
        self._next_char = end
        whole = self._whole
        request = msgspec.structs.replace(whole.request, text=self._text[start:stop])
        segment = whole.derive(request, self._on_settled, f"[{begin}:{end}]")
        segment.tokens = max(1, round((stop - start) / self._chars_per_token))
        segment.core = (begin - start, end - start)
        segment.is_admitted = True
        segment.finish = whole.finish
        self._under_way[segment] = start
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
        if not self._under_way and self._next_char >= len(self._text):
            self._finish()

    def _has_time(self) -> bool:
        """Estimates the rest again, by what estimates have been worth; whether it can be done."""
        rest = self._text[self._next_char :]
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


def _at_space(text: str, position: int, floor: int) -> int:
    """The nearest place before a position where a word begins, but above a floor.

    A stretch without white space is cut where it is.
    """
    if position <= floor or position <= 0:
        return max(0, floor)
    if position >= len(text):
        return len(text)
    for place in range(position, max(floor, position - WORD_CHARS), -1):
        if text[place - 1].isspace():
            return place
    return position
