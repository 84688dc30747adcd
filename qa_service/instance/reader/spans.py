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

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from qa_service.errors import InternalError
from qa_service.instance.arrays import FloatArray, Logits
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.reader.characters import stripped, whole_characters
from qa_service.instance.reader.windows import EncodedQuestion, Window
from qa_service.wire.messages import Answer
from qa_service.wire.spans import ScoredSpan, SegmentResult, to_answers

_MAX_CANDIDATES = 100
"""Bound on the spans tried to find `top_k`: a text may be mostly white space."""

_NOT_FINITE = "the model's logits are not finite"


@dataclass(frozen=True, slots=True)
class BestSpan:
    """The best span of a window, found by the engine, in place of the window's logits.

    Attributes:
        first: The span's first token, counted from the window's first text token; so is `last`.
        log_score: Not finite if the logits are not.
        log_total: Log of the sum over all spans of the window, without the null answer.
    """

    first: int
    last: int
    log_score: float
    log_total: float


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

    Raises:
        InternalError: The logits hold NaN or an infinity.
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
        top_k: How many spans at most; they do not overlap.
        core: Where spans may start in a segment, in code points; the rest is context.

    Raises:
        InternalError: The logits hold NaN or an infinity.
    """
    num_tokens = len(encoded.offsets)
    if not encoded.windows:
        return SegmentResult([], -math.inf, num_tokens)
    table = np.full((num_tokens, config.max_answer_tokens), -np.inf, dtype=np.float32)
    for window, (start, end) in zip(encoded.windows, logits, strict=True):
        scores = _window_scores(window, start, end, config)
        rows = table[window.first_token : window.first_token + len(scores)]
        np.maximum(rows, scores, out=rows)
    log_total = _log_sum_exp(table)
    if core:
        starts = np.array(encoded.offsets)[:, 0]
        table[(starts < core[0]) | (starts >= core[1])] = -np.inf
        log_total = _log_sum_exp(table) if table.max() > -np.inf else -math.inf
    return SegmentResult(_best_spans(text, encoded, table, top_k), log_total, num_tokens)


def answers_at_best_span(
    text: str, encoded: EncodedQuestion, best_span: BestSpan, config: ReadingConfig
) -> list[Answer] | None:
    """As `find_answers`, for a text of one window and one answer; None if that is white space.

    Raises:
        InternalError: The logits hold NaN or an infinity.
    """
    if not math.isfinite(best_span.log_score):
        raise InternalError(_NOT_FINITE)
    span = _span(text, encoded, best_span.log_score, best_span.first, best_span.last)
    if span.start == span.end:
        return None
    found = SegmentResult([span], best_span.log_total, len(encoded.offsets))
    return to_answers(text, found, config.null_log_score, 1)


def _window_scores(
    window: Window, start: FloatArray, end: FloatArray, config: ReadingConfig
) -> FloatArray:
    """Log scores of the spans in one window.

    Returns:
        float32 [text tokens, max_answer_tokens]: row i, column n is the span of n + 1 tokens from
        token i; -inf past the window's end.
    """
    width = config.max_answer_tokens
    starts = start[window.text_begin : window.text_end, None]
    ends = np.full(len(starts) + width - 1, -np.inf, dtype=np.float32)
    ends[: len(starts)] = end[window.text_begin : window.text_end]
    # Row i of the view is `ends[i : i + width]`: sliding_window_view at a fifth of its cost.
    table = starts + as_strided(ends, (len(starts), width), ends.strides * 2)
    if config.null_threshold is not None:
        null = config.null_position % len(window)
        table -= start[null] + end[null]
    if config.length_penalty:
        usual = config.usual_answer_tokens
        table[:, usual:] -= config.length_penalty * np.arange(1, width - usual + 1)
    table /= config.temperature
    return table


def _log_sum_exp(table: FloatArray) -> float:
    peak = float(table.max())
    if not math.isfinite(peak):
        raise InternalError(_NOT_FINITE)
    return peak + math.log(float(np.exp(table - peak).sum()))


def _best_spans(
    text: str, encoded: EncodedQuestion, table: FloatArray, top_k: int
) -> list[ScoredSpan]:
    """Takes the best spans that do not overlap, greedily; overwrites the table."""
    spans: list[ScoredSpan] = []
    for _ in range(_MAX_CANDIDATES):
        first, further = divmod(int(table.argmax()), table.shape[1])
        log_score = float(table[first, further])
        if log_score == -math.inf:
            break
        span = _span(text, encoded, log_score, first, first + further)
        # White space may be a token, and the bytes of one character may be several.
        if span.start < span.end and not any(map(span.overlaps, spans)):
            spans.append(span)
        if len(spans) == top_k:
            break
        _strike_out(table, first, first + further)
    return spans


def _span(
    text: str, encoded: EncodedQuestion, log_score: float, first: int, last: int
) -> ScoredSpan:
    start, end = encoded.offsets[first][0], encoded.offsets[last][1]
    return ScoredSpan(log_score, *whole_characters(text, *stripped(text, start, end)))


def _strike_out(table: FloatArray, first: int, last: int) -> None:
    """Removes every span that holds one of these tokens."""
    table[first : last + 1] = -np.inf
    for before in range(max(0, first - table.shape[1] + 1), first):
        table[before, first - before :] = -np.inf
