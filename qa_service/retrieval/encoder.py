"""The encoder that embeds passages and questions, on ONNX Runtime.

`prepare_model.py` makes its folder.

An embedding is a vector of length 1; the nearer two texts are in meaning, the larger is the product
of theirs. The folder's manifest names the encoder: embeddings are only compared with those of the
same one. Its files are compared with their hashes and known texts are embedded before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from qa_service.errors import SetupError
from qa_service.installation import load
from qa_service.retrieval.encoder_folder import (
    ENCODER_FILE,
    MIN_COSINE,
    TOKENIZER_FILE,
    EncoderManifest,
    load_encoder_manifest,
    load_known_embeddings,
    read_encoder_file,
)

if TYPE_CHECKING:
    import onnxruntime
    from tokenizers import Tokenizer

FloatArray = npt.NDArray[np.float32]

MAX_BATCH_TOKENS = 512
"""A batch's rows times its longest. With 2048 a passage takes 1.4 times as long on an AVX2 core, as
the activations between two layers do not fit into its cache."""
MAX_LENGTH_ERROR = 0.01
"""Of an embedding's squared length, which rounding in float32 changes by 1e-6."""
MAX_CHARS_PER_TOKEN = 16
"""A text is cut before it is tokenised, as the tokenizer cuts only its result."""


class Encoder:
    """An encoder that is loaded; several threads may use it at once."""

    def __init__(self, folder: Path, num_threads: int = 1) -> None:
        """Loads it and has it embed known texts; takes about half a second.

        Args:
            num_threads: For each run.

        Raises:
            SetupError: It is not there, damaged or wrong, or a package is not installed.
        """
        self.manifest = load_encoder_manifest(folder)
        self._tokenizer = _tokenizer(folder, self.manifest)
        known = load_known_embeddings(folder, self.manifest)
        self._session = _session(folder, self.manifest, num_threads)  # which takes longest
        texts = [its.text for its in known]
        found = self.embed(texts)
        if self._tokenize(texts) != [its.ids for its in known]:
            raise SetupError(f"the tokenizer in {folder} cuts texts otherwise than the encoder's")
        wanted = np.array([its.embedding for its in known], np.float32)
        if wanted.shape != found.shape or not (found * wanted).sum(axis=1).min() >= MIN_COSINE:
            raise SetupError(f"the encoder in {folder} computes other embeddings than it should")

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Embeds texts: float32 [texts, dimensions]; texts of like lengths share a run.

        Raises:
            SetupError: The encoder's outputs are not those that its manifest names.
        """
        rows = self._tokenize(texts)
        embeddings = np.empty((len(rows), self.manifest.dimensions), np.float32)
        for batch in _batches(rows):
            embeddings[batch] = self._run([rows[number] for number in batch])
        return embeddings

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        longest = self.manifest.max_tokens * MAX_CHARS_PER_TOKEN
        encoded = self._tokenizer.encode_batch([text[:longest] for text in texts])
        return [row.ids for row in encoded]

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
        if not np.allclose(np.square(found).sum(axis=1), 1, atol=MAX_LENGTH_ERROR):
            raise SetupError("the encoder returned vectors whose length is not 1")
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


def _session(
    folder: Path, manifest: EncoderManifest, num_threads: int
) -> onnxruntime.InferenceSession:
    runtime = load("onnxruntime", "embeddings need", "onnxruntime", "cpu")
    graph = read_encoder_file(folder, manifest, ENCODER_FILE)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return runtime.InferenceSession(
            graph,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],
        )
    except Exception as error:  # onnxruntime raises its C++ module's classes
        reason = " ".join(str(error).split())
        raise SetupError(f"ONNX Runtime cannot load {folder / ENCODER_FILE}: {reason}") from None


def _tokenizer(folder: Path, manifest: EncoderManifest) -> Tokenizer:
    from tokenizers import Tokenizer  # noqa: PLC0415, searches without embeddings need none

    data = read_encoder_file(folder, manifest, TOKENIZER_FILE)
    try:
        tokenizer: Tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # tokenizers raises plain Exception
        raise SetupError(f"{folder / TOKENIZER_FILE} cannot be read: {error}") from None
    tokenizer.no_padding()
    tokenizer.enable_truncation(manifest.max_tokens)
    return tokenizer
