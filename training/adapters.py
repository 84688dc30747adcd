"""The trained model: a frozen encoder with low-rank adapters and a span head; or a whole model.

LoRA (Hu et al., 2021) adds `alpha / rank * B @ A` to the weight of every dense layer. An adapter
can start from another of lower rank, whose factors fill the first rows and columns: new rows of A
are random and the matching columns of B zero, so that the function is the same.

A small encoder may also be trained whole, in about the same time. It too ships as an adapter: the
truncated singular value decomposition of each weight's change, and all biases and normalisations.

The average of the weights of models fine-tuned from the same start is as good as their ensemble, at
the cost of one (Wortsman et al. 2022, "Model soups").

In training, products are rounded as the int8 engines round them (quantization-aware training): each
output's weights have one scale, and each token's activations. The gradient ignores the rounding
(the straight-through estimator; Bengio et al., 2013; Jacob et al., "Quantization and Training of
Neural Networks", 2018).
"""

from __future__ import annotations

import functools
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora import Linear
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForQuestionAnswering, PreTrainedModel

from qa_service.instance.model_folder.manifest import TOKENIZER_FILE

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"

_SCALE = 2
"""`alpha / rank` of every adapter made here, so that one can grow from another."""

_DENSE_LAYERS = {
    "bert": ["query", "key", "value", "dense"],
    "mpnet": ["q", "k", "v", "o", "dense"],
}
_HEAD = "qa_outputs"
_NORMALISATION = "LayerNorm"
_WEIGHT_STEPS = 64
_ACTIVATION_STEPS = 127
"""As `preparation.quantize` has them: its weights leave a bit free, its activations none."""


@dataclass(frozen=True, slots=True)
class Encoder:
    name: str
    directory: Path

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self.directory / TOKENIZER_FILE))

    def pad_token_id(self) -> int:
        """The id that it was trained to see as padding."""
        return int(AutoConfig.from_pretrained(self.directory).pad_token_id or 0)

    def load(self) -> PreTrainedModel:
        """Loads it under an untrained span head, without dropout: no question is seen often.

        Its weights are float32, in whatever the file has them.
        """
        model: PreTrainedModel = AutoModelForQuestionAnswering.from_pretrained(
            self.directory,
            dtype=torch.float32,
            attention_probs_dropout_prob=0.0,
            hidden_dropout_prob=0.0,
            local_files_only=True,
        )
        return model


def build_model(encoder: Encoder, rank: int, init: Path | None = None) -> PeftModel:
    """Builds the encoder with adapters of a rank, new or grown from the adapter in `init`.

    Raises:
        ValueError: The adapter to start from has a higher rank, or another scale.
    """
    adapted = _with_adapters(encoder, rank, bias="none", saved=[_HEAD])
    if init is not None:
        set_peft_model_state_dict(adapted, _grown(init, rank))
    return adapted


def build_whole_model(encoder: Encoder, init: Path | None = None) -> PreTrainedModel:
    """Builds a plain model to train except its embeddings, which no adapter could hold."""
    model = encoder.load()
    if init is not None:
        merged = PeftModel.from_pretrained(model, str(init)).merge_and_unload()
        assert isinstance(merged, PreTrainedModel)
        model = merged
    for name, weight in model.named_parameters():
        weight.requires_grad_("embeddings" not in name)
    return model


def freeze_layers(model: nn.Module, count: int) -> None:
    """Leaves the lowest layers of an encoder untrained: nothing is computed back through them."""
    names = tuple(f"encoder.layer.{number}." for number in range(count))
    for name, weight in model.named_parameters():
        if any(layer in name for layer in names):
            weight.requires_grad_(False)


def adapter_of(model: nn.Module, encoder: Encoder, rank: int) -> PeftModel:
    """Makes the adapter of a rank that is nearest to a model trained whole from the encoder."""
    adapted = _with_adapters(encoder, rank, bias="all", saved=[_HEAD, _NORMALISATION])
    trained = dict(model.named_modules())
    with torch.no_grad():
        for name, layer in adapted.get_base_model().named_modules():
            other = trained.get(name)
            if hasattr(layer, "lora_A") and isinstance(other, nn.Linear):
                factor_a, factor_b = factors(other.weight - layer.base_layer.weight, rank)
                layer.lora_A["default"].weight.copy_(factor_a / math.sqrt(_SCALE))
                layer.lora_B["default"].weight.copy_(factor_b / math.sqrt(_SCALE))
                layer.base_layer.bias.copy_(other.bias)
            elif hasattr(layer, "modules_to_save") and other is not None:
                layer.modules_to_save["default"].load_state_dict(other.state_dict())
    return adapted


def average_adapters(encoder: Encoder, adapters: Sequence[Path], rank: int) -> PeftModel:
    """Makes the adapter of a rank that is nearest to the mean of adapters, given as folders."""
    average = build_whole_model(encoder, adapters[0])
    total = {name: torch.zeros_like(weight) for name, weight in average.state_dict().items()}
    for folder in adapters:
        for name, weight in build_whole_model(encoder, folder).state_dict().items():
            total[name] += weight / len(adapters)
    average.load_state_dict(total)
    return adapter_of(average, encoder, rank)


def factors(change: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rank, inputs] and B [outputs, rank], of equal norm, whose product is nearest."""
    left, strengths, right = torch.linalg.svd(change, full_matrices=False)
    roots = strengths[:rank].sqrt()
    return roots[:, None] * right[:rank], left[:, :rank] * roots


def _with_adapters(
    encoder: Encoder, rank: int, bias: Literal["none", "all"], saved: list[str]
) -> PeftModel:
    model = encoder.load()
    model.name_or_path = encoder.name
    config = LoraConfig(
        r=rank,
        lora_alpha=_SCALE * rank,
        bias=bias,
        target_modules=_DENSE_LAYERS[model.config.model_type],
        modules_to_save=saved,
        task_type="QUESTION_ANS",
        base_model_name_or_path=encoder.name,
    )
    adapted = get_peft_model(model, config)
    for layer in adapted.modules():
        if hasattr(layer, "lora_A"):
            # Autocast casts what a product needs; peft would cast it back first.
            setattr(layer, "cast_input_dtype_enabled", False)  # noqa: B010 - not in its type
    return adapted


def _grown(init: Path, rank: int) -> dict[str, torch.Tensor]:
    """The factors of an adapter, float32, extended to a higher rank."""
    config = json.loads((init / CONFIG_FILE).read_text())
    if config["r"] > rank or config["lora_alpha"] != _SCALE * config["r"]:
        raise ValueError(f"{init}: its rank must be at most {rank} and its alpha twice its rank")
    weights = load_file(init / WEIGHTS_FILE)
    return {name: _filled(name, weight.float(), rank) for name, weight in weights.items()}


def _filled(name: str, factor: torch.Tensor, rank: int) -> torch.Tensor:
    """A factor with new rows (A, random) or columns (B, zero) up to the rank."""
    if "lora_A" in name:
        new = torch.empty(rank - factor.shape[0], factor.shape[1])
        bound = 1 / math.sqrt(factor.shape[1])
        return torch.cat([factor, new.uniform_(-bound, bound)])
    if "lora_B" in name:
        return torch.cat([factor, torch.zeros(factor.shape[0], rank - factor.shape[1])], dim=1)
    return factor


def save_adapter(model: PeftModel, directory: Path) -> None:
    """Writes the adapter in peft's format, its weights as float16."""
    model.save_pretrained(str(directory), save_embedding_layers=False)
    weights = load_file(directory / WEIGHTS_FILE)
    save_file({name: w.half() for name, w in weights.items()}, directory / WEIGHTS_FILE)
    # safetensors writes files that only the owner can read.
    shutil.copymode(directory / CONFIG_FILE, directory / WEIGHTS_FILE)
    (directory / "README.md").unlink(missing_ok=True)


def round_products(model: nn.Module) -> None:
    """Makes every adapted layer round its factors in training mode."""
    for layer in model.modules():
        if isinstance(layer, Linear):
            rounding = functools.partial(_product, layer, layer.forward)
            layer.forward = rounding  # type: ignore[method-assign]


def _product(
    layer: Linear, exact: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor
) -> torch.Tensor:
    if not layer.training:
        return exact(states)
    base = layer.get_base_layer()
    assert isinstance(base, nn.Linear)
    weight = rounded(base.weight + layer.get_delta_weight("default"), _WEIGHT_STEPS)
    return functional.linear(rounded(states, _ACTIVATION_STEPS), weight, base.bias)


def rounded(values: torch.Tensor, steps: int) -> torch.Tensor:
    """Rounds float [..., columns] to `steps` steps from zero to each row's largest value."""
    with torch.no_grad():
        scale = values.detach().abs().amax(dim=-1, keepdim=True).clamp_min(1e-9) / steps
        error = (values / scale).round_().mul_(scale).sub_(values)
    return values + error
