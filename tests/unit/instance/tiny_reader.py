"""The reader with a tiny tokenizer and a made-up model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.models import make_manifest
from qa_service.instance.arrays import BestSpansFunction, LogitsFunction
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.model_folder.manifest import TOKENIZER_FILE, ReadingConfig
from qa_service.instance.reader.reader import Reader
from tests.unit.instance.tiny_tokenizers import PAD_TOKEN_ID, tiny_tokenizer


class MadeUpModel:
    """Logits that depend on a row's own tokens only, as a model's do; keeps what it was given."""

    def __init__(self, pad_token_id=0):
        self.pad_token_id = pad_token_id
        self.batches = []

    def __call__(self, ids, mask, types):
        assert ids.shape == mask.shape == types.shape
        assert ids.dtype == mask.dtype == types.dtype == np.int64
        assert np.all(ids[mask == 0] == self.pad_token_id)
        assert np.all(types[mask == 0] == 0)
        self.batches.append((ids, mask, types))
        waves = ids * 12.9898 + np.arange(ids.shape[1]) * 78.233 + types
        start, end = 6 * np.sin(waves), 6 * np.cos(waves * 1.7)
        start[mask == 0] = end[mask == 0] = 1000.0  # nothing may ever be read from padding
        return start.astype(np.float32), end.astype(np.float32)


def tiny_reader(
    folder: Path,
    kind: str = "bert",
    logits: LogitsFunction | None = None,
    reading: ReadingConfig = ReadingConfig(),  # noqa: B008
    limits: BatchRule = BatchRule(),  # noqa: B008
    best_spans: BestSpansFunction | None = None,
    *,
    may_pad: bool = True,
) -> Reader:
    """Makes a reader from a folder, into which it writes the kind's tokenizer."""
    if not (folder / TOKENIZER_FILE).exists():
        tiny_tokenizer(kind).save(str(folder / TOKENIZER_FILE))
    manifest = make_manifest(
        kind, pad_token_id=PAD_TOKEN_ID[kind], reading=reading, may_pad=may_pad
    )
    return Reader(folder, manifest, logits or MadeUpModel(PAD_TOKEN_ID[kind]), limits, best_spans)
