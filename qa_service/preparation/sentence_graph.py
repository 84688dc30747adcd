"""Makes the graph of the sentence encoder in int8, and compares it with NumPy.

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

from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.errors import SetupError
from qa_service.instance.arrays import FloatArray
from qa_service.instance.model_folder.manifest import CONFIG_FILE, TOKENIZER_FILE
from qa_service.preparation import shipped
from qa_service.preparation.plain_bert import PlainBert
from qa_service.preparation.quantize import Inputs, quantize
from qa_service.preparation.sources import as_setup_error
from qa_service.progress import progress_bar

MIN_COSINE = 0.95
"""Between the embeddings of a question by the graph and by NumPy. The encoder's lowest is above
0.99; a broken graph has about 0."""

_COMPARED_SHARE = 4
"""One passage in so many is compared: NumPy takes 0.1 s of two cores for each."""

EMBEDDING_INPUTS, EMBEDDING_OUTPUT = ("input_ids", "attention_mask"), "embedding"


def write(source: Path, graph: Path, tokenizer_file: Path, max_tokens: int) -> tuple[int, float]:
    """Writes the graph in int8, and the tokenizer.

    Returns:
        The number of dimensions, and the lowest cosine between an embedding of the graph and
        NumPy's.

    Raises:
        SetupError: The model cannot be loaded or converted, or its embeddings are others.
    """
    with as_setup_error("the encoder cannot be loaded"):
        tokenizer = Tokenizer.from_file(str(source / TOKENIZER_FILE))
        weights = shipped.encoder_weights(source)
        config = msgspec.json.decode((source / CONFIG_FILE).read_bytes(), type=dict)
    tokenizer.enable_truncation(max_tokens)
    tokenizer.save(str(tokenizer_file))
    own = list(read_squad(OWN_QUESTIONS))
    passages = _inputs(tokenizer, dict.fromkeys(question.context for question in own))
    questions = _inputs(tokenizer, [question.question for question in own])
    with tempfile.TemporaryDirectory() as scratch:
        fp32 = Path(scratch, "encoder.onnx")
        onnx.save(shipped.filled(source / shipped.EMBEDDING_GRAPH, weights), str(fp32))
        quantize(fp32, graph, [*passages, *questions])
    plain = shipped.plain_bert(weights, config)
    compared = [*passages[::_COMPARED_SHARE], *questions]
    return int(config["hidden_size"]), _lowest_cosine(plain, graph, compared)


def _inputs(tokenizer: Tokenizer, texts: Sequence[str] | dict[str, None]) -> list[Inputs]:
    rows = [np.array([tokenizer.encode(text).ids], np.int64) for text in texts]
    return [dict(zip(EMBEDDING_INPUTS, (row, np.ones_like(row)), strict=True)) for row in rows]


def _lowest_cosine(plain: PlainBert, graph: Path, inputs: Sequence[Inputs]) -> float:
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    lowest = 1.0
    for its in progress_bar(iterable=inputs, desc="comparing", unit="text", leave=False):
        ours: FloatArray
        ours, *_ = session.run(None, dict(its))
        mean = plain.states(*(its[name] for name in EMBEDDING_INPUTS)).mean(axis=1)
        theirs = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        lowest = min(lowest, float((ours * theirs).sum()))
    if not lowest >= MIN_COSINE:  # in this form, NaN fails too
        raise SetupError(
            f"the encoder's graph is wrong: an embedding's cosine with NumPy's is {lowest:.3f}"
        )
    return lowest
