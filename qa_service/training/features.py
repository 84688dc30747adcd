"""Questions become rows of tokens with the positions a model must point at.

A row is `[CLS] question [SEP] text [SEP]`, the layout the reading uses; a text too long for
it is cut to a window that holds the whole answer, at a random place. An unanswerable
question points at the first token, twice: what reading calls the null answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from qa_service.reading.windows import Int64Array, PairLayout
from qa_service.squad import SquadQuestion

_MAX_QUESTION_TOKENS = 64
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
    """Makes training rows from questions.

    Args:
        tokenizer: The tokenizer that the model will be served with.
        max_tokens: Longest row.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._layout = PairLayout.of(tokenizer)
        self._max_tokens = max_tokens

    def make(self, question: SquadQuestion, rng: random.Random) -> Features | None:
        """Makes the row of a question and its first answer.

        Returns:
            The row; None if the answer is empty or does not fit into a row.
        """
        asked = self._tokenizer.encode(question.question, add_special_tokens=False).ids
        encoding = self._tokenizer.encode(question.context, add_special_tokens=False)
        span = _token_span(question, encoding.offsets)
        head = [*self._layout.prefix_ids, *asked[:_MAX_QUESTION_TOKENS], *self._layout.middle_ids]
        room = self._max_tokens - len(head) - len(self._layout.suffix_ids)
        if span is None or span[1] - span[0] >= room:
            return None
        cut = _cut_place(span, len(encoding.ids), room, rng)
        ids = [*head, *encoding.ids[cut : cut + room], *self._layout.suffix_ids]
        types = np.full(len(ids), self._layout.text_type, dtype=np.int64)
        types[: len(head)] = self._layout.prefix_type
        shift = len(head) - cut
        start, end = (span[0] + shift, span[1] + shift) if question.answers else (0, 0)
        return Features(np.array(ids, dtype=np.int64), types, start, end)


def _token_span(
    question: SquadQuestion, offsets: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """First and last text token of the first answer, less the punctuation after it.

    Returns:
        The span; (0, 0) for an unanswerable question; None if the answer has no token.
    """
    if not question.answers:
        return (0, 0)
    begin = question.answer_starts[0]
    finish = begin + len(question.answers[0].rstrip(" .,;:"))
    inside = [i for i, (b, e) in enumerate(offsets) if b < finish and e > begin]
    return (inside[0], inside[-1]) if inside else None


def _cut_place(span: tuple[int, int], text_tokens: int, room: int, rng: random.Random) -> int:
    """First token of a cut of `room` tokens at most that holds the whole span."""
    low = max(0, span[1] + 1 - room)
    high = min(span[0], max(0, text_tokens - room))
    return rng.randint(low, max(low, high))


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
