"""Trains the models of the project: SQuAD files in, a LoRA adapter and its metrics out."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from qa_service.command_line import make_parser
from qa_service.errors import SetupError
from qa_service.logs import complain
from qa_service.preparation.encoders import MINILM
from qa_service.preparation.source_model import quiet_libraries
from qa_service.preparation.sources import base_dir
from training.mixture import Source

if TYPE_CHECKING:
    from training.adapters import Encoder


def parse_flags(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    _add_data(parser)
    _add_training(parser)
    _add_other_modes(parser)
    flags = parser.parse_args(arguments)
    trained = flags.train or flags.train_sentences or flags.train_passages
    needed = [trained or flags.average, flags.dev, flags.output_dir]
    if not all([flags.init] if flags.label or flags.label_sentences else needed):
        parser.error("needed: --train, --dev and --output_dir, or --label and --init")
    if not 0 <= flags.swap_words <= 1:
        parser.error("--swap_words is a share, from 0 to 1")
    if flags.int8 and flags.whole:
        parser.error("--int8 rounds an adapter's products: not with --whole")
    return flags


def _add_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--base",
        default=MINILM,
        metavar="ENCODER",
        help="what the adapter is over: sentence-transformers/all-mpnet-base-v2, a directory, or a "
        "model on the hub, BERT or MPNet",
    )
    squad = "SQuAD JSON, plain or gzip; N questions drawn from it (default: each once)"
    add("--train", nargs="+", default=[], metavar="FILE[=N]", help=squad)
    sentences = "the same, for files whose contexts are single sentences: put among others"
    add("--train_sentences", nargs="+", default=[], metavar="FILE[=N]", help=sentences)
    passages = "the same, for files in which the passages that a question is put to follow one "
    passages += "another, one at most with an answer: N questions with all of them, which compete"
    add("--train_passages", nargs="+", default=[], metavar="FILE[=N]", help=passages)
    labels = "a teacher's labels (see --label) of questions in those files"
    add("--labels", nargs="+", type=Path, default=[], metavar="LABELS", help=labels)
    add("--dev", nargs="+", type=Path, default=[], metavar="FILE", help="to measure on")
    add("--output_dir", type=Path, metavar="DIR", help="for the adapter, metrics, checkpoint")
    add("--init", type=Path, metavar="ADAPTER", help="adapter to start from")


def _add_training(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    whole = "train all weights but the embeddings; the adapter is the nearest of its rank"
    add("--whole", action="store_true", help=whole)
    int8 = "round weights and activations as int8 engines do, so that the adapter allows for it"
    add("--int8", action="store_true", help=int8)
    frozen = "how many of the lowest layers stay as they are, for less time"
    add("--frozen_layers", type=int, default=0, metavar="LAYERS", help=frozen)
    add("--rank", type=int, default=64, help="of the adapters")
    add("--learning_rate", type=float, default=5e-4, help="peak")
    add("--batch_size", type=int, default=32, help="questions")
    limit = "training ends by then with what it has learned, the rate having fallen to zero"
    add("--max_seconds", type=float, default=0.0, help=f"{limit} (default: after all questions)")
    add("--max_tokens", type=int, default=256, help="of a row")
    share = "of the questions, put to a text without the answer"
    add("--unanswerable_share", type=float, default=0.12, help=share)
    words = "of a row's rare words, put for others alike, in question and text"
    add("--swap_words", type=float, default=0.0, metavar="SHARE", help=words)
    add("--seed", type=int, default=0, help="of what is drawn")


def _add_other_modes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    for name, contexts in (("--label", "texts"), ("--label_sentences", "sentences")):
        add(
            name,
            nargs=2,
            metavar=("FILE[=N]", "LABELS"),
            help=f"do not train: write to LABELS what the --init adapter thinks of every token of "
            f"the {contexts} of FILE, for a student of it; a run that was cut off goes on",
        )
    average = "do not train: write the average of these adapters to --output_dir, measured"
    add("--average", nargs="+", type=Path, metavar="ADAPTER", help=average)


def main() -> int:
    """Trains, averages or labels, and prints the metrics as JSON."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    flags = parse_flags()
    try:
        check_files(flags)
        from training.adapters import Encoder  # noqa: PLC0415 - PyTorch takes seconds

        encoder = Encoder(flags.base, base_dir(flags.base))
        run = run_labelling if flags.label or flags.label_sentences else run_training
        with quiet_libraries():
            metrics = run(flags, encoder)
    except SetupError as error:
        complain(error)
        return error.exit_code
    print(json.dumps(metrics))
    return 0


def check_files(flags: argparse.Namespace) -> None:
    """Checks that every file named by the flags exists, before anything takes time.

    Raises:
        SetupError: A file is missing.
    """
    sources = [*flags.train, *flags.train_sentences, *flags.train_passages]
    sources += [pair[0] for pair in (flags.label, flags.label_sentences) if pair]
    for path in [*(Source.parse(text).path for text in sources), *flags.labels, *flags.dev]:
        if not path.is_file():
            raise SetupError(f"there is no file {path}")


def run_labelling(flags: argparse.Namespace, encoder: Encoder) -> dict[str, float]:
    from training.run import label  # noqa: PLC0415

    source, destination = flags.label or flags.label_sentences
    parsed = Source.parse(source, are_sentences=flags.label is None)
    return label(encoder, flags.init, parsed, Path(destination))


def run_training(flags: argparse.Namespace, encoder: Encoder) -> dict[str, float]:
    from training.run import RunConfig, average, train  # noqa: PLC0415
    from training.trainer import TrainingConfig  # noqa: PLC0415

    sources = [Source.parse(text) for text in flags.train]
    sources += [Source.parse(text, are_sentences=True) for text in flags.train_sentences]
    sources += [Source.parse(text, are_passages=True) for text in flags.train_passages]
    run = RunConfig(
        encoder=encoder,
        sources=tuple(sources),
        labels=tuple(flags.labels),
        dev=tuple(flags.dev),
        output_dir=flags.output_dir,
        init=flags.init,
        rank=flags.rank,
        is_full=flags.whole,
        is_rounded=flags.int8,
        frozen_layers=flags.frozen_layers,
        batch_size=flags.batch_size,
        max_tokens=flags.max_tokens,
        swapped_words=flags.swap_words,
        unanswerable_share=flags.unanswerable_share,
        seed=flags.seed,
    )
    if flags.average:
        return average(flags.average, run)
    return train(
        run, TrainingConfig(learning_rate=flags.learning_rate, max_seconds=flags.max_seconds)
    )
