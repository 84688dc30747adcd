"""A worker: loads the model, warms up, and answers batches until the loop closes the channel.

As a program, which `launch` starts, it is the worker process. It loads only its engine's libraries.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from qa_service.engine_catalogue import INSTANT
from qa_service.errors import InternalError, SetupError
from qa_service.installation import preparing_program
from qa_service.instance.batch_cost import CostTable
from qa_service.instance.channel import WorkerChannel, begin
from qa_service.instance.costs import (
    AUTO,
    MEASURE,
    LearnedCosts,
    costs_path,
    find_costs,
    keep_learned,
)
from qa_service.instance.devices import CPU
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.engines.base import Engine, EngineFaultError
from qa_service.instance.hooks import HookedReader, load_hooks
from qa_service.instance.ladder import climb
from qa_service.instance.model_folder.costs_dir import SeenLengths
from qa_service.instance.model_folder.known_answers import load_known_answers, tolerance_of
from qa_service.instance.model_folder.manifest import (
    MANIFEST_FILE,
    Manifest,
    check_files,
    fingerprint_of,
    load_manifest,
    model_files,
)
from qa_service.instance.reader.instant import InstantReader
from qa_service.instance.reader.measuring import TimedRuns, estimate_costs, measure_costs
from qa_service.instance.reader.reader import Reader
from qa_service.instance.runs import TaskReader, answer_in_turn, answer_overlapped
from qa_service.instance.self_test import SelfTest, WrongAnswerError
from qa_service.instance.stages import START, Stopwatch, taking
from qa_service.instance.worker_messages import Failed, Ready, Setup
from qa_service.machine import process_age_s, resident_bytes
from qa_service.wire.messages import Task

logger = logging.getLogger(__name__)

NICENESS = 10
"""Workers run at a lower priority than the loop, which runs at once though every core is busy."""

WARMUP = Task("Who wrote the letter?", "The letter was written by Ada in 1843. " * 2)
"""A question about a few words; the known answers have rows of all lengths."""


def serve(channel: WorkerChannel) -> None:
    """Sets the instance up, and answers batches until the channel ends."""
    setup = channel.receive()
    if not isinstance(setup, Setup):
        return
    hooks_name = setup.options.hooks
    try:
        hooks = load_hooks(hooks_name, setup.hooks_fingerprint) if hooks_name else None
        loaded = load_reader(setup)
    except (SetupError, EngineFaultError) as error:
        channel.send(_failed(error))
        return
    except ImportError as error:  # an image for the ONNX engine has no torch
        engine_type = setup.options.inference_engine_type
        channel.send(Failed(f"the {engine_type} engine cannot be imported: {error}"))
        return
    reader: TaskReader[Any, Any] = loaded.reader
    if hooks:
        reader = HookedReader(reader, hooks)
    memory_bytes = resident_bytes() + loaded.later_bytes
    ready = Ready(reader.model, reader.rule.costs, loaded.device, memory_bytes)
    if test := loaded.self_test:
        ready = msgspec.structs.replace(
            ready,
            can_test=True,
            largest_difference=max(test.largest.values(), default=0.0),
            self_test_ms=test.took_ms,
        )
    channel.send(ready)
    logger.info("this instance has started: %s", START.describe(process_age_s()))
    try:
        if loaded.device == CPU:
            answer_in_turn(reader, channel, loaded.self_test)
        else:
            answer_overlapped(reader, channel, loaded.self_test, loaded.prepare_next)
    except EngineFaultError as error:
        channel.send(_failed(error))


def _failed(error: Exception) -> Failed:
    """Why the instance ends; no request is to blame for an engine that computes wrongly."""
    is_wrong = isinstance(error, WrongAnswerError)
    return Failed(str(error), is_blameless=is_wrong, is_wrong=is_wrong)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A reader, where it really runs, what memory it may still take, and what else it does."""

    reader: Reader | InstantReader
    device: str = CPU
    later_bytes: int = 0
    self_test: SelfTest | None = None
    prepare_next: Callable[[], bool] = bool


def load_reader(setup: Setup) -> Loaded:
    """Loads the model into its engine, proves it, and finds what batches cost it."""
    options = setup.options
    name = f"{options.inference_engine_type} {options.precision}"
    model_dir = Path(setup.model_dir)
    fingerprint = _check_fingerprint(model_dir, setup.fingerprint)
    manifest = load_manifest(model_dir)
    check_files(model_dir, manifest, model_files(options.inference_engine_type, options.precision))
    if options.inference_engine_type == INSTANT:
        instant = InstantReader(options.batch_rule)
        instant.model = msgspec.structs.replace(
            instant.model, name=manifest.name, fingerprint=fingerprint
        )
        instant.find([WARMUP], Stopwatch())
        return Loaded(instant)
    files = " ".join(sorted(manifest.computing_files.values()))
    config = EngineConfig.of(options, setup.device, keeps=setup.keeps)
    engine, reader, self_test = climb(
        options.inference_engine_type,
        config,
        setup.device,
        model_dir,
        key=files,
        attempt=lambda config: _proven(setup, manifest, config),
    )
    reader.model = msgspec.structs.replace(reader.model, fingerprint=fingerprint)
    bounds = f"{name} {options.max_batch_size} {options.max_batch_tokens}"
    path = costs_path(model_dir, f"{engine.runtime} {bounds} {files}")
    _find_costs(options.cost_table, path, engine, reader, manifest.window_tokens)
    former_dir = Path(setup.former_dir) if setup.former_dir else None
    engine.prepare_lengths(SeenLengths(model_dir, former_dir), reader.usual_lengths())
    device = CPU if engine.device == CPU else setup.device.device
    return Loaded(reader, device, engine.later_bytes, self_test, engine.prepare_next)


def _find_costs(
    wanted: str, path: Path, engine: Engine, reader: Reader, window_tokens: int
) -> None:
    """Gives the reader its cost table, which on a CPU is estimated from the runs so far."""
    timed, runtime = reader.logits, engine.runtime
    reader.logits = engine.logits

    def measure() -> CostTable:
        logger.info("measuring what batches cost on %s", runtime)
        with taking("costs"):
            rows, rule = reader.sample_rows, reader.rule
            return measure_costs(engine.logits, rows, window_tokens, rule, runtime)

    def estimate() -> CostTable:
        assert isinstance(timed, TimedRuns)
        return estimate_costs(timed.took, window_tokens, reader.rule, runtime)

    costs = find_costs(wanted, path, measure, estimate if engine.device == CPU else None)
    reader.rule = replace(reader.rule, costs=costs)
    if costs and wanted in (AUTO, MEASURE):
        reader.learned, reader.on_learned = LearnedCosts(costs), partial(keep_learned, path)


def _proven(
    setup: Setup, manifest: Manifest, config: EngineConfig
) -> tuple[Engine, Reader, SelfTest | None]:
    """Loads the model into its engine, and has it give the known answers.

    If it does not with what an earlier start has compiled, that is removed, and compiled again.
    """
    options, model_dir = setup.options, Path(setup.model_dir)
    name = f"{options.inference_engine_type} {options.precision}"
    with _running_model(name), taking("libraries"):
        engine = make_engine(options.inference_engine_type, model_dir, manifest, config)
    best_spans = engine.best_spans if engine.chooses_spans else None
    logits, stopwatch = TimedRuns(engine.logits), Stopwatch()
    reader = Reader(model_dir, manifest, logits, options.batch_rule, best_spans)
    self_test = None
    if known := load_known_answers(model_dir, manifest):
        kind = options.inference_engine_type, options.precision
        tolerances = tolerance_of(manifest, kind, engine.device)
        self_test = SelfTest(known, reader, engine, manifest, tolerances=tolerances, name=name)
    else:
        logger.warning(
            "%s names no known answers, since an older version prepared the model: whether it is "
            "computed rightly cannot be checked until %s has run again",
            model_dir / MANIFEST_FILE,
            preparing_program(),
        )
    try:
        with taking("known answers"):
            with _running_model(name):  # whether the engine can run the model at all
                (outcome,) = reader.answer(reader.encode([WARMUP], stopwatch), stopwatch)
                if isinstance(outcome, InternalError):
                    raise outcome
            if self_test:
                self_test.check()
    except (SetupError, EngineFaultError) as error:
        if not engine.forget_kept():
            raise
        logger.warning("%s; it is compiled again", error)
        return _proven(setup, manifest, msgspec.structs.replace(config, uses_kept=False))
    if self_test:
        engine.check_shapes_with(self_test.check_shape)
    return engine, reader, self_test


def _check_fingerprint(model_dir: Path, expected: str) -> str:
    """Returns the SHA-256 of a model's manifest, unless the folder holds another model now."""
    fingerprint = fingerprint_of(model_dir)
    if fingerprint and expected not in {"", fingerprint}:  # `load_manifest` says it better
        raise SetupError(
            f"{model_dir} has changed since its model was loaded; a reload (SIGHUP) takes what is "
            "there now"
        )
    return fingerprint


@contextlib.contextmanager
def _running_model(name: str) -> Iterator[None]:
    """Makes a `SetupError` of any error: an engine's libraries may raise anything."""
    try:
        yield
    except (SetupError, ImportError):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SetupError(f"{name} cannot run this model: {reason}") from error


def main(arguments: Sequence[str]) -> None:
    channel = begin(arguments)
    os.nice(NICENESS)
    atexit.register(_end)  # before hooks are loaded, so that what they have registered runs first
    try:
        with contextlib.suppress(BrokenPipeError):
            serve(channel)
    except BaseException:
        atexit.unregister(_end)
        raise


def _end() -> None:
    """Ends the process at once: a thread that compiles would abort it at the interpreter's end."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
