"""Makes rows of any length in the layout of a question and a text, for measuring.

A model may require the special tokens between the two (Longformer counts its separators).
"""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer

from qa_service.inference.reader.windows import Int64Array, PairLayout


class SampleRows:
    """Makes rows of one repeated word, in a fast tokenizer's layout."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._layout = PairLayout.of(tokenizer)
        self._word = tokenizer.encode("a", add_special_tokens=False).ids[-1]

    def __call__(self, rows: int, tokens: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns ids, mask and types, int64 [rows, tokens] each; a short row may have no text."""
        layout = self._layout
        head = np.concatenate(
            (layout.prefix, [[self._word], [layout.question_type]], layout.middle), axis=1
        )
        room = max(0, tokens - head.shape[1] - layout.suffix.shape[1])
        text = np.tile(np.array([[self._word], [layout.text_type]], np.int64), room)
        row = np.concatenate((head, text, layout.suffix), axis=1)[:, :tokens]
        ids, types = (np.tile(values, (rows, 1)) for values in row)
        return ids, np.ones_like(ids), types
