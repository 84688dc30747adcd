"""Makes the graph of a sentence encoder in int8, and compares it with PyTorch.

    input_ids, attention_mask ─▶ layers ─▶ mean over tokens ─▶ / length ─▶ embedding

`embedding` is float32 [batch, dimensions]; the inputs are int64 [batch, sequence].
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.errors import SetupError
from qa_service.instance.arrays import FloatArray
from qa_service.preparation.export import OPSET, fuse, silent_stdout
from qa_service.preparation.quantize import Inputs, quantize
from qa_service.preparation.sources import as_setup_error
from qa_service.progress import progress_bar

MIN_COSINE = 0.95
"""Between the embeddings of a question by the graph and by PyTorch. The encoder's lowest is above
0.99; a broken graph has about 0."""

_INPUTS = ("input_ids", "attention_mask")
_OUTPUT = "embedding"


class _Sentence(torch.nn.Module):
    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        is_read = mask.unsqueeze(-1).to(states.dtype)
        mean = (states * is_read).sum(1) / is_read.sum(1)
        embedding: torch.Tensor = mean / mean.norm(dim=1, keepdim=True)
        return embedding


def write(source: Path, graph: Path, tokenizer_file: Path, max_tokens: int) -> tuple[int, float]:
    """Writes the graph in int8, and the tokenizer.

    Returns:
        The number of dimensions, and the lowest cosine between an embedding of the graph and
        PyTorch's.

    Raises:
        SetupError: The model cannot be loaded or converted, or its embeddings are others.
    """
    with as_setup_error("the encoder cannot be loaded"):
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(source).backend_tokenizer
        model = AutoModel.from_pretrained(
            source, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        ).eval()
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    tokenizer.save(str(tokenizer_file))
    own = list(read_squad(OWN_QUESTIONS))
    passages = _inputs(tokenizer, dict.fromkeys(question.context for question in own))
    questions = _inputs(tokenizer, [question.question for question in own])
    with tempfile.TemporaryDirectory() as scratch:
        fp32 = Path(scratch, "encoder.onnx")
        _export(model, fp32)
        quantize(fp32, graph, [*passages, *questions])
    return int(model.config.hidden_size), _lowest_cosine(model, graph, [*passages, *questions])


def _inputs(tokenizer: Tokenizer, texts: Sequence[str] | dict[str, None]) -> list[Inputs]:
    rows = [np.array([tokenizer.encode(text).ids], np.int64) for text in texts]
    return [dict(zip(_INPUTS, (row, np.ones_like(row)), strict=True)) for row in rows]


def _export(model: PreTrainedModel, path: Path) -> None:
    ids = torch.arange(1000, 1032).reshape(2, 16)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    axes = {name: {0: "batch", 1: "sequence"} for name in _INPUTS}
    with as_setup_error("the encoder cannot be exported to ONNX"), silent_stdout():
        torch.onnx.export(
            _Sentence(model).eval(),
            (ids, mask),
            str(path),
            input_names=list(_INPUTS),
            output_names=[_OUTPUT],
            dynamic_axes={**axes, _OUTPUT: {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )
    fuse(path, model.config)


def _lowest_cosine(model: PreTrainedModel, graph: Path, inputs: Sequence[Inputs]) -> float:
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    lowest = 1.0
    for its in progress_bar(iterable=inputs, desc="comparing", unit="text", leave=False):
        ours: FloatArray
        ours, *_ = session.run(None, dict(its))
        with torch.no_grad():
            theirs = _Sentence(model)(*(torch.from_numpy(its[name]) for name in _INPUTS)).numpy()
        lowest = min(lowest, float((ours * theirs).sum()))
    if not lowest >= MIN_COSINE:  # in this form, NaN fails too
        raise SetupError(
            f"the encoder's graph is wrong: an embedding's cosine with PyTorch's is {lowest:.3f}"
        )
    return lowest
