"""Spans of a text with their log scores, and the answers that they make. Sans-IO.

A score is a probability: one softmax over every span of the text and, for a model that can
abstain, the null answer, whose log score is its threshold. Equal answers (case, articles and the
sentence's marks aside) are one, with the sum of their probabilities. Answers are sorted by score,
the best first; "no answer" is the first if and only if no answer has a higher score.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

import msgspec

from qa_service.wire.messages import Answer, Passage, Place

MAX_PLACES = 64
"""The maximum of places that are compared in a text, and of those that an answer has."""

_ARTICLES = frozenset(("a", "an", "the"))
_BESIDE_WORDS = re.compile(
    r"""(?<!\w)[.,;:!?…"'“”\u2018\u2019«»()\[\]{}*`]+|[.,;:!?…"'“”\u2018\u2019«»()\[\]{}*`]+(?!\w)"""
)

NO_ANSWER = Answer("", 1.0, None, None)
"""The answer if the text has no span."""


class ScoredSpan(msgspec.Struct, frozen=True, array_like=True):
    """A candidate: `text[start:end]`, in code points."""

    log_score: float
    start: int
    end: int

    def overlaps(self, other: ScoredSpan) -> bool:
        return self.start < other.end and other.start < self.end

    def moved(self, offset: int) -> ScoredSpan:
        """The same span in a text with `offset` more code points before it."""
        return ScoredSpan(self.log_score, self.start + offset, self.end + offset)


class SegmentResult(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The spans that a model found in a text or a part of it, before they become answers.

    Attributes:
        spans: The best that do not overlap; equal answers may be among them.
        log_total: Log of the sum of all spans' exponentials, without the null answer.
    """

    spans: list[ScoredSpan]
    log_total: float
    tokens: int

    def moved(self, offset: int) -> SegmentResult:
        """The same in a text with `offset` more code points before it."""
        spans = [span.moved(offset) for span in self.spans]
        return SegmentResult(spans, self.log_total, self.tokens)


def answer_key(words: str) -> str:
    """What equal answers share: their words without case, articles and the sentence's marks."""
    key = words.casefold()
    if not key.replace(" ", "").isalnum():
        key = _BESIDE_WORDS.sub(" ", key)
    return " ".join([word for word in key.split() if word not in _ARTICLES]) or words.casefold()


def merge(parts: Sequence[tuple[int, SegmentResult]]) -> SegmentResult:
    """Merges the results of a text's parts; each span is in one part only.

    Of spans that score the same, the first in the text comes first, whichever part is read first.

    Args:
        parts: The part's start in the text, in code points, and its result.
    """
    spans = [span.moved(offset) for offset, found in parts for span in found.spans]
    best: list[ScoredSpan] = []
    for span in sorted(spans, key=lambda span: (-span.log_score, span.start)):
        if len(best) == MAX_PLACES:
            break
        if not any(map(span.overlaps, best)):
            best.append(span)
    log_total = log_sum_exp([found.log_total for _, found in parts])
    return SegmentResult(best, log_total, sum(found.tokens for _, found in parts))


def to_answers(
    text: str, found: SegmentResult, null_log_score: float | None, top_k: int
) -> list[Answer]:
    """Makes answers of a text's result: equal spans are one, with the sum of their probabilities.

    Args:
        null_log_score: The log score of the null answer; None for a model that cannot abstain.

    Returns:
        At least one, best first; the first is "no answer" if the model abstains.
    """
    spans = [_Found(span.log_score, text[span.start : span.end], span) for span in found.spans]
    return _answers(spans, found.log_total, null_log_score, top_k)


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
    read: Sequence[ReadPassage], null_log_score: float | None, top_k: int, margin: float = 0.0
) -> list[Answer]:
    """Makes answers of several passages' results: one softmax over different answers.

    Each span, and each passage's null answer, has the passage's prior added to its log score.
    Equal answers of all passages are one, with the sum of their probabilities. Spans that overlap a
    better one are other bounds of it, and take nothing from its score.

    Args:
        null_log_score: The log score of a passage's null answer; None for a model that cannot
            abstain.
        margin: By how much that is higher where an answer is scored than where is decided whether
            there is one.

    Returns:
        At least one, best first; the first is "no answer" if no answer scores higher than the null
        answers of all passages together.
    """
    spans = [
        _Found(
            one.log_prior + span.log_score,
            one.passage.text[span.start : span.end],
            span.moved(one.passage.start),
            one.passage,
        )
        for one in read
        for span in one.found.spans
    ]
    log_total = log_sum_exp([span.log_score for span in spans])
    null = None
    if null_log_score is not None:
        null = null_log_score + log_sum_exp([one.log_prior for one in read])
    return _answers(spans, log_total, null, top_k, margin)


class _Found(msgspec.Struct):
    log_score: float
    words: str
    span: ScoredSpan
    passage: Passage | None = None


def _answers(
    spans: Sequence[_Found], log_spans: float, null: float | None, top_k: int, margin: float = 0.0
) -> list[Answer]:
    """Adds equal answers up, and puts "no answer" first if none of them has a higher score."""
    if not spans:
        return [NO_ANSWER]
    log_total = log_spans if null is None else log_sum_exp([log_spans, null + margin])
    scored = [(spans[0].log_score, spans)] if len(spans) == 1 else _scored(spans)
    answers = [_answer(group, _score(score - log_total)) for score, group in scored[:top_k]]
    if null is not None and scored[0][0] < null:
        log_none = null - log_sum_exp([log_spans, null])
        answers.insert(0, Answer("", _score(log_none), None, None))
    return answers[:top_k]


def _scored(spans: Sequence[_Found]) -> list[tuple[float, Sequence[_Found]]]:
    """Equal answers with their score, best first."""
    equal: dict[str, list[_Found]] = {}
    for one in sorted(spans, key=lambda one: (-one.log_score, one.span.start)):
        equal.setdefault(answer_key(one.words), []).append(one)
    scored = [(log_sum_exp([one.log_score for one in group]), group) for group in equal.values()]
    return sorted(scored, key=lambda item: -item[0])


def _answer(equal: Sequence[_Found], score: float) -> Answer:
    """The answer that these are, at its best place, with all its places if there are several."""
    best = equal[0]
    places: Collection[Place] = dict.fromkeys(map(_place, equal)) if len(equal) > 1 else ()
    several = tuple(places)[:MAX_PLACES] if len(places) > 1 else ()  # two passages may have one
    return Answer(best.words, score, best.span.start, best.span.end, best.passage, several)


def _place(one: _Found) -> Place:
    passage = one.passage
    document, collection = (passage.document, passage.collection) if passage else ("", "")
    return Place(one.span.start, one.span.end, document, collection)


def log_sum_exp(values: Sequence[float]) -> float:
    """Log of the sum of exponentials; minus infinity of nothing."""
    if len(values) == 1:
        return values[0]
    peak = max(values, default=-math.inf)
    if peak == -math.inf:
        return peak
    return peak + math.log(sum([math.exp(value - peak) for value in values]))


def _score(log_probability: float) -> float:
    return round(math.exp(min(log_probability, 0.0)), 4)
