"""A model's inputs for real text, for which weights are rounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.errors import QuestionTooLongError
from qa_service.inference.reader.windows import EncodedQuestion, WindowBuilder
from qa_service.preparation.quantize import Inputs
from qa_service.preparation.verify import OWN_QUESTIONS
from qa_service.repository.manifest import TOKENIZER_FILE, Manifest


def calibration_inputs(model_dir: Path, manifest: Manifest) -> list[Inputs]:
    """The windows of the project's own questions, one in each batch.

    Engines are compared on other questions (`data/agreement.json`).
    """
    tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER_FILE))
    overlap = manifest.reading.window_overlap_tokens
    builder = WindowBuilder(tokenizer, manifest.window_tokens, overlap)
    found: list[Inputs] = []
    for item in read_squad(OWN_QUESTIONS):
        for window in _encoded(builder, item).windows:
            ids = window.input_ids[None].astype(np.int64)
            types = window.token_type_ids[None].astype(np.int64)
            given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
            found.append({name: given[name] for name in manifest.inputs})
    return found


def _encoded(builder: WindowBuilder, item: SquadQuestion) -> EncodedQuestion:
    """A question and its text; with a short question if the model has few positions."""
    try:
        return builder.encode(item.question, item.context)
    except QuestionTooLongError:
        return builder.encode("Why?", item.context)
