"""Runs a model to find what its config does not say.

Configs name the number of positions in a dozen ways, and some count two too many; none says whether
a row's logits change with its padding (those of a convolution do).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from qa_service.errors import SetupError
from qa_service.instance.reader.windows import sample_rows
from qa_service.preparation.source_model import SourceModel
from qa_service.preparation.sources import first_line
from qa_service.preparation.verify import MAX_LOGIT_DIFFERENCE

MIN_SEQUENCE_TOKENS = 16
"""A window has a question, a text and special tokens."""

_SHORT, _LONG = 21, 40
"""Tokens of two rows; the first is run alone and padded."""


def measured(loaded: SourceModel, window_tokens: int) -> SourceModel:
    """Finds the longest sequence that a model takes, and whether rows may be padded."""
    longest = _longest(loaded, min(window_tokens, loaded.max_sequence_tokens))
    if longest < min(window_tokens, loaded.max_sequence_tokens):
        loaded = replace(cast(Any, loaded), max_sequence_tokens=longest)
    rows = sample_rows(loaded.tokenizer, 1, longest)
    first, second = (np.stack(loaded.logits(*rows)) for _ in range(2))
    if not np.abs(first - second).max() <= MAX_LOGIT_DIFFERENCE:
        raise SetupError("the model gives different logits for the same question")
    # Whether padding leaves a row's logits unchanged.
    short, long = min(_SHORT, longest - 1), min(_LONG, longest)
    alone = sample_rows(loaded.tokenizer, 1, short)
    ids, mask, types = sample_rows(loaded.tokenizer, 2, long)
    ids[0, :short], types[0, :short] = alone[0][0], alone[2][0]
    ids[0, short:], mask[0, short:], types[0, short:] = loaded.pad_token_id, 0, 0
    padded = np.stack(loaded.logits(ids, mask, types))[:, :1, :short]
    difference = np.abs(padded - np.stack(loaded.logits(*alone))).max()
    found: SourceModel = replace(
        cast(Any, loaded), may_pad=bool(difference <= MAX_LOGIT_DIFFERENCE)
    )
    return found


def _longest(loaded: SourceModel, stated: int) -> int:
    """The longest sequence, up to the stated one, that the model runs."""
    if stated < MIN_SEQUENCE_TOKENS:
        raise SetupError(
            f"the model takes {stated} tokens, and the server needs {MIN_SEQUENCE_TOKENS}"
        )
    if not _obstacle(loaded, stated):
        return stated
    if reason := _obstacle(loaded, MIN_SEQUENCE_TOKENS):
        raise SetupError(f"the model cannot be run on a question: {reason}")
    able, unable = MIN_SEQUENCE_TOKENS, stated
    while unable - able > 1:
        middle = (able + unable) // 2
        able, unable = (middle, unable) if not _obstacle(loaded, middle) else (able, middle)
    return able


def _obstacle(loaded: SourceModel, tokens: int) -> str:
    """Why the model cannot run a row of a length; empty if it can."""
    try:
        loaded.logits(*sample_rows(loaded.tokenizer, 1, tokens))
    except Exception as error:  # models raise anything
        return first_line(error) or type(error).__name__
    return ""
