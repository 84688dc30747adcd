"""The built-in model and the encoder of passages, put together without PyTorch.

    data/models/all-MiniLM-L6-v2: model.safetensors (float16) ─┬─▶ weights ─┬─▶ answers.onnx, filled
    data/models/builtin: adapter_model.safetensors (LoRA) ─────┘            └─▶ model.safetensors

A shipped graph's weights are empty; each one's `doc_string` names what it is made of, see `filled`.
`training/shipped_encoder.py` made the folder; where PyTorch is installed, a test compares what is
put together here with what transformers, peft and torch's export make.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from qa_service.engine_catalogue import PYTORCH_FILE
from qa_service.errors import SetupError
from qa_service.instance.arrays import FloatArray, Int64Array, Logits
from qa_service.instance.model_folder.manifest import CONFIG_FILE, TOKENIZER_FILE
from qa_service.preparation.plain_bert import PlainBert
from qa_service.preparation.sources import Source, first_line

ANSWERS_GRAPH, PLAIN_ANSWERS_GRAPH = "answers.onnx", "answers.plain.onnx"
"""With the attention fused, and without."""
EMBEDDING_GRAPH = "embedding.onnx"
ENCODER_PREFIX = "bert."
"""What the names of the encoder's weights begin with in a model over it."""

_LAST_LAYER = ("qa_outputs.bias", "qa_outputs.weight")
_IN_ADAPTER = "base_model.model."
_NOT_WEIGHTS = (".lora_B.", ".modules_to_save.", ".original_module.")
"""The last two are what `peft` saves twice where an adapter has biases and whole layers."""


@dataclass(frozen=True, slots=True)
class ShippedModel:
    """A `SourceModel` that is an adapter over the shipped encoder."""

    source: Source
    weights: Mapping[str, FloatArray]
    config: Mapping[str, int]
    tokenizer: Tokenizer
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    pad_token_id: int = 0
    null_position: int = 0
    may_pad: bool = True

    @property
    def max_sequence_tokens(self) -> int:
        return self.config["max_position_embeddings"]

    def logits(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        """Start and end logits, by NumPy; the types count for nothing."""
        states = plain_bert(self.weights, self.config).states(ids, mask)
        logits = states @ self.weights["qa_outputs.weight"].T + self.weights["qa_outputs.bias"]
        return logits[..., 0], logits[..., 1]

    def save(self, folder: Path) -> None:
        config = {**self.config, "architectures": ["BertForQuestionAnswering"], "dtype": "float32"}
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        save_file(dict(self.weights), folder / PYTORCH_FILE, {"format": "pt"})
        shutil.copymode(folder / CONFIG_FILE, folder / PYTORCH_FILE)
        self.tokenizer.save(str(folder / TOKENIZER_FILE))

    def write_graph(self, path: Path) -> int:
        onnx.save(filled(self.source.model_dir / ANSWERS_GRAPH, self.weights), str(path))
        return self.config["num_hidden_layers"]

    def write_plain_graph(self, path: Path) -> None:
        onnx.save(filled(self.source.model_dir / PLAIN_ANSWERS_GRAPH, self.weights), str(path))


def load(source: Source) -> ShippedModel:
    """Puts a shipped model together."""
    assert source.adapter_dir is not None
    try:
        weights = merged(encoder_weights(source.model_dir), source.adapter_dir)
        config = json.loads((source.model_dir / CONFIG_FILE).read_bytes())
        tokenizer = Tokenizer.from_file(str(source.model_dir / TOKENIZER_FILE))
    except Exception as error:  # tokenizers and safetensors raise their own kinds
        raise SetupError(f"the files of {source.label} are damaged: {first_line(error)}") from None
    return ShippedModel(source, weights, config, tokenizer)


def encoder_weights(folder: Path) -> dict[str, FloatArray]:
    """The encoder's weights in float32, by their names in a model over it."""
    halves = load_file(folder / PYTORCH_FILE)
    return {ENCODER_PREFIX + name: half.astype(np.float32) for name, half in halves.items()}


def merged(weights: Mapping[str, FloatArray], adapter_dir: Path) -> dict[str, FloatArray]:
    """Adds an adapter to an encoder's weights, as `peft`'s `merge_and_unload` does.

    A layer's weight W becomes W + B A alpha / rank (E. Hu et al., "LoRA", 2021); the adapter's
    biases, normalizations and last layer replace the encoder's.
    """
    adapter = load_file(adapter_dir / "adapter_model.safetensors")
    config = json.loads((adapter_dir / "adapter_config.json").read_bytes())
    scale = np.float32(config["lora_alpha"] / config["r"])
    result = dict(weights)
    for key, half in adapter.items():
        name = key.removeprefix(_IN_ADAPTER).replace(".base_layer.", ".")
        value = half.astype(np.float32)
        if name.endswith(".lora_A.weight"):
            layer = name.removesuffix("lora_A.weight") + "weight"
            left = adapter[key.replace(".lora_A.", ".lora_B.")].astype(np.float32)
            result[layer] = weights[layer] + scale * (left @ value)
        elif not any(part in name for part in _NOT_WEIGHTS):
            result[name] = value
    if unfit := result.keys() ^ {*weights, *_LAST_LAYER}:
        raise SetupError(f"the adapter lacks, or has too much: {', '.join(sorted(unfit)[:3])}")
    return result


def filled(graph: Path, weights: Mapping[str, FloatArray]) -> onnx.ModelProto:
    """A shipped graph with its weights.

    An empty tensor's `doc_string` is `NAME`, `NAME.T` for a transpose, or several of these, joined
    along the last axis.
    """
    model = onnx.load(str(graph))
    for tensor in model.graph.initializer:
        if not tensor.doc_string:
            continue
        parts = [
            weights[name.removesuffix(".T")].T if name.endswith(".T") else weights[name]
            for name in tensor.doc_string.split()
        ]
        value = np.ascontiguousarray(np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0])
        if value.shape != tuple(tensor.dims):
            raise SetupError(f"{graph}: {tensor.name} is not of the shape of its weights")
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return model


def plain_bert(weights: Mapping[str, FloatArray], config: Mapping[str, int]) -> PlainBert:
    heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
    return PlainBert(weights, ENCODER_PREFIX, heads, epsilon)
