"""A model in memory, read the way the server reads it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from peft import PeftModel

from qa_service.manifest import Manifest, ReadingConfig
from qa_service.reading.reader import BatchLimits, Question, Reader
from qa_service.reading.spans import Answer, FloatArray
from qa_service.reading.windows import Int64Array
from qa_service.squad import SquadQuestion, exact_match, f1_score
from qa_service.training.adapters import ENCODER_NAME, encoder_dir
from qa_service.training.trainer import Metrics, autocast, training_device

PAD_TOKEN_ID = 0
_LIMITS = BatchLimits(max_batch_size=64, max_batch_tokens=8192)
_CHUNK_QUESTIONS = 512


def model_reader(model: PeftModel, reading: ReadingConfig | None = None) -> Reader:
    """Wraps a model that is being trained in the reading that serves.

    Args:
        model: The model, in eval mode when the reader is used.
        reading: How its logits are read; by default the model never abstains.
    """

    @torch.inference_mode()
    def logits(ids: Int64Array, mask: Int64Array, types: Int64Array) -> tuple[FloatArray, ...]:
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
    return Reader(encoder_dir(), manifest, logits, _LIMITS)  # type: ignore[arg-type]


def best_answers(reader: Reader, questions: Sequence[SquadQuestion]) -> list[Answer]:
    """Answers questions; one that cannot be read gets the empty answer."""
    answers: list[Answer] = []
    for first in range(0, len(questions), _CHUNK_QUESTIONS):
        chunk = questions[first : first + _CHUNK_QUESTIONS]
        for result in reader.read([Question(q.question, q.context) for q in chunk]):
            readable = isinstance(result, list) and result
            answers.append(result[0] if readable else Answer("", 0.0, None, None))
    return answers


def squad_metrics(answers: Sequence[Answer], questions: Sequence[SquadQuestion]) -> Metrics:
    """Exact match and F1, in percent, over all the questions."""
    pairs = [(a.text, q.answers) for a, q in zip(answers, questions, strict=True)]
    return {
        "questions": len(pairs),
        "exact_match": 100 * sum(exact_match(*pair) for pair in pairs) / len(pairs),
        "f1": 100 * sum(f1_score(*pair) for pair in pairs) / len(pairs),
    }
