"""Measures prepared models, side by side, through the engines that serve."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import msgspec

from qa_service.engines import ENGINE_TYPES
from qa_service.errors import SetupError
from qa_service.manifest import PRECISIONS, load_manifest
from qa_service.squad import read_squad
from qa_service.training.calibration import calibrate
from qa_service.training.evaluation import DevSet, PreparedModel, measure
from qa_service.training.measures import unanswerable_questions

_COLUMNS = (
    "exact_match",
    "f1",
    "calibration_error",
    "right_near_0.8",
    "f1_abstaining",
    "given_up",
    "caught",
)


def main() -> int:
    """Runs the program; returns its exit code."""
    flags = _parser().parse_args()
    questions = [q for path in flags.dev for q in read_squad(path) if q.answers]
    dev = DevSet(questions, unanswerable_questions(questions))
    print(f"{len(dev.answerable)} answerable questions, {len(dev.unanswerable)} unanswerable")
    try:
        if flags.calibrate:
            _calibrate(flags, dev)
        else:
            _compare(flags, dev)
    except SetupError as error:
        print(f"evaluate_model.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _compare(flags: argparse.Namespace, dev: DevSet) -> None:
    """Prints a table: a row for each model, engine and precision."""
    rows = [row for model_dir in flags.model_dirs for row in _rows(flags, model_dir)]
    width = max(len(str(model_dir)) for model_dir in flags.model_dirs)
    print(f"{'model':{width}}  {'engine':12}", *(f"{name:>17}" for name in _COLUMNS))
    for model_dir, engine_type, precision in rows:
        model = PreparedModel(model_dir, engine_type, flags.intra_op_num_threads, precision)
        metrics = measure(model, dev, model.manifest.reading)
        values = (metrics.get(name, math.nan) for name in _COLUMNS)
        cells = (f"{'-' if math.isnan(value) else f'{value:.1f}':>17}" for value in values)
        engine = f"{engine_type} {precision}"
        print(f"{model_dir!s:{width}}  {engine:12}", *cells, flush=True)


def _rows(flags: argparse.Namespace, model_dir: Path) -> list[tuple[Path, str, str]]:
    """What to measure of a model: each engine in each precision it has."""
    files = load_manifest(model_dir).files
    here = [precision for precision, name in PRECISIONS.items() if name in files]
    return [
        (model_dir, engine_type, precision)
        for engine_type in flags.inference_engine_types
        for precision in flags.precisions or here
        if engine_type == "onnx" or precision == "fp32"
    ]


def _calibrate(flags: argparse.Namespace, dev: DevSet) -> None:
    """Writes the reading settings that suit the first model."""
    model = PreparedModel(
        flags.model_dirs[0], flags.inference_engine_types[0], flags.intra_op_num_threads
    )
    cost = None if flags.no_abstention else flags.max_cost_f1
    reading = calibrate(model, dev, model.manifest.reading, cost)
    encoded = msgspec.json.format(msgspec.json.encode(reading), indent=2)
    flags.calibrate.write_bytes(encoded + b"\n")
    print(encoded.decode())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "model_dirs", nargs="+", type=Path, metavar="DIR", help="what prepare_model.py wrote"
    )
    parser.add_argument(
        "--dev", nargs="+", type=Path, required=True, metavar="FILE", help="SQuAD JSON"
    )
    parser.add_argument(
        "--inference_engine_types",
        nargs="+",
        choices=ENGINE_TYPES,
        default=["onnx", "pytorch"],
        help="engines to measure",
    )
    parser.add_argument(
        "--precisions",
        nargs="+",
        choices=tuple(PRECISIONS),
        help="precisions to measure; if not given, those that the model was prepared in",
    )
    parser.add_argument(
        "--intra_op_num_threads", type=int, default=1, help="threads within one operator"
    )
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="READING_JSON",
        help="do not compare: choose the first model's reading settings and write them here",
    )
    parser.add_argument(
        "--max_cost_f1",
        type=float,
        default=2.0,
        help="with --calibrate: points of F1 on answerable questions that abstention may cost",
    )
    parser.add_argument(
        "--no_abstention",
        action="store_true",
        help="with --calibrate: the model was never shown an unanswerable question",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
