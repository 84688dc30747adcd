"""The folder of the encoder that embeds passages and questions: `prepare_model.py` writes it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from qa_service.errors import SetupError

DEFAULT_ENCODER = Path("saved_models/encoder")
ENCODER_FILE = "encoder.int8.onnx"
TOKENIZER_FILE = "tokenizer.json"
MANIFEST_FILE = "manifest.json"


class EncoderManifest(msgspec.Struct, frozen=True, kw_only=True):
    """An encoder's `manifest.json`.

    Attributes:
        identity: Of the weights and of how they are run; equal where embeddings can be compared.
        max_tokens: Tokens of a text that are read, special tokens included.
        files: SHA-256 by file name.
    """

    name: str
    identity: str
    dimensions: int
    max_tokens: int
    files: dict[str, str]
    versions: dict[str, str]


def load_encoder_manifest(folder: Path) -> EncoderManifest:
    """Reads an encoder's manifest.

    Raises:
        SetupError: There is no encoder in the folder, or one of another format.
    """
    path = folder / MANIFEST_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=EncoderManifest)
    except FileNotFoundError:
        raise SetupError(f"there is no encoder in {folder}: prepare_model.py makes it") from None
    except (msgspec.MsgspecError, OSError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from None
