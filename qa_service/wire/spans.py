"""Spans of a text with their log scores, and the answers that they make. Sans-IO.

A score is a probability: one softmax over every span of the text and, for a model that can
abstain, the null answer, whose log score is its threshold. So the answers are best first by their
scores, and "no answer" comes first just if no span has a higher score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from qa_service.wire.messages import Answer


class ScoredSpan(msgspec.Struct, frozen=True, array_like=True):
    """A candidate.

    Attributes:
        log_score: Its log score.
        start: Where it starts, in code points.
        end: One past where it ends.
    """

    log_score: float
    start: int
    end: int

    def overlaps(self, other: ScoredSpan) -> bool:
        """Whether they share a code point."""
        return self.start < other.end and other.start < self.end

    def moved(self, offset: int) -> ScoredSpan:
        """The same span in a text that has so many code points before it."""
        return ScoredSpan(self.log_score, self.start + offset, self.end + offset)


class Findings(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What a model found in a text or a part of it, before it is made answers.

    Attributes:
        spans: The best that do not overlap, best first.
        log_total: Log of the sum over all of its spans, the null answer left out.
        tokens: How many tokens it had.
    """

    spans: list[ScoredSpan]
    log_total: float
    tokens: int


def merge(parts: Sequence[tuple[int, Findings]], top_k: int) -> Findings:
    """Merges what was found in the parts of a text, each of whose spans is in one part alone.

    Of spans that score the same, the first in the text comes first, whichever part is read first.

    Args:
        parts: Of each, how many code points of the text come before it, and its findings.
        top_k: How many spans are wanted.
    """
    spans = [span.moved(offset) for offset, found in parts for span in found.spans]
    best: list[ScoredSpan] = []
    for span in sorted(spans, key=lambda span: (-span.log_score, span.start)):
        if len(best) == top_k:
            break
        if not any(map(span.overlaps, best)):
            best.append(span)
    log_total = log_sum_exp([found.log_total for _, found in parts])
    return Findings(best, log_total, sum(found.tokens for _, found in parts))


def to_answers(
    text: str, found: Findings, null_log_score: float | None, top_k: int
) -> list[Answer]:
    """Makes answers of findings.

    Args:
        text: The text.
        found: What was found in it.
        null_log_score: The log score of the null answer; None for a model that cannot abstain.
        top_k: How many answers at most.

    Returns:
        At least one, best first; the first is "no answer" if the model abstains.
    """
    if not found.spans:
        return [Answer("", 1.0, None, None)]
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


def log_sum_exp(values: Sequence[float]) -> float:
    """Log of the sum of exponentials; minus infinity of nothing."""
    peak = max(values, default=-math.inf)
    if peak == -math.inf:
        return peak
    return peak + math.log(sum(math.exp(value - peak) for value in values))


def _score(log_probability: float) -> float:
    return round(math.exp(min(log_probability, 0.0)), 4)
