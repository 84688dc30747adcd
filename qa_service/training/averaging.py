"""The average of several adapters: one adapter, often better than each.

Models fine-tuned from the same start lie in one basin, where the average of their weights is
as good as their ensemble at the cost of one (Wortsman et al. 2022, "Model soups"). What is
averaged is the change of every weight, `B @ A`, not the factors; its best approximation of the
wanted rank is its truncated singular value decomposition.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file

from qa_service.training.adapters import WEIGHTS_FILE, build_model

_Weights = dict[str, torch.Tensor]


def average_adapters(adapters: Sequence[Path], rank: int) -> PeftModel:
    """Builds the model whose weights are the mean of several adapters'.

    Args:
        adapters: Folders of adapters over the same encoder, with `alpha` twice their rank.
        rank: Of the average.
    """
    model = build_model(rank)
    weights = [load_file(folder / WEIGHTS_FILE) for folder in adapters]
    averaged: _Weights = {}
    for name in get_peft_model_state_dict(model):
        if "lora_A" in name:
            name_b = name.replace("lora_A", "lora_B")
            averaged[name], averaged[name_b] = _factors(_mean_change(weights, name, name_b), rank)
        elif "lora_B" not in name:
            averaged[name] = torch.stack([w[name].float() for w in weights]).mean(dim=0)
    set_peft_model_state_dict(model, averaged)
    return model


def _mean_change(weights: Sequence[_Weights], name_a: str, name_b: str) -> torch.Tensor:
    """The mean of `B @ A`: float32 [outputs, inputs]."""
    changes = [w[name_b].float() @ w[name_a].float() for w in weights]
    return torch.stack(changes).mean(dim=0)


def _factors(change: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rank, inputs] and B [outputs, rank], equally large, whose product is nearest."""
    left, strengths, right = torch.linalg.svd(change, full_matrices=False)
    roots = strengths[:rank].sqrt()
    return roots[:, None] * right[:rank], left[:, :rank] * roots
