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
from qa_service.instance.model_folder.manifest import CONFIG_FILE
from qa_service.preparation import shipped
from qa_service.preparation.plain_bert import PlainBert
from qa_service.preparation.quantize import Inputs, quantize
from qa_service.preparation.sources import as_setup_error
from qa_service.progress import progress_bar
from qa_service.retrieval.encoder import MAX_CHARS_PER_TOKEN
from qa_service.retrieval.encoder_folder import (
    ENCODER_FILE,
    KNOWN_FILE,
    MIN_COSINE,
    TOKENIZER_FILE,
    KnownEmbedding,
)

KNOWN_TEXTS = 8
"""Questions and passages that are kept with their embeddings."""

_COMPARED_SHARE = 4
"""One passage in so many is compared: NumPy takes 0.1 s of two cores for each."""

EMBEDDING_INPUTS, EMBEDDING_OUTPUT = ("input_ids", "attention_mask"), "embedding"


def write(source: Path, folder: Path, max_tokens: int) -> tuple[int, float]:
    """Writes the graph in int8, the tokenizer, and the embeddings of known texts.

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
    tokenizer.save(str(folder / TOKENIZER_FILE))
    own = list(read_squad(OWN_QUESTIONS))
    passages = list(dict.fromkeys(question.context for question in own))
    questions = [question.question for question in own]
    inputs = _inputs(tokenizer, [*passages, *questions])
    with tempfile.TemporaryDirectory() as scratch:
        fp32 = Path(scratch, "encoder.onnx")
        onnx.save(shipped.filled(source / shipped.EMBEDDING_GRAPH, weights), str(fp32))
        quantize(fp32, folder / ENCODER_FILE, inputs)
    plain = shipped.plain_bert(weights, config)
    long = " ".join(passages)[: MAX_CHARS_PER_TOKEN * max_tokens]  # is cut after `max_tokens`
    known = [long, *passages[: KNOWN_TEXTS // 2], *questions[: KNOWN_TEXTS // 2]]
    _write_known(plain, tokenizer, known, folder / KNOWN_FILE)
    compared = [*inputs[: len(passages) : _COMPARED_SHARE], *inputs[len(passages) :]]
    return int(config["hidden_size"]), _lowest_cosine(plain, folder / ENCODER_FILE, compared)


def _write_known(plain: PlainBert, tokenizer: Tokenizer, texts: Sequence[str], path: Path) -> None:
    found = [
        KnownEmbedding(text, inputs["input_ids"][0].tolist(), _embed(plain, inputs)[0].tolist())
        for text, inputs in zip(texts, _inputs(tokenizer, texts), strict=True)
    ]
    path.write_bytes(msgspec.json.encode(found))


def _embed(plain: PlainBert, inputs: Inputs) -> FloatArray:
    mean = plain.states(*(inputs[name] for name in EMBEDDING_INPUTS)).mean(axis=1)
    found: FloatArray = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return found


def _inputs(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Inputs]:
    rows = [np.array([tokenizer.encode(text).ids], np.int64) for text in texts]
    return [dict(zip(EMBEDDING_INPUTS, (row, np.ones_like(row)), strict=True)) for row in rows]


def _lowest_cosine(plain: PlainBert, graph: Path, inputs: Sequence[Inputs]) -> float:
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    lowest = 1.0
    for its in progress_bar(iterable=inputs, desc="comparing", unit="text", leave=False):
        ours: FloatArray
        ours, *_ = session.run(None, dict(its))
        lowest = min(lowest, float((ours * _embed(plain, its)).sum()))
    if not lowest >= MIN_COSINE:  # in this form, NaN fails too
        raise SetupError(
            f"the encoder's graph is wrong: an embedding's cosine with NumPy's is {lowest:.3f}"
        )
    return lowest
