"""Loads a model into its engine, has it give the known answers, and finds what batches cost it.

It is a module apart from the worker's program because it loads numpy and tokenizers, which take
longer than all else that an instance without a model does at its start.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from qa_service.errors import EngineFaultError, InternalError, SetupError
from qa_service.instance.batch_cost import CostTable
from qa_service.instance.costs import AUTO, MEASURE, find_costs
from qa_service.instance.devices import CPU
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.engines.base import Engine
from qa_service.instance.ladder import climb
from qa_service.instance.learned_costs import LearnedCosts, keep_learned
from qa_service.instance.model_folder.costs_dir import SeenLengths, kept_path
from qa_service.instance.model_folder.known_answers import load_known_answers, tolerance_of
from qa_service.instance.model_folder.manifest import Manifest
from qa_service.instance.reader.measuring import TimedRuns, estimate_costs, measure_costs
from qa_service.instance.reader.reader import Reader
from qa_service.instance.runs import WARMUP, Loaded
from qa_service.instance.self_test import SelfTest
from qa_service.instance.stages import Stopwatch, taking
from qa_service.instance.worker_messages import Setup

logger = logging.getLogger(__name__)


def load_model(setup: Setup, manifest: Manifest, fingerprint: str) -> Loaded:
    """Loads the model, as `worker_main.load_reader` does; its files have been checked."""
    options, model_dir = setup.options, Path(setup.model_dir)
    name = f"{options.inference_engine_type} {options.precision}"
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
    path = kept_path(model_dir, f"{engine.runtime} {bounds} {files}".encode())
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
) -> tuple[Engine, Reader, SelfTest]:
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
    known = load_known_answers(model_dir, manifest)
    kind = options.inference_engine_type, options.precision
    tolerances = tolerance_of(manifest, kind, engine.device)
    self_test = SelfTest(known, reader, engine, manifest, tolerances=tolerances, name=name)
    try:
        with taking("known answers"):
            with _running_model(name):  # whether the engine can run the model at all
                (outcome,) = reader.answer(reader.encode([WARMUP], stopwatch), stopwatch)
                if isinstance(outcome, InternalError):
                    raise outcome
            self_test.check()
    except (SetupError, EngineFaultError) as error:
        if not engine.forget_kept():
            raise
        logger.warning("%s; it is compiled again", error)
        return _proven(setup, manifest, msgspec.structs.replace(config, uses_kept=False))
    engine.check_shapes_with(self_test.check_shape)
    return engine, reader, self_test


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
