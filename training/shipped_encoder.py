"""Makes `models/all-MiniLM-L6-v2`, from which the built-in model is prepared without PyTorch.

    all-MiniLM-L6-v2 ─┬─▶ model.safetensors   its weights in float16, less the pooler
                      ├─▶ config.json, tokenizer.json
                      ├─▶ answers.onnx        the graph of a model over it, fused, without weights
                      ├─▶ answers.plain.onnx  the same with nothing fused
                      └─▶ embedding.onnx      the graph of the sentence encoder, the same

A graph's weight is an empty tensor whose `doc_string` names what it is made of, in the form that
`qa_service.preparation.shipped` reads: `NAME`, `NAME.T` for its transpose, or several of these,
joined along the last axis. So the graphs hold for every adapter.

    python -m training.shipped_encoder DIRECTORY models/all-MiniLM-L6-v2
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer, BertForQuestionAnswering, PreTrainedModel

from qa_service.instance.arrays import FloatArray
from qa_service.preparation import graphs, loading
from qa_service.preparation.loading import LoadedModel
from qa_service.preparation.sentence_graph import EMBEDDING_INPUTS, EMBEDDING_OUTPUT
from qa_service.preparation.shipped import (
    ANSWERS_GRAPH,
    EMBEDDING_GRAPH,
    ENCODER_PREFIX,
    PLAIN_ANSWERS_GRAPH,
)
from qa_service.preparation.source_model import INPUTS, quiet_libraries

MIN_SIZE = 2
"""Elements of a weight; what is smaller is a constant of the graph."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="all-MiniLM-L6-v2, as it was published")
    parser.add_argument("target", type=Path, help="the folder to write")
    flags = parser.parse_args()
    with quiet_libraries():
        ship(flags.source, flags.target)
    return 0


def ship(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    encoder = _encoder(AutoModel, source)
    kept = {name: value for name, value in _arrays(encoder).items() if "pooler" not in name}
    halves = {name: value.astype(np.float16) for name, value in kept.items()}
    save_file(halves, target / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_bytes())
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(source).backend_tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(target / "tokenizer.json"))

    torch.manual_seed(0)
    answering = _encoder(BertForQuestionAnswering, source)
    loaded = LoadedModel(
        model=answering, tokenizer=tokenizer, inputs=INPUTS[:2], max_sequence_tokens=512
    )

    def write_answers(path: Path) -> None:
        loading.export_onnx(loaded, path)

    def write_fused_answers(path: Path) -> None:
        write_answers(path)
        graphs.fuse(path, encoder.config.num_attention_heads, encoder.config.hidden_size)

    def write_embedding(path: Path) -> None:
        export_embedding(encoder, path)
        graphs.fuse(path, encoder.config.num_attention_heads, encoder.config.hidden_size)

    _write(target / PLAIN_ANSWERS_GRAPH, answering, "", write_answers)
    _write(target / ANSWERS_GRAPH, answering, "", write_fused_answers)
    _write(target / EMBEDDING_GRAPH, encoder, ENCODER_PREFIX, write_embedding)


class _Sentence(torch.nn.Module):
    """The mean of a text's states, of length 1."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        is_read = mask.unsqueeze(-1).to(states.dtype)
        mean = (states * is_read).sum(1) / is_read.sum(1)
        embedding: torch.Tensor = mean / mean.norm(dim=1, keepdim=True)
        return embedding


def export_embedding(model: PreTrainedModel, path: Path) -> None:
    """Writes a sentence encoder's graph: a text's tokens in, the mean of their states out.

    Inputs `input_ids` and `attention_mask`: int64 [batch, sequence]; output `embedding`: float32
    [batch, dimensions], of length 1.
    """
    ids = torch.arange(1000, 1032).reshape(2, 16)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    example = dict(zip(EMBEDDING_INPUTS, (ids, mask), strict=True))
    axes = {name: {0: "batch", 1: "sequence"} for name in EMBEDDING_INPUTS}
    axes[EMBEDDING_OUTPUT] = {0: "batch"}
    loading.write_traced(_Sentence(model), example, [EMBEDDING_OUTPUT], axes, path)


def _encoder(kind: type, source: Path) -> PreTrainedModel:
    model: PreTrainedModel = kind.from_pretrained(  # type: ignore[attr-defined]
        source, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return model.eval()  # type: ignore[no-untyped-call, no-any-return]


def _arrays(model: PreTrainedModel) -> dict[str, FloatArray]:
    return {name: value.numpy() for name, value in model.state_dict().items()}


def _write(
    path: Path, model: PreTrainedModel, prefix: str, write_whole: Callable[[Path], None]
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, "whole.onnx")
        write_whole(whole)
        graph = onnx.load(str(whole))
    weights = {prefix + name: value for name, value in _arrays(model).items()}
    for tensor in graph.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype == np.float32 and value.size >= MIN_SIZE:
            tensor.doc_string = _recipe(tensor.name, value, weights)
            tensor.ClearField("raw_data")
    onnx.save(graph, str(path))


def _recipe(name: str, value: FloatArray, weights: Mapping[str, FloatArray]) -> str:
    for names in _candidates(weights):
        parts = [weights[n.removesuffix(".T")].T if n.endswith(".T") else weights[n] for n in names]
        if sum(p.shape[-1] for p in parts) == value.shape[-1] and parts[0].ndim == value.ndim:
            joined = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
            if np.array_equal(joined, value):
                return " ".join(names)
    raise SystemExit(f"the graph's {name} {value.shape} is made of none of the model's weights")


def _candidates(weights: Mapping[str, FloatArray]) -> Iterator[tuple[str, ...]]:
    single = [(name,) for name in weights]
    transposed = [(f"{name}.T",) for name, value in weights.items() if value.ndim == 2]
    joined = []
    for name, value in weights.items():
        head, found, tail = name.partition(".query.")
        if found:
            end = ".T" if value.ndim == 2 else ""
            joined.append(tuple(f"{head}.{part}.{tail}{end}" for part in ("query", "key", "value")))
    return itertools.chain(single, transposed, joined)


if __name__ == "__main__":
    sys.exit(main())
