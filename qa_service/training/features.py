"""Questions become rows of tokens with the positions a model must point at.

A row is a window as the reading cuts it, `[CLS] question [SEP] text [SEP]`; of a longer text,
one that holds the whole answer, at random. An unanswerable question points at the first
token, twice: what reading calls the null answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from qa_service.errors import QuestionTooLongError
from qa_service.reading.windows import Int64Array, Window, WindowBuilder
from qa_service.squad import SquadQuestion

_BATCHES_A_BUCKET = 32


@dataclass(frozen=True, slots=True)
class Features:
    """One training row.

    Attributes:
        input_ids: int64 [seq], special tokens included.
        token_type_ids: int64 [seq].
        start: Position of the answer's first token; 0 if there is no answer.
        end: Position of its last token; 0 if there is no answer.
    """

    input_ids: Int64Array
    token_type_ids: Int64Array
    start: int
    end: int

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Rows padded to one length: int64 [batch, seq], positions int64 [batch]."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    token_type_ids: torch.Tensor
    start_positions: torch.Tensor
    end_positions: torch.Tensor


class FeatureMaker:
    """Makes training rows from questions, with the windows that serving makes.

    Args:
        tokenizer: The tokenizer that the model will be served with.
        max_tokens: Longest row.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._windows = WindowBuilder(tokenizer, max_tokens, max_tokens // 4)

    def make(self, question: SquadQuestion, rng: random.Random) -> Features | None:
        """Makes the row of a question and its first answer.

        Returns:
            The row; None if the question is too long or no window holds the whole answer.
        """
        try:
            encoded = self._windows.encode(question.question, question.context)
        except QuestionTooLongError:
            return None
        span = _token_span(question, encoded.offsets)
        holding = [window for window in encoded.windows if _holds(window, span)]
        if not holding:
            return None
        window = rng.choice(holding)
        shift = window.text_begin - window.first_token
        start, end = (0, 0) if span is None else (span[0] + shift, span[1] + shift)
        return Features(window.input_ids, window.token_type_ids, start, end)


def _token_span(
    question: SquadQuestion, offsets: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """First and last text token of the first answer, less the punctuation after it.

    Returns:
        The span, (-1, -1) if no token is in it; None for an unanswerable question.
    """
    if not question.answers:
        return None
    begin = question.answer_starts[0]
    finish = begin + len(question.answers[0].rstrip(" .,;:"))
    inside = [i for i, (b, e) in enumerate(offsets) if b < finish and e > begin]
    return (inside[0], inside[-1]) if inside else (-1, -1)


def _holds(window: Window, span: tuple[int, int] | None) -> bool:
    """Whether all of the span is in the window; where there is none, every window will do."""
    text_tokens = window.text_end - window.text_begin
    return span is None or (
        window.first_token <= span[0] and span[1] < window.first_token + text_tokens
    )


def plan_batches(lengths: Sequence[int], batch_size: int, rng: random.Random) -> list[list[int]]:
    """Cuts rows, already in random order, into batches of near lengths, in random order.

    Rows are sorted by length only within buckets of many batches, so that little is padded
    and yet every batch is a mixture.

    Returns:
        For each batch the numbers of its rows.
    """
    bucket = batch_size * _BATCHES_A_BUCKET
    batches = []
    for first in range(0, len(lengths), bucket):
        numbers = sorted(range(first, min(first + bucket, len(lengths))), key=lengths.__getitem__)
        batches += [numbers[i : i + batch_size] for i in range(0, len(numbers), batch_size)]
    rng.shuffle(batches)
    return batches


def collate(rows: Sequence[Features], pad_token_id: int) -> TrainingBatch:
    """Pads rows to the longest of them."""
    shape = (len(rows), max(map(len, rows)))
    ids = np.full(shape, pad_token_id, np.int64)
    mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row.input_ids
        mask[number, : len(row)] = 1
        types[number, : len(row)] = row.token_type_ids
    return TrainingBatch(
        torch.from_numpy(ids),
        torch.from_numpy(mask),
        torch.from_numpy(types),
        torch.tensor([row.start for row in rows]),
        torch.tensor([row.end for row in rows]),
    )
