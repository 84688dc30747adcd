"""The built-in model and the encoder of passages, put together without PyTorch.

    data/models/all-MiniLM-L6-v2: model.safetensors (float16) ─┬─▶ weights ─┬─▶ answers.onnx, filled
    data/models/builtin: adapter_model.safetensors (LoRA) ─────┘            └─▶ model.safetensors

A shipped graph's weights are empty; each one's `doc_string` names what it is made of, see `filled`.
`training/shipped_encoder.py` made the folder; where PyTorch is installed, a test compares what is
put together here with what transformers, peft and torch's export make.

A graph is compared with `PlainBert`, in NumPy: J. Devlin et al., "BERT", 2019, and A. Vaswani et
al., "Attention Is All You Need", 2017, with the GELU of D. Hendrycks and K. Gimpel, 2016. It is
written from the papers and shares nothing with the engines, so that a wrong graph, weight or
kernel shows. It takes about as long as PyTorch.
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
from qa_service.preparation.source_model import INPUTS, SourceModel
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
_HIDDEN = np.float32(-1e30)
"""Added to the attention score of a padding token: its share of a softmax is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedModel(SourceModel):
    """An adapter over the shipped encoder."""

    source: Source
    weights: Mapping[str, FloatArray]
    config: Mapping[str, int]

    def logits(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        """Start and end logits, by NumPy; the types count for nothing."""
        states = PlainBert(self.weights, self.config).states(ids, mask)
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
    assert source.adapter_dir is not None
    try:
        weights = merged(encoder_weights(source.model_dir), source.adapter_dir)
        config = json.loads((source.model_dir / CONFIG_FILE).read_bytes())
        tokenizer = Tokenizer.from_file(str(source.model_dir / TOKENIZER_FILE))
    except Exception as error:  # tokenizers and safetensors raise their own kinds
        raise SetupError(f"the files of {source.label} are damaged: {first_line(error)}") from None
    return ShippedModel(
        source=source,
        weights=weights,
        config=config,
        tokenizer=tokenizer,
        inputs=INPUTS[:2],
        max_sequence_tokens=config["max_position_embeddings"],
    )


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


class PlainBert:
    """An encoder of BERT's architecture.

    Args:
        weights: float32, by the names that transformers gives them, after `ENCODER_PREFIX`.
        config: As transformers has it.
    """

    def __init__(self, weights: Mapping[str, FloatArray], config: Mapping[str, int]) -> None:
        self._weights = weights
        self._num_heads = config["num_attention_heads"]
        self._epsilon = np.float32(config["layer_norm_eps"])
        self._num_layers = len({n for n in weights if n.endswith("intermediate.dense.weight")})

    def states(self, ids: Int64Array, mask: Int64Array) -> FloatArray:
        """The last layer's states, float32 [batch, seq, hidden], of tokens of the first type.

        Args:
            ids: int64 [batch, seq].
            mask: int64 [batch, seq], 0 for padding.
        """
        table = {
            kind: self._weights[f"{ENCODER_PREFIX}embeddings.{kind}_embeddings.weight"]
            for kind in ("word", "position", "token_type")
        }
        summed = table["word"][ids] + table["position"][: ids.shape[1]] + table["token_type"][0]
        states = self._normalized(summed, "embeddings.LayerNorm")
        hidden = np.where(mask[:, None, None, :] == 1, np.float32(0), _HIDDEN)
        for number in range(self._num_layers):
            layer = f"encoder.layer.{number}"
            read = self._attention(states, hidden, f"{layer}.attention.self")
            read = self._product(read, f"{layer}.attention.output.dense")
            states = self._normalized(states + read, f"{layer}.attention.output.LayerNorm")
            inner = _gelu(self._product(states, f"{layer}.intermediate.dense"))
            outer = self._product(inner, f"{layer}.output.dense")
            states = self._normalized(states + outer, f"{layer}.output.LayerNorm")
        return states

    def _attention(self, states: FloatArray, hidden: FloatArray, name: str) -> FloatArray:
        """What each token reads: the values, weighted by how its query fits their keys."""
        batch, tokens, width = states.shape

        def heads(part: str) -> FloatArray:
            product = self._product(states, f"{name}.{part}")
            return product.reshape(batch, tokens, self._num_heads, -1).transpose(0, 2, 1, 3)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(np.float32(query.shape[-1])) + hidden
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        read: FloatArray = (shares @ value).transpose(0, 2, 1, 3).reshape(batch, tokens, width)
        return read

    def _of(self, name: str) -> tuple[FloatArray, FloatArray]:
        path = f"{ENCODER_PREFIX}{name}"
        return self._weights[f"{path}.weight"], self._weights[f"{path}.bias"]

    def _product(self, states: FloatArray, name: str) -> FloatArray:
        weight, bias = self._of(name)
        product: FloatArray = states @ weight.T + bias
        return product

    def _normalized(self, states: FloatArray, name: str) -> FloatArray:
        weight, bias = self._of(name)
        centred = states - states.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        normalized: FloatArray = centred / np.sqrt(variance + self._epsilon) * weight + bias
        return normalized


def _gelu(states: FloatArray) -> FloatArray:
    """With the error function to 1.5e-7: Abramowitz and Stegun, 1964, formula 7.1.26."""
    values = states / np.float32(np.sqrt(2))
    size = np.abs(values)
    t = 1 / (1 + np.float32(0.3275911) * size)
    factors = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    total = np.zeros_like(t)
    for factor in factors:
        total = (total + np.float32(factor)) * t
    error = np.copysign(1 - total * np.exp(-size * size), values)
    scaled: FloatArray = states * np.float32(0.5) * (1 + error)
    return scaled
