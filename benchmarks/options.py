"""Prints what the options of an engine's library do to the time of one run, beside our own choice.

    python -m benchmarks.options onnx [--precision int8] [--rounds 100]
    python -m benchmarks.options openvino --precision int8 [--beside DIR]

In each round every variant runs once, in turn, on a row of the same length; the lengths change from
round to round as those of questions do. A ratio is the median, over rounds, of a variant's time by
that of our own choice in the same round, and beside it that of processor time, in which the
machine's other work weighs less. "the same again" shows how much of a ratio is chance.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from harness.process import MIB, rss_bytes
from qa_service.engine_catalogue import ROWS, precisions_of
from qa_service.instance.engines import EngineConfig
from qa_service.instance.engines.base import named_inputs
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.server.models.repository_options import DEFAULT_MODEL

SHORTEST, LONGEST, STEP_TOKENS = 100, 230, 16
OWN, SAME = "our own choice", "the same again"
Run = Callable[[int], object]
"""Runs one row of so many tokens."""

Variants = Iterator[tuple[str, Run]]


def feed(inputs: tuple[str, ...], tokens: int) -> dict[str, np.ndarray]:
    """A row of each input: ids, mask, types; int64 [1, tokens]."""
    ids = np.full((1, tokens), 1000, np.int64)
    return named_inputs(inputs, ids, np.ones_like(ids), np.zeros_like(ids))


def onnx_variants(path: Path, inputs: tuple[str, ...], flags: argparse.Namespace) -> Variants:
    """Sessions over one file, each of which differs from the engine's in one thing."""
    import onnxruntime  # noqa: PLC0415 - one of the libraries may be missing

    from qa_service.instance.engines.onnx import SLOWER_ON_CPU, session_options  # noqa: PLC0415

    level, mode = onnxruntime.GraphOptimizationLevel, onnxruntime.ExecutionMode
    attributes = {
        "memory arena off": ("enable_cpu_mem_arena", False),
        "memory pattern off": ("enable_mem_pattern", False),
        "parallel execution": ("execution_mode", mode.ORT_PARALLEL),
        "optimization: basic": ("graph_optimization_level", level.ORT_ENABLE_BASIC),
        "optimization: extended": ("graph_optimization_level", level.ORT_ENABLE_EXTENDED),
        "2 threads": ("intra_op_num_threads", 2),
    }
    entries = {
        "denormals as zero": "session.set_denormal_as_zero",
        "prepacking off": "session.disable_prepacking",
        "GELU by tanh": "optimization.enable_gelu_approximation",
    }

    def run_of(options: onnxruntime.SessionOptions, disabled: list[str] = SLOWER_ON_CPU) -> Run:
        session = onnxruntime.InferenceSession(
            str(path), options, ["CPUExecutionProvider"], disabled_optimizers=disabled
        )
        return lambda tokens: session.run(None, feed(inputs, tokens))

    for name in (OWN, SAME):
        yield name, run_of(session_options(EngineConfig()))
    yield "SkipLayerNormFusion on", run_of(session_options(EngineConfig()), [])
    for name, (attribute, value) in attributes.items():
        options = session_options(EngineConfig())
        setattr(options, attribute, value)
        yield name, run_of(options)
    for name, entry in entries.items():
        options = session_options(EngineConfig())
        options.add_session_config_entry(entry, "1")
        yield name, run_of(options)
    options = session_options(EngineConfig(intra_op_num_threads=2))
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    yield "2 threads that spin for work", run_of(options)


def openvino_variants(path: Path, inputs: tuple[str, ...], flags: argparse.Namespace) -> Variants:
    """The file compiled in several ways, and another model's file in the engine's own."""
    from qa_service.instance.engines.openvino import options  # noqa: PLC0415
    from qa_service.instance.engines.quiet_openvino import openvino  # noqa: PLC0415

    core, chosen = openvino.Core(), options(EngineConfig(precision=flags.precision))
    more = {
        OWN: {},
        SAME: {},
        "pinned to a core": {"ENABLE_CPU_PINNING": True},
        "two streams": {"NUM_STREAMS": 2},
        "hint: latency": {"PERFORMANCE_HINT": "LATENCY"},
        "hint: throughput": {"PERFORMANCE_HINT": "THROUGHPUT"},
        "no hyper-threading": {"ENABLE_HYPER_THREADING": False},
        "activations quantised by groups of 32": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32},
        "activations quantised by groups of 128": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 128},
    }

    def run_of(model: object, extra: dict[str, object], step: int = STEP_TOKENS) -> Run:
        request = core.compile_model(model, "CPU", chosen | extra).create_infer_request()

        def run(tokens: int) -> object:
            return request.infer(feed(inputs, -(-tokens // step) * step), share_inputs=True)

        return run

    static: dict[int, Run] = {}
    model = core.read_model(str(path))

    def run_static(tokens: int) -> object:
        width = -(-tokens // STEP_TOKENS) * STEP_TOKENS
        if width not in static:
            model.reshape({name: [1, width] for name in inputs})
            static[width] = run_of(model, {})
        return static[width](tokens)

    for name, extra in more.items():
        yield name, run_of(str(path), extra)
    yield "lengths as they come", run_of(str(path), {}, step=1)
    if flags.beside:
        yield f"the file of {flags.beside.name}", run_of(str(flags.beside / path.name), {})
    yield "static shapes, one model a length", run_static


def took_ms(run: Callable[[], object]) -> tuple[float, float]:
    """How long a call takes by the clock, and of the processors."""
    started_s, cpu_s = time.perf_counter(), time.process_time()
    run()
    return (time.perf_counter() - started_s) * 1e3, (time.process_time() - cpu_s) * 1e3


def warm(run: Run) -> tuple[float, float]:
    """Runs every length once; returns how long it took, in seconds, and the memory, in MiB."""
    before = rss_bytes(os.getpid())
    lengths = range(SHORTEST, LONGEST + STEP_TOKENS, STEP_TOKENS)
    first_s = sum(took_ms(partial(run, tokens))[0] for tokens in lengths) / 1e3
    return first_s, (rss_bytes(os.getpid()) - before) / MIB


def table(runs: dict[str, Run], rounds: int) -> str:
    """Runs all in turn, and says what each took."""
    warming = {name: warm(run) for name, run in runs.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    draw, order = random.Random(0), list(runs)
    for _ in range(rounds):
        tokens = draw.randint(SHORTEST, LONGEST)
        order.append(order.pop(0))
        for name in order:
            times[name].append(took_ms(partial(runs[name], tokens)))
    rows = []
    for name, taken in times.items():
        ratios = [
            statistics.median(
                ours[clock] / own[clock] for ours, own in zip(taken, times[OWN], strict=True)
            )
            for clock in (0, 1)
        ]
        figures = [statistics.median(ms for ms, _ in taken), *ratios, *warming[name]]
        rows.append([name, *(f"{x:.{n}f}" for x, n in zip(figures, (1, 2, 2, 1, 0), strict=True))])
    head = ["", "ms", "by our own", "of processor time", "first runs, s", "MiB more"]
    return markdown(head, rows)


VARIANTS = {"onnx": onnx_variants, "openvino": openvino_variants}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=tuple(VARIANTS))
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    parser.add_argument("--precision", default="fp32", help="one that the engine has")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--beside", type=Path, help="openvino: another prepared model, run too")
    flags = parser.parse_args()
    if flags.precision not in precisions_of(flags.engine):
        parser.error(f"{flags.engine} has {', '.join(precisions_of(flags.engine))}")
    path = flags.model / ROWS[flags.engine, flags.precision].file
    runs = dict(VARIANTS[flags.engine](path, load_manifest(flags.model).inputs, flags))
    lengths = f"{SHORTEST} to {LONGEST} tokens"
    print(f"{flags.engine} {flags.precision}, one thread, {lengths}\n")
    print(table(runs, flags.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
