"""Spans of a text with their log scores, and the answers that they make. Sans-IO.

A score is a probability: one softmax over every span of the text and, for a model that can
abstain, the null answer, whose log score is its threshold. Answers are sorted by score, the best
first; "no answer" is the first if and only if no span has a higher score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from qa_service.wire.messages import Answer, Passage

NO_ANSWER = Answer("", 1.0, None, None)
"""The answer if the text has no span."""


class ScoredSpan(msgspec.Struct, frozen=True, array_like=True):
    """A candidate: `text[start:end]`, in code points."""

    log_score: float
    start: int
    end: int

    def overlaps(self, other: ScoredSpan) -> bool:
        """Whether they share a code point."""
        return self.start < other.end and other.start < self.end

    def moved(self, offset: int) -> ScoredSpan:
        """The same span in a text with `offset` more code points before it."""
        return ScoredSpan(self.log_score, self.start + offset, self.end + offset)


class SegmentResult(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The spans that a model found in a text or a part of it, before they become answers.

    Attributes:
        spans: The best that do not overlap, best first.
        log_total: Log of the sum of all spans' exponentials, without the null answer.
        tokens: The length of the text or part.
    """

    spans: list[ScoredSpan]
    log_total: float
    tokens: int

    def moved(self, offset: int) -> SegmentResult:
        """The same in a text with `offset` more code points before it."""
        spans = [span.moved(offset) for span in self.spans]
        return SegmentResult(spans, self.log_total, self.tokens)


def merge(parts: Sequence[tuple[int, SegmentResult]], top_k: int) -> SegmentResult:
    """Merges the results of a text's parts; each span is in one part only.

    Of spans that score the same, the first in the text comes first, whichever part is read first.

    Args:
        parts: The part's start in the text, in code points, and its result.
    """
    spans = [span.moved(offset) for offset, found in parts for span in found.spans]
    best: list[ScoredSpan] = []
    for span in sorted(spans, key=lambda span: (-span.log_score, span.start)):
        if len(best) == top_k:
            break
        if not any(map(span.overlaps, best)):
            best.append(span)
    log_total = log_sum_exp([found.log_total for _, found in parts])
    return SegmentResult(best, log_total, sum(found.tokens for _, found in parts))


def to_answers(
    text: str, found: SegmentResult, null_log_score: float | None, top_k: int
) -> list[Answer]:
    """Makes answers of a text's result.

    Args:
        null_log_score: The log score of the null answer; None for a model that cannot abstain.

    Returns:
        At least one, best first; the first is "no answer" if the model abstains.
    """
    if not found.spans:
        return [NO_ANSWER]
    log_total = found.log_total
    if null_log_score is not None:
        log_total = log_sum_exp([log_total, null_log_score])
    answers = [
        Answer(text[s.start : s.end], _score(s.log_score - log_total), s.start, s.end)
        for s in found.spans[:top_k]
    ]
    if null_log_score is None or found.spans[0].log_score >= null_log_score:
        return answers
    null = Answer("", _score(null_log_score - log_total), None, None)
    return [null, *answers][:top_k]


class ReadPassage(msgspec.Struct, frozen=True):
    """The result of reading a passage.

    Attributes:
        log_prior: The search's log probability that the answer is here, up to a constant that all
            passages of a question share.
    """

    passage: Passage
    log_prior: float
    found: SegmentResult


def answers_from_passages(
    read: Sequence[ReadPassage], null_log_score: float | None, top_k: int
) -> list[Answer]:
    """Makes answers of several passages' results: one softmax over all of them.

    Each span, and each passage's null answer, has the passage's prior added to its log score.

    Args:
        read: The passages, best first.
        null_log_score: The log score of a passage's null answer; None for a model that cannot
            abstain.
        top_k: The maximum of answers, each from another document.

    Returns:
        At least one, best first; the first is "no answer" if no span scores higher than the null
        answers of all passages together.
    """
    spans = sorted(
        ((one.log_prior + span.log_score, one.passage, span)
         for one in read for span in one.found.spans),
        key=lambda item: -item[0],
    )  # fmt: skip
    if not spans:
        return [NO_ANSWER]
    log_total = log_sum_exp([one.log_prior + one.found.log_total for one in read])
    null = -math.inf
    if null_log_score is not None:
        null = null_log_score + log_sum_exp([one.log_prior for one in read])
        log_total = log_sum_exp([log_total, null])
    best: dict[str, Answer] = {}
    for log_score, passage, span in spans:
        best.setdefault(passage.document, _in_document(passage, span, log_score - log_total))
    answers = list(best.values())
    if spans[0][0] < null:
        answers.insert(0, Answer("", _score(null - log_total), None, None))
    return answers[:top_k]


def _in_document(passage: Passage, span: ScoredSpan, log_probability: float) -> Answer:
    words, at = passage.text[span.start : span.end], passage.start
    score = _score(log_probability)
    return Answer(words, score, at + span.start, at + span.end, passage)


def log_sum_exp(values: Sequence[float]) -> float:
    """Log of the sum of exponentials; minus infinity of nothing."""
    peak = max(values, default=-math.inf)
    if peak == -math.inf:
        return peak
    return peak + math.log(sum(math.exp(value - peak) for value in values))


def _score(log_probability: float) -> float:
    return round(math.exp(min(log_probability, 0.0)), 4)
