"""The folder of the encoder that embeds passages and questions: `prepare_model.py` writes it.

manifest.json            what it is, and the SHA-256 of the other files
encoder.int8.onnx        the graph
tokenizer.json
known_embeddings.json    texts, their tokens, and their embeddings by the encoder's source

A file is compared with its hash before it is used.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from qa_service.errors import SetupError
from qa_service.files import SAVED_MODELS, Stamp, is_there, read_file, stamp_of, user_models
from qa_service.installation import preparing_program

if TYPE_CHECKING:
    from qa_service.retrieval.encoder import Encoder

DEFAULT_ENCODER = SAVED_MODELS / "encoder"
ENCODER_FILE = "encoder.int8.onnx"
TOKENIZER_FILE = "tokenizer.json"
KNOWN_FILE = "known_embeddings.json"
MANIFEST_FILE = "manifest.json"

MIN_COSINE = 0.95
"""Between an embedding by the graph in int8 and by its source: the encoder's lowest is above 0.99,
and a broken graph has about 0."""


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


class KnownEmbedding(msgspec.Struct, frozen=True):
    """A text, its token ids, and what the encoder's source, in float32, makes of it."""

    text: str
    ids: list[int]
    embedding: list[float]


def encoder_folder(given: Path | None, models: Iterable[Path] = ()) -> Path:
    """The encoder's folder, absolute: the given one, or the first of the usual ones that is there.

    Args:
        models: Folders of models: an encoder may be beside each, as `prepare_model.py` makes it.
    """
    if given is not None:
        return given.absolute()
    beside = (model.absolute().parent / DEFAULT_ENCODER.name for model in models)
    usual = (DEFAULT_ENCODER.absolute(), user_models() / DEFAULT_ENCODER.name)
    places = [*beside, *(usual if SAVED_MODELS.is_dir() else usual[::-1])]
    return next((place for place in places if is_there(place / MANIFEST_FILE)), places[0])


def load_encoder_manifest(folder: Path) -> EncoderManifest:
    path = folder / MANIFEST_FILE
    try:
        return msgspec.json.decode(read_file(path), type=EncoderManifest)
    except FileNotFoundError:
        raise SetupError(
            f"there is no encoder in {folder}: --encoder names its folder, and"
            f" {preparing_program()} makes it"
        ) from None
    except (msgspec.MsgspecError, OSError) as error:
        raise SetupError(
            f"{path} cannot be read: {error}; {preparing_program()} makes it again"
        ) from None


def read_encoder_file(folder: Path, manifest: EncoderManifest, name: str) -> bytes:
    """Reads a file of an encoder, whole: what is used is what was compared with its hash.

    Raises:
        SetupError: It cannot be read, or is not what the manifest says.
    """
    path = folder / name
    try:
        data = read_file(path)
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != manifest.files.get(name):
        raise SetupError(
            f"{path} is not what its manifest says: it was changed, or is not all there;"
            f" {preparing_program()} makes it again"
        )
    return data


def load_known_embeddings(folder: Path, manifest: EncoderManifest) -> list[KnownEmbedding]:
    """Reads what an encoder is known to compute.

    Raises:
        SetupError: The file is missing, damaged, or not what the manifest says.
    """
    data = read_encoder_file(folder, manifest, KNOWN_FILE)
    try:
        return msgspec.json.decode(data, type=list[KnownEmbedding])
    except msgspec.DecodeError as error:
        raise SetupError(f"{folder / KNOWN_FILE} cannot be read: {error}") from None


class SharedEncoder:
    """A folder's encoder, loaded when it is first needed; collections of a process share it."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._loaded: tuple[Stamp, Encoder] | None = None

    @property
    def stamp(self) -> Stamp:
        """Changes when the encoder is prepared again."""
        return stamp_of(self._folder / MANIFEST_FILE) if self._folder else None

    def get(self, identity: str) -> Encoder:
        """The encoder that is in the folder now, if it is the one with this identity.

        Raises:
            SetupError: It is another, or cannot be loaded.
        """
        if self._folder is None:
            raise SetupError("no encoder is given")
        from qa_service.retrieval.encoder import Encoder  # noqa: PLC0415 - it loads NumPy

        with self._lock:
            stamp = self.stamp
            if self._loaded is None or self._loaded[0] != stamp:
                self._loaded = None
                self._loaded = stamp, Encoder(self._folder)
            found = self._loaded[1]
        if found.manifest.identity != identity:
            raise SetupError(
                f"another encoder than the one in {self._folder} has embedded the passages:"
                " --encoder names it, or qa-index embeds them again"
            )
        return found
