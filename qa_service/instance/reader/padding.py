"""Windows that run together, padded to rows of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qa_service.instance.arrays import Int64Array, Rows
from qa_service.instance.reader.windows import Window


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Windows that run together.

    Attributes:
        numbers: Which of the windows of all tasks they are.
        longest: Tokens of the longest.
        rows: They themselves, padded.
        text_mask: int64 [batch, seq], 1 for text tokens, if the engine is to choose best spans.
    """

    numbers: Sequence[int]
    longest: int
    rows: Rows
    text_mask: Int64Array | None = None


def padded(windows: Sequence[Window], pad_token_id: int, tokens: int = 0) -> Rows:
    """Stacks windows as rows of one length: the longest's, or more tokens."""
    shape = (len(windows), max(tokens, *map(len, windows)))
    ids = np.full(shape, pad_token_id, np.int64)
    mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, window in enumerate(windows):
        ids[row, : len(window)] = window.input_ids
        mask[row, : len(window)] = 1
        types[row, : len(window)] = window.token_type_ids
    return ids, mask, types


def text_mask_of(windows: Sequence[Window], tokens: int) -> Int64Array:
    """Which tokens of padded windows are the text's: int64 [windows, tokens], 0 or 1."""
    mask = np.zeros((len(windows), tokens), np.int64)
    for row, window in zip(mask, windows, strict=True):
        row[window.text_begin : window.text_end] = 1
    return mask
