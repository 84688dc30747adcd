"""A model in memory, read the way the server reads it."""

from __future__ import annotations

import numpy as np
import torch
from peft import PeftModel

from qa_service.batching import BatchRule
from qa_service.manifest import Manifest, ReadingConfig
from qa_service.reading.reader import Reader
from qa_service.reading.spans import FloatArray
from qa_service.reading.windows import Int64Array
from qa_service.training.adapters import ENCODER_NAME, encoder_dir
from qa_service.training.trainer import autocast, training_device

PAD_TOKEN_ID = 0
_LIMITS = BatchRule(max_batch_size=64, max_batch_tokens=8192)


def model_reader(model: PeftModel, reading: ReadingConfig | None = None) -> Reader:
    """Wraps a model that is being trained in the reading that serves.

    Args:
        model: The model, in eval mode when the reader is used.
        reading: How its logits are read; by default the model never abstains.
    """

    @torch.inference_mode()
    def logits(
        ids: Int64Array, mask: Int64Array, types: Int64Array
    ) -> tuple[FloatArray, FloatArray]:
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        with autocast():
            output = model(
                **{name: torch.from_numpy(a).to(training_device()) for name, a in arrays.items()}
            )
        start, end = output.start_logits.float(), output.end_logits.float()
        return np.asarray(start.cpu()), np.asarray(end.cpu())

    manifest = Manifest(
        name="training",
        source=ENCODER_NAME,
        fingerprint="",
        files={},
        inputs=("input_ids", "attention_mask", "token_type_ids"),
        pad_token_id=PAD_TOKEN_ID,
        max_sequence_tokens=512,
        can_abstain=False,
        reading=reading or ReadingConfig(),
        versions={},
    )
    return Reader(encoder_dir(), manifest, logits, _LIMITS)
