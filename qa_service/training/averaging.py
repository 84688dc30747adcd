"""The average of several adapters: one adapter, often better than each.

The average of the weights of models fine-tuned from the same start is as good as their ensemble, at
the cost of one (Wortsman et al. 2022, "Model soups").
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel

from qa_service.training.adapters import Encoder, adapter_of, build_whole_model


def average_adapters(encoder: Encoder, adapters: Sequence[Path], rank: int) -> PeftModel:
    """Builds the adapter of a rank nearest to the mean of adapters, named by their folders."""
    average = build_whole_model(encoder, adapters[0])
    total = {name: torch.zeros_like(weight) for name, weight in average.state_dict().items()}
    for folder in adapters:
        for name, weight in build_whole_model(encoder, folder).state_dict().items():
            total[name] += weight / len(adapters)
    average.load_state_dict(total)
    return adapter_of(average, encoder, rank)
