"""A training run from files to an adapter with its metrics."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from torch import nn
from transformers import set_seed

from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.evaluation.measures import Metrics, best_answers, squad_metrics
from qa_service.instance.arrays import Int64Array, Logits, LogitsFunction
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.model_folder.manifest import Manifest, ReadingConfig
from qa_service.instance.reader.reader import Reader
from training.adapters import (
    Encoder,
    adapter_of,
    average_adapters,
    build_model,
    build_whole_model,
    freeze_layers,
    round_products,
    save_adapter,
)
from training.features import FeatureMaker, Features, plan_batches, swap_words
from training.mixture import Source, draw_mixture, read_questions
from training.soft_labels import Example, SoftLabels, label_questions
from training.trainer import Trainer, TrainingConfig, autocast, training_device

METRICS_FILE = "metrics.json"
_LOG = logging.getLogger(__name__)
_LIMITS = BatchRule(max_batch_size=64, max_batch_tokens=8192)
"""Large batches: nobody waits for a single answer."""
_INTERVAL_QUESTIONS = 400
"""Dev questions measured during training, which waits for them; at the end, all are."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A training run.

    Attributes:
        labels: Files with a teacher's labels of the sources' questions.
        is_full: Whether to train all of the model, not only an adapter.
        is_rounded: Whether products are rounded as int8 engines round them; only with an adapter.
        frozen_layers: How many of the lowest layers stay as they are.
        swapped_words: Share of a row's rare words to swap.
        unanswerable_share: The share of every source's questions that get another text.
    """

    encoder: Encoder
    sources: tuple[Source, ...]
    dev: tuple[Path, ...]
    output_dir: Path
    labels: tuple[Path, ...] = ()
    init: Path | None = None
    rank: int = 64
    is_full: bool = False
    is_rounded: bool = False
    frozen_layers: int = 0
    batch_size: int = 32
    max_tokens: int = 256
    swapped_words: float = 0.0
    unanswerable_share: float = 0.0
    seed: int = 0


def train(run: RunConfig, training: TrainingConfig) -> Metrics:
    """Trains; writes the adapter with its measures on all dev questions and its training's size."""
    run.output_dir.mkdir(parents=True, exist_ok=True)
    set_seed(run.seed)
    dev = _dev_questions(run)
    labels = SoftLabels(*run.labels)
    examples = draw_mixture(run.sources, labels, run.unanswerable_share, run.seed)
    marked = sum(example.question.is_impossible for example in examples)
    _LOG.info("%d questions are marked is_impossible: to learn that the text has no answer", marked)
    rows = _rows(examples, run)
    batches = plan_batches(rows, run.batch_size, random.Random(run.seed))
    tokens = sum(map(len, rows))
    _LOG.info("%d questions, %d tokens, %d batches", len(rows), tokens, len(batches))
    model = _model(run)
    sample = random.Random(run.seed).sample(dev, min(_INTERVAL_QUESTIONS, len(dev)))
    trainer = Trainer(model, training, run.output_dir, lambda: _measured(model, sample, run))
    trained = trainer.train(rows, batches, run.encoder.pad_token_id())
    if run.is_full:
        model = adapter_of(model, run.encoder, run.rank)
    return _finish(model, dev, run, trained | {"rows": len(rows), "tokens": tokens})


def average(adapters: Sequence[Path], run: RunConfig) -> Metrics:
    run.output_dir.mkdir(parents=True, exist_ok=True)
    model = average_adapters(run.encoder, adapters, run.rank).to(training_device())
    return _finish(model, _dev_questions(run), run, {"adapters": len(adapters)})


def label(encoder: Encoder, adapter: Path, source: Source, destination: Path) -> Metrics:
    """Labels the questions of a file with an adapter, for another model to learn from."""
    model: nn.Module = build_whole_model(encoder, adapter)
    questions = read_questions(source.path, are_sentences=source.are_sentences)
    chosen = questions[: source.count]
    logits = _model_logits(model.to(training_device()).eval())
    tokenizer, pad_token_id = encoder.tokenizer(), encoder.pad_token_id()
    labelled = label_questions(logits, tokenizer, pad_token_id, chosen, destination)
    return {"questions": len(chosen), "labelled": labelled}


def _model(run: RunConfig) -> nn.Module:
    if run.is_full:
        model: nn.Module = build_whole_model(run.encoder, run.init)
    else:
        model = build_model(run.encoder, run.rank, run.init)
    freeze_layers(model, run.frozen_layers)
    if run.is_rounded:
        round_products(model)
    return model


def _rows(examples: Sequence[Example], run: RunConfig) -> list[Features]:
    tokenizer = run.encoder.tokenizer()
    maker = FeatureMaker(tokenizer, run.max_tokens)
    rng = random.Random(run.seed)
    made = (maker.make(example, rng) for example in examples)
    rows = [row for row in made if row is not None]
    maker.check_labels()
    return swap_words(rows, tokenizer, run.swapped_words, run.seed) if run.swapped_words else rows


def _dev_questions(run: RunConfig) -> list[SquadQuestion]:
    return [question for path in run.dev for question in read_squad(path) if question.answers]


def _finish(
    model: nn.Module, dev: Sequence[SquadQuestion], run: RunConfig, facts: Metrics
) -> Metrics:
    assert isinstance(model, PeftModel)
    save_adapter(model, run.output_dir)
    metrics = {"questions": len(dev), **_measured(model, dev, run), **facts}
    (run.output_dir / METRICS_FILE).write_text(json.dumps(metrics, indent=2) + "\n")
    return metrics


@torch.inference_mode()
def _measured(model: nn.Module, questions: Sequence[SquadQuestion], run: RunConfig) -> Metrics:
    reader = _model_reader(model.eval(), run.encoder)
    return squad_metrics(best_answers(reader, questions), questions)


def _model_logits(model: nn.Module) -> LogitsFunction:
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


def _model_reader(model: nn.Module, encoder: Encoder) -> Reader:
    """Makes a reader of a model made from the encoder, which never abstains."""
    manifest = Manifest(
        name="training",
        source=encoder.name,
        fingerprint="",
        files={},
        inputs=("input_ids", "attention_mask"),
        pad_token_id=encoder.pad_token_id(),
        max_sequence_tokens=512,
        can_abstain=False,
        reading=ReadingConfig(),
        versions={},
    )
    return Reader(encoder.directory, manifest, _model_logits(model), _LIMITS)
