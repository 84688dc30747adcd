"""A model in training, with the server's reader."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from qa_service.inference.arrays import Int64Array, Logits, LogitsFunction
from qa_service.inference.reader.reader import Reader
from qa_service.repository.manifest import Manifest, ReadingConfig
from qa_service.scheduling.batch_cost import BatchRule
from qa_service.training.adapters import Encoder
from qa_service.training.trainer import autocast, training_device

_LIMITS = BatchRule(max_batch_size=64, max_batch_tokens=8192)
"""Large batches: nobody waits for a single answer."""


def model_logits(model: nn.Module) -> LogitsFunction:
    """A model's start and end logits as an engine gives them; it sees no token types."""

    @torch.inference_mode()
    def logits(ids: Int64Array, mask: Int64Array, _types: Int64Array) -> Logits:
        device = training_device()
        with autocast():
            output = model(
                input_ids=torch.from_numpy(ids).to(device),
                attention_mask=torch.from_numpy(mask).to(device),
            )
        start, end = output.start_logits.float(), output.end_logits.float()
        return np.asarray(start.cpu()), np.asarray(end.cpu())

    return logits


def model_reader(
    model: nn.Module, encoder: Encoder, reading: ReadingConfig | None = None
) -> Reader:
    """Makes a reader of a model made from the encoder; put it in eval mode before reading.

    Args:
        reading: How to read the logits; by default the model never abstains.
    """
    manifest = Manifest(
        name="training",
        source=encoder.name,
        fingerprint="",
        files={},
        inputs=("input_ids", "attention_mask"),
        pad_token_id=encoder.pad_token_id(),
        max_sequence_tokens=512,
        can_abstain=False,
        reading=reading or ReadingConfig(),
        versions={},
    )
    return Reader(encoder.directory, manifest, model_logits(model), _LIMITS)
