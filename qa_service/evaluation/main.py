"""Measures prepared models, side by side, with the server's engines."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from qa_service.autotune.candidates import REFERENCE, runnable
from qa_service.child_program import turn_off_telemetry
from qa_service.command_line import at_least, count, make_parser, number
from qa_service.engine_catalogue import MODEL_ENGINES, ROWS, precisions_of
from qa_service.errors import SetupError
from qa_service.evaluation.cascade import MIN_SCORES, CascadePoint, ModelRun, draw, run_model, sweep
from qa_service.evaluation.evaluation import (
    DevSet,
    PreparedModel,
    calibrate,
    measure,
    never_abstaining,
)
from qa_service.evaluation.measures import (
    abstained_percent,
    answer_length,
    best_answers,
    f1_by,
    question_word,
    squad_metrics,
)
from qa_service.installation import check_plot
from qa_service.instance.model_folder.manifest import load_manifest, model_files
from qa_service.logs import complain

_COLUMNS = (
    *("exact_match", "f1", "calibration_error", "right_near_0.8"),
    *("f1_abstaining", "given_up", "caught"),
)


def main() -> int:
    turn_off_telemetry()
    parser = _parser()
    flags = parser.parse_args()
    if flags.plot and not flags.cascade:
        parser.error("--plot is for --cascade")
    try:
        dev = DevSet.read(flags.dev)
        print(dev)
        if flags.max_questions:
            dev = dev.sample(flags.max_questions)
            print(f"of these: {dev}")
        if flags.calibrate:
            _calibrate(flags, dev)
        elif flags.cascade:
            _cascade(flags, dev)
        else:
            _compare(flags, dev)
    except SetupError as error:
        complain(error)
        return error.exit_code
    except OSError as error:
        complain(error)
        return SetupError.exit_code
    return 0


def _compare(flags: argparse.Namespace, dev: DevSet) -> None:
    """Prints a table: a row for each model, engine and precision; with --by_kind, F1 by kind."""
    columns = [f"{name:>17}" for name in _COLUMNS]
    for name, model in _models(flags, columns):
        metrics = measure(model, dev, model.manifest.reading)
        values = (metrics.get(name, math.nan) for name in _COLUMNS)
        cells = (f"{'-' if math.isnan(value) else f'{value:.1f}':>17}" for value in values)
        print(name, *cells, flush=True)
        if flags.by_kind:
            reader = model.reader(never_abstaining(model.manifest.reading))
            answers = best_answers(reader, dev.answerable)
            for kind in (question_word, answer_length):
                for its, (f1, count) in f1_by(kind, answers, dev.answerable).items():
                    print(f"    {its:16} {count:5} questions, F1 {f1:.1f}")


def _models(
    flags: argparse.Namespace, columns: Sequence[str]
) -> Iterator[tuple[str, PreparedModel]]:
    """Prints a table's head; yields a row's head and model for each engine and precision."""
    rows = [row for model_dir in flags.model_dirs for row in _rows(flags, model_dir)]
    if not rows:
        raise SetupError("no model has the files for the given engines and precisions")
    width = max(len(str(model_dir)) for model_dir in flags.model_dirs)
    engine_width = max(len(f"{engine_type} {precision}") for _, engine_type, precision in rows)
    print(f"{'model':{width}}  {'engine':{engine_width}}", *columns)
    for model_dir, engine_type, precision in rows:
        model = PreparedModel(model_dir, engine_type, flags.intra_op_num_threads, precision)
        yield f"{model_dir!s:{width}}  {f'{engine_type} {precision}':{engine_width}}", model


def _rows(flags: argparse.Namespace, model_dir: Path) -> list[tuple[Path, str, str]]:
    """The engines and precisions to measure a model in.

    Without flags for them, all that the server may choose on this machine, and PyTorch; else the
    named ones that the model has files for, of an engine fp32 and each precision with a file.
    """
    manifest = load_manifest(model_dir)
    able = runnable(manifest)
    if not (flags.inference_engine_types or flags.precisions):
        return [(model_dir, *kind) for kind in able]
    rows = []
    for engine_type in flags.inference_engine_types or dict(able):
        by_files: dict[tuple[str, ...], str] = {}
        for precision in precisions_of(engine_type):
            by_files.setdefault((*model_files(engine_type, precision),), precision)
        for precision in flags.precisions or by_files.values():
            kind = engine_type, precision
            if kind in ROWS and manifest.files.keys() >= {*model_files(*kind)}:
                rows.append((model_dir, *kind))
    return rows


def _cascade(flags: argparse.Namespace, dev: DevSet) -> None:
    """Prints the measures of a cascade of the models, a row for each `min_score`."""
    if len(flags.model_dirs) < 2:
        raise SetupError("--cascade needs two models or more, in the order in which they are asked")
    if flags.plot:
        check_plot(flags.plot)
    for model_dir in flags.model_dirs:  # a run may take an hour
        load_manifest(model_dir)
    runs = [_run(flags, model_dir, dev) for model_dir in flags.model_dirs]
    unknown = flags.ask_next_if_unknown
    points = list(sweep(runs, dev.answerable, MIN_SCORES, ask_next_if_unknown=unknown))
    columns = dataclasses.fields(CascadePoint)
    print(*(f"{column.name:>10}" for column in columns))
    for point in points:
        print(*(f"{getattr(point, column.name):10.3f}" for column in columns))
    if flags.plot:
        draw(points, flags.plot)


def _run(flags: argparse.Namespace, model_dir: Path, dev: DevSet) -> ModelRun:
    """Answers all questions with a model, and prints how well and how fast it does."""
    engine_type = _first_engine(flags)
    precision = flags.precisions[0] if flags.precisions else "fp32"
    model = PreparedModel(model_dir, engine_type, flags.intra_op_num_threads, precision)
    run = run_model(model, dev.answerable, dev.unanswerable)
    f1 = squad_metrics(run.answers, dev.answerable)["f1"]
    caught = abstained_percent(run.to_unanswerable)
    ms = run.seconds / len(run.answers) * 1e3
    figures = f"F1 {f1:.2f}, caught {caught:.1f} %, {ms:.1f} ms a question"
    print(f"{model_dir}, {engine_type} {precision}: {figures}", flush=True)
    return run


def _calibrate(flags: argparse.Namespace, dev: DevSet) -> None:
    """Chooses the first model's reading settings, and writes them."""
    model = PreparedModel(flags.model_dirs[0], _first_engine(flags), flags.intra_op_num_threads)
    cost = None if flags.no_abstention else flags.max_cost_f1
    reading = calibrate(model, dev, model.manifest.reading, cost)
    encoded = msgspec.json.format(msgspec.json.encode(reading), indent=2)
    print(encoded.decode(), flush=True)  # also if the file cannot be written
    flags.calibrate.write_bytes(encoded + b"\n")


def _first_engine(flags: argparse.Namespace) -> str:
    return str((flags.inference_engine_types or REFERENCE)[0])


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("model_dirs", nargs="+", type=Path, metavar="DIR", help="what prepare_model.py wrote")
    add("--dev", nargs="+", type=Path, required=True, metavar="FILE", help="SQuAD JSON")
    engines = (
        "engines to measure; if not given, all that are installed, in each precision that the "
        "server may take here"
    )
    add("--inference_engine_types", nargs="+", choices=MODEL_ENGINES, default=[], help=engines)
    precisions = (
        "precisions to measure; if only engines are given, fp32 and those that have a file of "
        "their own"
    )
    known = sorted({precision for _, precision in ROWS})
    add("--precisions", nargs="+", choices=known, help=precisions)
    add("--intra_op_num_threads", type=count, default=1, help="threads within one operator")
    kinds = "also print F1 by question word and by length of the answer"
    add("--by_kind", action="store_true", help=kinds)
    settings = "do not compare: choose the first model's reading settings and write them here"
    add("--calibrate", type=Path, metavar="READING_JSON", help=settings)
    cascade = (
        "do not compare: what asking the models in turn, the next one only where the score is "
        "below min_score, would come to: F1 and cost for a range of min_scores"
    )
    add("--cascade", action="store_true", help=cascade)
    unknown = "with --cascade: ask the next model too where one finds no answer"
    add("--ask_next_if_unknown", action="store_true", help=unknown)
    add("--plot", type=Path, metavar="FILE", help="with --cascade: draw F1 against cost")
    most = "how many of each kind to measure on; 0 for all"
    add("--max_questions", type=at_least(0), default=0, help=most)
    cost = "with --calibrate: points of F1 on answerable questions that abstention may cost"
    add("--max_cost_f1", type=number, default=2.0, help=cost)
    never = "with --calibrate: the model was never shown an unanswerable question"
    add("--no_abstention", action="store_true", help=never)
    return parser
