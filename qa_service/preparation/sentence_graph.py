"""Makes the graph of the sentence encoder in int8, and compares it with what is known of it.

    input_ids, attention_mask ─▶ layers ─▶ mean over tokens ─▶ / length ─▶ embedding

`embedding` is float32 [batch, dimensions]; the inputs are int64 [batch, sequence].
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
from tokenizers import Tokenizer

from qa_service.engine_catalogue import PYTORCH_FILE
from qa_service.errors import SetupError
from qa_service.instance.arrays import FloatArray
from qa_service.instance.model_folder.manifest import CONFIG_FILE
from qa_service.preparation import shipped
from qa_service.preparation.encoders import RESULTS_FILE, identity, load_results
from qa_service.preparation.quantize import Inputs, quantize_as_before
from qa_service.preparation.sources import as_setup_error
from qa_service.retrieval.encoder_folder import (
    ENCODER_FILE,
    KNOWN_FILE,
    MIN_COSINE,
    TOKENIZER_FILE,
    KnownEmbedding,
)

EMBEDDING_INPUTS, EMBEDDING_OUTPUT = ("input_ids", "attention_mask"), "embedding"


def write(source: Path, folder: Path, max_tokens: int) -> tuple[int, float]:
    """Writes the graph in int8, the tokenizer, and the embeddings of known texts.

    Returns the number of dimensions, and the lowest cosine of an embedding with NumPy's.
    """
    with as_setup_error("the encoder cannot be loaded"):
        tokenizer = Tokenizer.from_file(str(source / TOKENIZER_FILE))
        weights = shipped.encoder_weights(source)
        config = msgspec.json.decode((source / CONFIG_FILE).read_bytes(), type=dict)
        results = load_results(source, identity_of(source))
        if results is None:
            raise ValueError(f"its {RESULTS_FILE} is missing, or another encoder's")
        known = msgspec.json.decode(results.known, type=list[KnownEmbedding])
    tokenizer.enable_truncation(max_tokens)
    with as_setup_error("the encoder's tokenizer cannot be written"):  # a full disk included
        tokenizer.save(str(folder / TOKENIZER_FILE))
    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # goes with it if this run is killed
        fp32 = Path(scratch, "encoder.onnx")
        onnx.save(shipped.filled(source / shipped.EMBEDDING_GRAPH, weights), str(fp32))
        quantize_as_before(fp32, folder / ENCODER_FILE, results.corrections)
    (folder / KNOWN_FILE).write_bytes(results.known)
    return int(config["hidden_size"]), lowest_cosine(folder / ENCODER_FILE, known)


def identity_of(source: Path) -> str:
    """A hash of all that the graph is made of."""
    names = (PYTORCH_FILE, CONFIG_FILE, TOKENIZER_FILE, shipped.EMBEDDING_GRAPH)
    return identity(source / name for name in names)


def graph_input(ids: Sequence[int]) -> Inputs:
    row = np.array([ids], np.int64)
    return dict(zip(EMBEDDING_INPUTS, (row, np.ones_like(row)), strict=True))


def lowest_cosine(graph: Path, compared: Sequence[KnownEmbedding]) -> float:
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    lowest = 1.0
    for one in compared:
        ours: FloatArray
        ours, *_ = session.run(None, dict(graph_input(one.ids)))
        lowest = min(lowest, float(ours[0] @ np.array(one.embedding, np.float32)))
    if not lowest >= MIN_COSINE:  # in this form, NaN fails too
        raise SetupError(
            f"the encoder's graph is wrong: an embedding's cosine with NumPy's is {lowest:.3f}"
        )
    return lowest
