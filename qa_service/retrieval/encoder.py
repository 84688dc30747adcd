"""The encoder that embeds passages and questions, on ONNX Runtime.

`prepare_model.py` makes its folder.

An embedding is a vector of length 1; the nearer two texts are in meaning, the larger is the product
of theirs. The folder's manifest names the encoder: embeddings are only compared with those of the
same one.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from qa_service.errors import SetupError
from qa_service.installation import install_hint
from qa_service.retrieval.encoder_folder import ENCODER_FILE, TOKENIZER_FILE, load_encoder_manifest

if TYPE_CHECKING:
    import onnxruntime
    from tokenizers import Tokenizer

FloatArray = npt.NDArray[np.float32]


MAX_BATCH_TOKENS = 512
"""A batch's rows times its longest. With 2048 a passage takes 1.4 times as long on an AVX2 core, as
the activations between two layers do not fit into its cache."""
_MAX_CHARS_PER_TOKEN = 16
"""A text is cut before it is tokenised, as the tokenizer cuts only its result."""


class Encoder:
    """An encoder that is loaded; several threads may use it at once."""

    def __init__(self, folder: Path, num_threads: int = 1) -> None:
        """Loads it; takes about a quarter of a second.

        Args:
            num_threads: For each run.

        Raises:
            SetupError: It is not there or damaged, or a package is not installed.
        """
        self.manifest = load_encoder_manifest(folder)
        self._session = _session(folder / ENCODER_FILE, num_threads)
        self._tokenizer = _tokenizer(folder / TOKENIZER_FILE, self.manifest.max_tokens)

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Embeds texts: float32 [texts, dimensions]; texts of like lengths share a run.

        Raises:
            SetupError: The encoder's outputs are not those that its manifest names.
        """
        embeddings = np.empty((len(texts), self.manifest.dimensions), np.float32)
        longest = self.manifest.max_tokens * _MAX_CHARS_PER_TOKEN
        encoded = self._tokenizer.encode_batch([text[:longest] for text in texts])
        rows = [row.ids for row in encoded]
        for batch in _batches(rows):
            embeddings[batch] = self._run([rows[number] for number in batch])
        return embeddings

    def _run(self, rows: Sequence[Sequence[int]]) -> FloatArray:
        ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
        mask = np.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
        found: FloatArray
        found, *_ = self._session.run(None, {"input_ids": ids, "attention_mask": mask})
        if found.shape != (len(rows), self.manifest.dimensions):
            wanted = f"{len(rows)} embeddings of {self.manifest.dimensions} values"
            raise SetupError(f"the encoder returned {found.shape} in place of {wanted}")
        return found


def _batches(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Numbers of rows that run together, the shortest first."""
    batch: list[int] = []
    for number in sorted(range(len(rows)), key=lambda number: len(rows[number])):
        if batch and (len(batch) + 1) * len(rows[number]) > MAX_BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _session(path: Path, num_threads: int) -> onnxruntime.InferenceSession:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ModuleNotFoundError:
        raise SetupError(
            f"embeddings need the package onnxruntime: {install_hint('cpu')}"
        ) from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return runtime.InferenceSession(
            str(path),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],
        )
    except Exception as error:  # onnxruntime raises its C++ module's classes
        reason = " ".join(str(error).split())
        raise SetupError(f"ONNX Runtime cannot load {path}: {reason}") from None


def _tokenizer(path: Path, max_tokens: int) -> Tokenizer:
    from tokenizers import Tokenizer  # noqa: PLC0415, searches without embeddings need none

    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise SetupError(f"{path} cannot be read: {error}") from None
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


class SharedEncoder:
    """A folder's encoder, loaded when it is first needed; collections of a process share it."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._loaded: Encoder | None = None

    def get(self, identity: str) -> Encoder:
        """The encoder, if it is the one with this identity.

        Raises:
            SetupError: It is another, or cannot be loaded.
        """
        if self._folder is None:
            raise SetupError("no encoder is given")
        with self._lock:
            self._loaded = found = self._loaded or Encoder(self._folder)
        if found.manifest.identity != identity:
            raise SetupError(
                f"the encoder in {self._folder} is not the one that embedded the passages"
            )
        return found
