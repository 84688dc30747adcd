"""A model's inputs for real text, for which weights are rounded."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.errors import QuestionTooLongError
from qa_service.inference.engines.base import named_inputs
from qa_service.inference.reader.reader import padded
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
    return [
        named_inputs(manifest.inputs, *padded([window], manifest.pad_token_id))
        for item in read_squad(OWN_QUESTIONS)
        for window in _encoded(builder, item).windows
    ]


def _encoded(builder: WindowBuilder, item: SquadQuestion) -> EncodedQuestion:
    """A question and its text; with a short question if the model has few positions."""
    try:
        return builder.encode(item.question, item.context)
    except QuestionTooLongError:
        return builder.encode("Why?", item.context)
