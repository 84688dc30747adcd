"""Finds answer spans in logits.

A span's log score is the sum of its start and end logits (Devlin et al. 2018, section 4.2), less
`length_penalty` for each token over `usual_answer_tokens`. Spans lie in the text and have at most
`max_answer_tokens`. A model that can abstain scores "no answer" by the CLS token's logits (section
4.3); its spans are scored relative to that in each window, which makes windows comparable. One
softmax over every span of every window, and the null answer, then gives probabilities.

A span in several windows counts once, with its highest score. If each start belonged to one window,
as in BERT's run_squad.py, a window could win with the end of a name that begins in its neighbour.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from qa_service.errors import InternalError
from qa_service.instance.arrays import NUM_BEST, FloatArray, Logits
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.reader.answer_rule import AnswerRule
from qa_service.instance.reader.whole_words import stripped, whole_characters, whole_words
from qa_service.instance.reader.windows import EncodedQuestion, Window
from qa_service.wire.messages import Answer
from qa_service.wire.spans import ScoredSpan, SegmentResult, answer_key, log_sum_exp, to_answers

_MAX_TRIES = 100
"""Bound on the spans tried to find `top_k`: a text may be mostly white space."""
NEAR_BEST = 3.5
"""A span whose log score is lower by more adds less than 3 % to the best answer's score."""
_NUM_SURE = 2
_LOG_MIN_SHARE = math.log(0.02)
"""Beyond the first two, spans with less of the probability change no answer that is given, and its
score mostly not; a model that is sure of nothing has thousands of them."""

_NOT_FINITE = "the model's logits are not finite"


class Candidate(NamedTuple):
    """A span by its first and last token, counted from the text's first."""

    log_score: float
    first: int
    last: int


class BestSpans(msgspec.Struct, frozen=True):
    """The best spans of a window, found by the engine, in place of the window's logits.

    Attributes:
        candidates: Up to `NUM_BEST`, best first, and none that is not near the best; the first is
            not finite if the logits are not.
        log_total: Log of the sum over all spans of the window, without the null answer.
    """

    candidates: Sequence[Candidate]
    log_total: float

    def of_one_answer(self) -> Sequence[Candidate]:
        """The candidates that count where one answer is wanted: those with a share to be seen."""
        lowest = self.log_total + _LOG_MIN_SHARE
        for number in range(_NUM_SURE, len(self.candidates)):
            if self.candidates[number].log_score < lowest:
                return self.candidates[:number]
        return self.candidates


def find_answers(
    text: str,
    encoded: EncodedQuestion,
    logits: Sequence[Logits],
    config: ReadingConfig,
    top_k: int = 1,
) -> list[Answer]:
    """Finds the best answers over all windows of a text; `logits` are each window's.

    Returns:
        One to `top_k` answers that do not overlap, best first; the first is "no answer" if the
        model abstains.
    """
    found = find_spans(text, encoded, logits, config, top_k=top_k)
    return to_answers(text, found, config.null_log_score, top_k)


def find_spans(
    text: str,
    encoded: EncodedQuestion,
    logits: Sequence[Logits],
    config: ReadingConfig,
    *,
    top_k: int = 1,
    core: tuple[int, int] | None = None,
) -> SegmentResult:
    """Finds the best spans over all windows of a text, or of a segment, by each window's logits.

    Args:
        top_k: How many different answers are wanted.
        core: Where spans may start in a segment, in code points; the rest is context.
    """
    if not encoded.windows:
        return SegmentResult([], -math.inf, len(encoded.offsets))
    scores = [
        _window_scores(window, start, end, config)
        for window, (start, end) in zip(encoded.windows, logits, strict=True)
    ]
    table = scores[0] if len(scores) == 1 else _merged(encoded, scores)
    peak = float(table.max())
    if not math.isfinite(peak):
        raise InternalError(_NOT_FINITE)
    if core:
        starts = encoded.offsets[:, 0]
        table[(starts < core[0]) | (starts >= core[1])] = -np.inf
        peak = float(table.max())
    is_one = top_k == 1 and not core
    spans = _Spans(text, encoded)
    best = _best_of(table, peak)
    trimmed = spans.trimmed(best.of_one_answer() if is_one else best.candidates)
    if trimmed and not trimmed[0].may_be_answer:
        table[~spans.rule.table(encoded.offsets, config.max_answer_tokens)] = -np.inf
        best = _best_of(table, float(table.max()))
        trimmed = spans.trimmed(best.of_one_answer() if is_one else best.candidates)
    found = spans.result(trimmed, best.log_total, is_one=is_one)
    if not (is_one and found.spans):
        spans.add_more(found.spans, table, top_k)
    return found


def answers_at_best_spans(
    text: str, encoded: EncodedQuestion, best: BestSpans, config: ReadingConfig
) -> list[Answer] | None:
    """As `find_answers`, of one window and one answer; None if the best spans are none."""
    if not math.isfinite(best.candidates[0].log_score):
        raise InternalError(_NOT_FINITE)
    spans = _Spans(text, encoded)
    trimmed = spans.trimmed(best.of_one_answer())
    if not trimmed[0].may_be_answer:
        return None
    found = spans.result(trimmed, best.log_total, is_one=True)
    if not found.spans:  # each is marks alone, of which `whole_words` leaves nothing
        return None
    return to_answers(text, found, config.null_log_score, 1)


def best_spans(
    window: Window, start: FloatArray, end: FloatArray, config: ReadingConfig
) -> BestSpans:
    """The best spans of a window by its logits, as an engine that chooses spans finds them."""
    table = _window_scores(window, start, end, config)
    return _best_of(table, float(table.max()))


def _window_scores(
    window: Window, start: FloatArray, end: FloatArray, config: ReadingConfig
) -> FloatArray:
    """Log scores of the spans in one window.

    Returns:
        float32 [text tokens, max_answer_tokens]: row i, column n is the span of n + 1 tokens from
        token i; -inf past the window's end.
    """
    width = config.max_answer_tokens
    starts = start[window.text_begin : window.text_end]
    if config.null_threshold is not None:
        null = config.null_position % len(window)
        starts = starts - (start[null] + end[null])
    ends = np.full(len(starts) + width - 1, -np.inf, dtype=np.float32)
    ends[: len(starts)] = end[window.text_begin : window.text_end]
    # Row i of the view is `ends[i : i + width]`: sliding_window_view at a tenth of its cost.
    view = np.ndarray((len(starts), width), ends.dtype, ends, strides=ends.strides * 2)
    table: FloatArray = starts[:, None] + view
    if config.length_penalty:
        table -= _penalties(config)
    if config.temperature != 1.0:
        table /= config.temperature
    return table


@functools.lru_cache(maxsize=8)
def _penalties(config: ReadingConfig) -> FloatArray:
    """What each length of a span costs: float32 [max_answer_tokens]."""
    further = np.arange(1, config.max_answer_tokens + 1) - config.usual_answer_tokens
    return (config.length_penalty * further.clip(0)).astype(np.float32)


def _merged(encoded: EncodedQuestion, scores: Sequence[FloatArray]) -> FloatArray:
    """One table of all windows' spans; of one in several windows the highest score."""
    shape = len(encoded.offsets), scores[0].shape[1]
    table = np.full(shape, -np.inf, dtype=np.float32)
    for window, of_window in zip(encoded.windows, scores, strict=True):
        rows = table[window.first_token : window.first_token + len(of_window)]
        np.maximum(rows, of_window, out=rows)
    return table


def _best_of(table: FloatArray, peak: float) -> BestSpans:
    total = peak
    if peak != -math.inf:
        total += math.log(float(np.exp(table - peak).sum()))
    return BestSpans(_candidates(table, peak), total)


def _candidates(table: FloatArray, peak: float) -> list[Candidate]:
    """The best spans of a table, best first; of equal ones the first in the text."""
    if peak == -math.inf:
        return []
    scores, width = table.ravel(), table.shape[1]
    near = (scores >= peak - NEAR_BEST).nonzero()[0]
    if len(near) > NUM_BEST:  # thousands, if the model is not sure of anything
        of_near = scores[near]
        lowest = np.partition(of_near, -NUM_BEST)[-NUM_BEST]
        above, equal = near[of_near > lowest], near[of_near == lowest]
        near = np.concatenate((above, equal[: NUM_BEST - len(above)]))
    found = zip(scores[near].tolist(), near.tolist(), strict=True)
    best = sorted(found, key=operator.itemgetter(0), reverse=True)[:NUM_BEST]
    return [
        Candidate(score, number // width, number // width + number % width)
        for score, number in best
    ]


class _Trimmed(msgspec.Struct, frozen=True):
    """A candidate without white space around it, within its item or cell.

    Attributes:
        start: Where its words begin, in code points; white space may be a token.
        end: Where they end, or the item or cell does that they begin in.
        may_be_answer: By the rule, and not empty.
        leaves_cell: Whether its tokens go on past `end` into another item or cell.
    """

    log_score: float
    start: int
    end: int
    may_be_answer: bool
    leaves_cell: bool


class _Spans:
    """The spans of one text for one question, from tokens to what a person would mark."""

    def __init__(self, text: str, encoded: EncodedQuestion) -> None:
        self.rule = AnswerRule(encoded.question, text)
        self._text = text
        self._offsets = encoded.offsets

    def trimmed(self, candidates: Sequence[Candidate]) -> list[_Trimmed]:
        """The candidates without what surrounds them."""
        place, rule = self._offsets.item, self.rule
        found = []
        for log_score, first, last in candidates:
            token_end = place(last, 1)
            begin, cell_end = rule.within_cell(place(first, 0), token_end)
            start, end = stripped(self._text, begin, cell_end)
            may_be_answer = start < end and rule.allows(start, end)
            leaves_cell = cell_end < token_end
            found.append(_Trimmed(log_score, start, end, may_be_answer, leaves_cell))
        return found

    def result(
        self, trimmed: Sequence[_Trimmed], log_total: float, *, is_one: bool
    ) -> SegmentResult:
        """The places of the candidates that may be answers.

        One that goes from one item or cell into another is mostly the start of one answer with the
        end of another: it counts only if there is no other.

        Args:
            log_total: Log of the sum over all spans; the share of the other candidates is taken
                out.
            is_one: Whether only the places of the best answer are wanted.
        """
        kept = [one for one in trimmed if one.may_be_answer and not one.leaves_cell]
        kept = kept or [one for one in trimmed if one.may_be_answer]
        if len(kept) < len(trimmed):
            lost = sum(math.exp(one.log_score - log_total) for one in trimmed if one not in kept)
            best = (kept or trimmed)[0].log_score
            log_total += math.log(max(1.0 - lost, math.exp(best - log_total)))
        return SegmentResult(self._places(kept, is_one=is_one), log_total, len(self._offsets))

    def add_more(self, places: list[ScoredSpan], table: FloatArray, top_k: int) -> None:
        """Adds the best spans that overlap none, until there are `top_k` answers or no more.

        It overwrites the table.
        """
        keys = {self._key(place) for place in places}
        if len(keys) >= top_k:
            return
        bounds = self._offsets
        for place in places:
            within = np.flatnonzero((bounds[:, 0] < place.end) & (bounds[:, 1] > place.start))
            if within.size:  # a tokenizer may leave out all that a place has
                _strike_out(table, int(within[0]), int(within[-1]))
        for _ in range(_MAX_TRIES):
            first, further = divmod(int(table.argmax()), table.shape[1])
            candidate = Candidate(float(table[first, further]), first, first + further)
            if candidate.log_score == -math.inf:
                break
            (trimmed,) = self.trimmed([candidate])
            span = ScoredSpan(candidate.log_score, *self._bounds(trimmed))
            is_free = span.start < span.end and not any(map(span.overlaps, places))
            if is_free and trimmed.may_be_answer:
                places.append(span)
                keys.add(self._key(span))
            if len(keys) == top_k:
                break
            _strike_out(table, candidate.first, candidate.last)

    def _places(self, candidates: Sequence[_Trimmed], *, is_one: bool) -> list[ScoredSpan]:
        """Places that do not overlap, those of the best answer first.

        Candidates that become the same span are added up. Where different ones overlap, that of the
        answer with more in the whole text stays.

        Args:
            candidates: Best first.
        """
        scores: dict[tuple[int, int], float] = {}
        for one in candidates:
            bounds = self._bounds(one)
            if bounds[0] < bounds[1]:
                before = scores.get(bounds)
                score = one.log_score
                scores[bounds] = score if before is None else log_sum_exp([score, before])
        if len(scores) == 1:
            return [ScoredSpan(score, *bounds) for bounds, score in scores.items()]
        ranked = sorted((-score, *bounds) for bounds, score in scores.items())
        spans = [ScoredSpan(-negated, start, end) for negated, start, end in ranked]
        if not spans or all(map(spans[0].overlaps, spans)):
            return spans[:1]  # no other place can have the same answer
        equal: dict[str, list[ScoredSpan]] = {}
        for span in spans:
            _add_free(span, equal.setdefault(self._key(span), []))
        if is_one:
            is_any_equal = len(equal) < len(spans)
            return max(equal.values(), key=_log_sum_of) if is_any_equal else spans[:1]
        places: list[ScoredSpan] = []
        for group in sorted(equal.values(), key=_log_sum_of, reverse=True):
            for span in group:
                _add_free(span, places)
        return places

    def _bounds(self, trimmed: _Trimmed) -> tuple[int, int]:
        start, end = whole_characters(self._text, trimmed.start, trimmed.end)
        start, end = whole_words(self._text, start, end, self.rule.asked)
        return whole_characters(self._text, start, end) if start < end else (start, end)

    def _key(self, span: ScoredSpan) -> str:
        return answer_key(self._text[span.start : span.end])


def _add_free(span: ScoredSpan, places: list[ScoredSpan]) -> None:
    if not any(map(span.overlaps, places)):
        places.append(span)


def _log_sum_of(spans: Sequence[ScoredSpan]) -> float:
    return log_sum_exp([span.log_score for span in spans])


def _strike_out(table: FloatArray, first: int, last: int) -> None:
    """Removes every span that holds one of these tokens."""
    table[first : last + 1] = -np.inf
    for before in range(max(0, first - table.shape[1] + 1), first):
        table[before, first - before :] = -np.inf
