"""What a prepared model is known to compute: rows of input, and logits of its source for them.

`prepare_model.py` asks the source's model, in float32 on PyTorch, and keeps the file with the
model, with its hash in the manifest. An instance compares what its engine computes with it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path

import msgspec

from qa_service.engine_catalogue import ROWS, Kind
from qa_service.errors import SetupError
from qa_service.files import read_file
from qa_service.instance.model_folder.manifest import (
    KNOWN_ANSWERS_FILE,
    Manifest,
    check_files,
    prepared_file,
)

VOCABULARY = "the vocabulary"
"""The names of its rows begin with it."""
MEASURED_SLACK = 3.0
"""What is tolerated, as a multiple of the largest difference seen when the file was prepared: other
processors have other kernels, and in int8 a row's logits change with its batch."""
ROUNDED_SLACK = 5.0
"""The same below float32, where a shape that is compiled later rounds elsewhere: in int8 with bf16
a row of `builtin-base` is 3.1 times as far off in static shapes as the median row was measured."""
EXACT_SLACK = 10.0
"""In float32 no more is tolerated than this multiple of the catalogue's tolerance: an engine that
computed wrongly when the model was prepared is no measure."""
MIN_TOLERANCE = 1e-4
"""Another order of float32 operations changes logits by 1e-5."""


STEP_TOKENS = 16
"""What engines pad single rows to is a multiple of it, or the window."""


def row_lengths(window_tokens: int) -> list[int]:
    """The lengths of known rows, in tokens, ascending: the last is the window."""
    return [*range(STEP_TOKENS, window_tokens, STEP_TOKENS), window_tokens]


class KnownRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of model input, not padded, and logits of the source's model for it.

    Attributes:
        name: What it is, in words.
        ids: Token ids, special tokens included.
        types: Token types, one for each id.
        text: Its first text token, and one past the last.
        places: The positions whose logits are kept.
        start: The start logit at each place.
        end: The end logit at each place.
        asked: The question and the text whose first window it is; None if it is another's.
    """

    name: str
    ids: list[int]
    types: list[int]
    text: tuple[int, int]
    places: list[int]
    start: list[float]
    end: list[float]
    asked: tuple[str, str] | None = None


class KnownAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the file.

    Attributes:
        rows: Questions of all kinds; each instance runs them before it serves.
        vocabulary: Rows that hold all of the vocabulary, or much of a large one, of each length
            that engines pad to (`row_lengths`); an instance runs these and the others in turn while
            it serves, and a shape by one of its full length.
    """

    rows: list[KnownRow]
    vocabulary: list[KnownRow] = []


def load_known_answers(model_dir: Path, manifest: Manifest) -> KnownAnswers:
    """Reads a model's known answers, or raises `SetupError`."""
    path = prepared_file(model_dir, manifest, KNOWN_ANSWERS_FILE)
    check_files(model_dir, manifest, [KNOWN_ANSWERS_FILE])
    try:
        return msgspec.json.decode(read_file(path), type=KnownAnswers)
    except (OSError, msgspec.DecodeError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from None


def tolerance_of(manifest: Manifest, kind: Kind, device: str) -> Callable[[str], float]:
    """By how much a logit of a row may differ from the source's, by the row's name.

    It follows from what was measured at the preparation, on a CPU; else the catalogue has it.
    """
    measured = manifest.differences.get(" ".join(kind)) if device == "cpu" else None
    if not measured:
        return lambda _: ROWS[kind].tolerance
    usual = statistics.median(measured.values())
    is_exact = kind[1] == "fp32"
    slack = MEASURED_SLACK if is_exact else ROUNDED_SLACK
    most = EXACT_SLACK * ROWS[kind].tolerance if is_exact else math.inf

    def tolerance(name: str) -> float:
        its = measured.get(VOCABULARY if name.startswith(VOCABULARY) else name, 0.0)
        return min(most, max(MIN_TOLERANCE, slack * max(its, usual)))

    return tolerance
