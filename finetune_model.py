"""Trains the built-in model: SQuAD files in, a LoRA adapter and its metrics out."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from qa_service.preparation.loading import quiet_libraries
from qa_service.training.labelling import LabellingConfig
from qa_service.training.mixture import MixtureConfig, Source
from qa_service.training.run import RunConfig, average, label, train
from qa_service.training.trainer import TrainingConfig


def parse_flags(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add(
        "--train",
        nargs="+",
        default=[],
        metavar="FILE[=N]",
        help="SQuAD JSON, plain or gzip; N questions drawn from it (default: each once)",
    )
    add(
        "--train_sentences",
        nargs="+",
        default=[],
        metavar="FILE[=N]",
        help="the same, for files whose contexts are single sentences: put among others",
    )
    add("--dev", nargs="+", type=Path, default=[], metavar="FILE", help="to measure on")
    add("--output_dir", type=Path, metavar="DIR", help="for the adapter, metrics, checkpoint")
    add("--init", type=Path, metavar="ADAPTER", help="adapter to start from")
    add("--rank", type=int, default=64, help="of the adapters (default: %(default)s)")
    add("--learning_rate", type=float, default=5e-4, help="peak (default: %(default)s)")
    add("--batch_size", type=int, default=32, help="questions (default: %(default)s)")
    add("--max_tokens", type=int, default=256, help="of a row (default: %(default)s)")
    add(
        "--unanswerable_share",
        type=float,
        default=0.12,
        help="of the questions, put to a text without the answer (default: %(default)s)",
    )
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    _add_other_modes(parser)
    flags = parser.parse_args(arguments)
    needed = [flags.train or flags.train_sentences or flags.average, flags.dev, flags.output_dir]
    if not all([flags.init] if flags.label else needed):
        parser.error("needed: --train, --dev and --output_dir, or --label and --init")
    return flags


def _add_other_modes(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of what is done instead of training."""
    add = parser.add_argument
    add(
        "--label",
        nargs=2,
        type=Path,
        metavar=("FILE", "OUT"),
        help="do not train: answer FILE's questions, each from its sentence, with the --init "
        "adapter, and write those it is sure of to OUT, for self-training",
    )
    add(
        "--average",
        nargs="+",
        type=Path,
        metavar="ADAPTER",
        help="do not train: write the average of these adapters to --output_dir, measured",
    )
    add(
        "--min_score",
        type=float,
        default=0.4,
        help="least score of a label that is kept (default: %(default)s)",
    )


def main() -> int:
    """Trains, averages or labels, and prints what came of it as JSON."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    flags = parse_flags()
    with quiet_libraries():
        metrics = run_labelling(flags) if flags.label else run_training(flags)
    print(json.dumps(metrics))
    return 0


def run_labelling(flags: argparse.Namespace) -> dict[str, float]:
    """Labels the file that the flags name."""
    source, destination = flags.label
    config = LabellingConfig(min_score=flags.min_score, seed=flags.seed)
    return label(flags.init, source, destination, config)


def run_training(flags: argparse.Namespace) -> dict[str, float]:
    """Trains, or averages, as the flags say."""
    sources = [Source.parse(text) for text in flags.train]
    sources += [Source.parse(text, are_sentences=True) for text in flags.train_sentences]
    run = RunConfig(
        sources=tuple(sources),
        dev=tuple(flags.dev),
        output_dir=flags.output_dir,
        init=flags.init,
        rank=flags.rank,
        batch_size=flags.batch_size,
        max_tokens=flags.max_tokens,
        seed=flags.seed,
    )
    if flags.average:
        return average(flags.average, run)
    mixture = MixtureConfig(unanswerable_share=flags.unanswerable_share, seed=flags.seed)
    return train(run, mixture, TrainingConfig(learning_rate=flags.learning_rate))


if __name__ == "__main__":
    sys.exit(main())
