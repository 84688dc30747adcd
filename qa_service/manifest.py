"""A prepared model's `manifest.json`: what is in the folder and how its logits are read.

`prepare_model.py` writes it last, so a folder that has one is whole. The server reads it
before it starts a session, and every session reads it again for itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from qa_service.errors import SetupError

MANIFEST_FILE = "manifest.json"
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
ONNX_FILE = "model.onnx"
PYTORCH_FILE = "model.safetensors"

PRECISIONS = {"fp32": ONNX_FILE, "int8": "model.int8.onnx"}
"""The ONNX file of each precision; all but the first are made from the first."""


class ReadingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How texts are cut into windows and how logits become an answer.

    Attributes:
        max_answer_tokens: Longest span considered, in tokens.
        window_tokens: Longest window, in tokens, question and special tokens included.
        window_overlap_tokens: Text tokens that two neighbouring windows share.
        temperature: Divides span logits before the softmax that makes a score (Guo et al.
            2017, "On Calibration of Modern Neural Networks").
        null_threshold: The least by which a span's logit sum must exceed that of the null
            answer (start and end on the first special token, as in SQuAD 2.0 readers); None
            for a model that was never shown an unanswerable question and so cannot abstain.
    """

    max_answer_tokens: Annotated[int, msgspec.Meta(ge=1)] = 30
    window_tokens: Annotated[int, msgspec.Meta(ge=16)] = 384
    window_overlap_tokens: Annotated[int, msgspec.Meta(ge=0)] = 128
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    null_threshold: float | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `manifest.json`.

    Attributes:
        name: The model's name, which is also its folder's.
        source: Where it came from: `builtin`, a hub id, or a directory's name.
        fingerprint: SHA-256 over everything the model was made from; prepare_model.py
            compares it to see whether there is anything to do.
        files: SHA-256 by file name.
        inputs: Names of the model's inputs, in the order of its `forward`.
        pad_token_id: What fills the end of shorter rows in a batch.
        max_sequence_tokens: The longest sequence the model has positions for.
        can_abstain: Whether the model answers "no answer" of its own accord.
        reading: How its logits are read.
        versions: Versions of the packages that made the files.
    """

    name: str
    source: str
    fingerprint: str
    files: dict[str, str]
    inputs: tuple[str, ...]
    pad_token_id: int
    max_sequence_tokens: Annotated[int, msgspec.Meta(ge=16)]
    can_abstain: bool
    reading: ReadingConfig
    versions: dict[str, str]

    @property
    def window_tokens(self) -> int:
        """The longest window that the model is given."""
        return min(self.reading.window_tokens, self.max_sequence_tokens)


def load_manifest(model_dir: Path) -> Manifest:
    """Reads the manifest of a prepared model.

    Raises:
        SetupError: The folder holds no prepared model, or one of another format.
    """
    try:
        return msgspec.json.decode((model_dir / MANIFEST_FILE).read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise SetupError(
            f"no prepared model in {model_dir}; make the built-in one with: python prepare_model.py"
        ) from None
    except (msgspec.DecodeError, OSError) as error:
        raise SetupError(
            f"{model_dir / MANIFEST_FILE} cannot be read ({error}); "
            "make it anew with: python prepare_model.py"
        ) from None


def preparing_command(manifest: Manifest, precision: str) -> str:
    """The command that adds a precision to a prepared model."""
    return f"python prepare_model.py --model {manifest.source} --precision {precision}"


def save_manifest(model_dir: Path, manifest: Manifest) -> None:
    """Writes the manifest, indented for people."""
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (model_dir / MANIFEST_FILE).write_bytes(encoded + b"\n")
