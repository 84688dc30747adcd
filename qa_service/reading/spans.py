"""Logits become answer spans.

A span's log score is the sum of its start and end logits (Devlin et al. 2018, section 4.2),
over spans that lie in the text, run forwards, and have at most `max_answer_tokens`. A model that
can abstain scores "no answer here" by the first token's logits (section 4.3); its spans are
taken relative to that, window by window, which makes windows comparable. One softmax over
every span of every window, and the null answer, then gives probabilities.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from qa_service.manifest import ReadingConfig
from qa_service.protocol import Answer
from qa_service.reading.windows import EncodedQuestion, Window

FloatArray = npt.NDArray[np.float32]

_ZERO_WIDTH_JOINER = "\u200d"
_EMOJI_MODIFIERS = range(0x1F3FB, 0x1F400)


@dataclass(frozen=True, slots=True)
class _Span:
    """A candidate: its log score, and its first and last token among those of the text."""

    log_score: float
    first: int
    last: int

    def overlaps(self, other: _Span) -> bool:
        return self.first <= other.last and other.first <= self.last


def find_answers(
    text: str,
    encoded: EncodedQuestion,
    logits: Sequence[tuple[FloatArray, FloatArray]],
    config: ReadingConfig,
    top_k: int = 1,
) -> list[Answer]:
    """Finds the best answers over all windows of a text.

    Args:
        text: The text as it was sent.
        encoded: Its windows and offsets.
        logits: For each window its start and end logits, float32 [seq] each.
        config: How to read them.
        top_k: How many answers at most; the further ones do not overlap those before them.

    Returns:
        One to `top_k` answers, best first; the first is "no answer" if the model abstains.
    """
    spans: list[_Span] = []
    log_total = -math.inf if config.null_threshold is None else 0.0
    for window, (start, end) in zip(encoded.windows, logits, strict=True):
        table = _score_table(window, start, end, config)
        log_total = float(np.logaddexp(log_total, _log_sum_exp(table)))
        spans += _best_spans(table, window, top_k)
    spans = _without_overlaps(spans, top_k)
    answers = [_answer(text, encoded, span, log_total) for span in spans]
    if spans and not _abstains(spans[0], config):
        return answers
    null_score = math.exp(-log_total) if spans else 1.0
    return [Answer("", round(null_score, 4), None, None), *answers][:top_k]


def _abstains(best: _Span, config: ReadingConfig) -> bool:
    if config.null_threshold is None:
        return False
    return best.log_score * config.temperature < config.null_threshold


def _score_table(
    window: Window, start: FloatArray, end: FloatArray, config: ReadingConfig
) -> FloatArray:
    """Log scores of the spans that start in the window's own part.

    Returns:
        float32 [own starts, max_answer_tokens]: row i, column n is the span of n + 1 tokens
        from start i; -inf where it would leave the text.
    """
    width = config.max_answer_tokens
    ends = np.full(window.text_end - window.own_begin + width - 1, -np.inf, dtype=np.float32)
    ends[: window.text_end - window.own_begin] = end[window.own_begin : window.text_end]
    own_starts = start[window.own_begin : window.own_end, None]
    table = own_starts + sliding_window_view(ends, width)[: len(own_starts)]
    if config.null_threshold is not None:
        table -= start[0] + end[0]
    table /= config.temperature
    return table


def _log_sum_exp(table: FloatArray) -> float:
    peak = float(table.max())
    return peak + math.log(float(np.exp(table - peak).sum()))


def _best_spans(table: FloatArray, window: Window, top_k: int) -> list[_Span]:
    """Takes the best spans that do not overlap, greedily; uses up the table."""
    spans: list[_Span] = []
    base = window.first_token + window.own_begin - window.text_begin
    while len(spans) < top_k:
        row, column = divmod(int(table.argmax()), table.shape[1])
        log_score = float(table[row, column])
        if log_score == -math.inf:
            break
        spans.append(_Span(log_score, base + row, base + row + column))
        if len(spans) < top_k:
            table[row : row + column + 1] = -np.inf
            for before in range(max(0, row - table.shape[1] + 1), row):
                table[before, row - before :] = -np.inf
    return spans


def _without_overlaps(spans: list[_Span], top_k: int) -> list[_Span]:
    kept: list[_Span] = []
    for span in sorted(spans, key=lambda span: (-span.log_score, span.first)):
        if len(kept) == top_k:
            break
        if not any(span.overlaps(other) for other in kept):
            kept.append(span)
    return kept


def _answer(text: str, encoded: EncodedQuestion, span: _Span, log_total: float) -> Answer:
    start = int(encoded.offsets[span.first, 0])
    end = int(encoded.offsets[span.last, 1])
    start, end = whole_characters(text, *_stripped(text, start, end))
    score = math.exp(span.log_score - log_total)
    return Answer(text[start:end], round(score, 4), start, end)


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Byte-level and SentencePiece tokens may hold the space before a word."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def whole_characters(text: str, start: int, end: int) -> tuple[int, int]:
    """Widens a span so that it does not cut what a reader sees as one character.

    Tokenizers that strip accents leave a combining mark out of the token before it. Joined are
    combining marks, variation selectors, emoji modifiers, and what a zero-width joiner joins:
    the parts of Unicode UAX #29's extended grapheme clusters that a token boundary can cut.

    Args:
        text: The text the span lies in.
        start: Where the span starts, in code points.
        end: One past where it ends.
    """
    while 0 < start < len(text) and _joins(text, start):
        start -= 1
    while 0 < end < len(text) and _joins(text, end):
        end += 1
    return start, end


def _joins(text: str, position: int) -> bool:
    """Whether the character at `position` belongs to the one before it."""
    character = text[position]
    if character.isascii():
        return False
    return (
        unicodedata.category(character).startswith("M")
        or character == _ZERO_WIDTH_JOINER
        or text[position - 1] == _ZERO_WIDTH_JOINER
        or ord(character) in _EMOJI_MODIFIERS
    )
