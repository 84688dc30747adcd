"""A training run from files to an adapter with its metrics."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from tokenizers import Tokenizer
from transformers import set_seed

from qa_service.manifest import TOKENIZER_FILE
from qa_service.squad import SquadQuestion, read_squad
from qa_service.training.adapters import build_model, encoder_dir, save_adapter
from qa_service.training.answering import PAD_TOKEN_ID, model_reader
from qa_service.training.averaging import average_adapters
from qa_service.training.features import FeatureMaker, Features, plan_batches
from qa_service.training.labelling import LabellingConfig, label_sentences
from qa_service.training.measures import Metrics, best_answers, squad_metrics
from qa_service.training.mixture import MixtureConfig, Source, draw_mixture
from qa_service.training.trainer import Trainer, TrainingConfig, training_device

METRICS_FILE = "metrics.json"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A training run.

    Attributes:
        sources: Files to train on.
        dev: Files to measure on.
        output_dir: Where the adapter, its metrics and the checkpoint go.
        init: Adapter to start from; None for a new one.
        rank: Of the adapters.
        batch_size: Rows in a batch.
        max_tokens: Longest row.
        interval_questions: Dev questions looked at during training; all of them at the end.
        seed: Everything random follows from it.
    """

    sources: tuple[Source, ...]
    dev: tuple[Path, ...]
    output_dir: Path
    init: Path | None = None
    rank: int = 64
    batch_size: int = 32
    max_tokens: int = 256
    interval_questions: int = 400
    seed: int = 0


def train(run: RunConfig, mixture: MixtureConfig, training: TrainingConfig) -> Metrics:
    """Trains, measures, and writes the adapter with its metrics.

    Returns:
        Exact match and F1 on all dev questions, and what the training was.
    """
    run.output_dir.mkdir(parents=True, exist_ok=True)
    set_seed(run.seed)
    dev = _dev_questions(run)
    rows = _rows(draw_mixture(run.sources, mixture), run)
    batches = plan_batches([len(row) for row in rows], run.batch_size, random.Random(run.seed))
    tokens = sum(map(len, rows))
    _LOG.info("%d questions, %d tokens, %d batches", len(rows), tokens, len(batches))
    model = build_model(run.rank, run.init)
    sample = random.Random(run.seed).sample(dev, min(run.interval_questions, len(dev)))
    trainer = Trainer(model, training, run.output_dir, lambda: _measured(model, sample))
    trained = trainer.train(rows, batches, PAD_TOKEN_ID)
    trained |= {"rows": len(rows), "tokens": tokens}
    return _finish(model, dev, run.output_dir, trained)


def average(adapters: Sequence[Path], run: RunConfig) -> Metrics:
    """Averages adapters, measures the average, and writes it; see `averaging`."""
    run.output_dir.mkdir(parents=True, exist_ok=True)
    model = average_adapters(adapters, run.rank).to(training_device())
    return _finish(model, _dev_questions(run), run.output_dir, {"adapters": len(adapters)})


def label(model_dir: Path, source: Path, destination: Path, config: LabellingConfig) -> Metrics:
    """Labels a file of sentences with an adapter; see `labelling`."""
    rank = json.loads((model_dir / "adapter_config.json").read_text())["r"]
    model = build_model(rank, model_dir).to(training_device()).eval()
    return {**label_sentences(model_reader(model), source, destination, config)}


def _rows(questions: Sequence[SquadQuestion], run: RunConfig) -> list[Features]:
    tokenizer = Tokenizer.from_file(str(encoder_dir() / TOKENIZER_FILE))
    maker = FeatureMaker(tokenizer, run.max_tokens)
    rng = random.Random(run.seed)
    rows = (maker.make(question, rng) for question in questions)
    return [row for row in rows if row is not None]


def _dev_questions(run: RunConfig) -> list[SquadQuestion]:
    return [question for path in run.dev for question in read_squad(path) if question.answers]


def _finish(
    model: PeftModel, dev: Sequence[SquadQuestion], output_dir: Path, facts: Metrics
) -> Metrics:
    """Writes the adapter, then its metrics beside it."""
    save_adapter(model, output_dir)
    metrics = {"questions": len(dev), **_measured(model, dev), **facts}
    (output_dir / METRICS_FILE).write_text(json.dumps(metrics, indent=2) + "\n")
    return metrics


@torch.inference_mode()
def _measured(model: PeftModel, questions: Sequence[SquadQuestion]) -> Metrics:
    model.eval()
    return squad_metrics(best_answers(model_reader(model), questions), questions)
