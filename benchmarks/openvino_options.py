"""Prints what each option of OpenVINO does to the time of one run, beside the engine's own.

python -m benchmarks.openvino_options [--model DIR] [--precision int8] [--rounds 60] [--beside DIR]

In each round every variant runs once, in turn, on a row of the same length; the lengths change from
round to round as those of questions do. A variant's figure is the median, over rounds, of its time
by the engine's own in the same round; "the same again" shows how much of a ratio is chance.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino

from benchmarks.tables import markdown
from harness.process import MIB, rss_bytes
from qa_service.engine_catalogue import ROWS, precisions_of
from qa_service.inference.engines import EngineConfig
from qa_service.inference.engines.base import named_inputs
from qa_service.inference.engines.openvino import STEP_TOKENS, options
from qa_service.repository.manifest import load_manifest
from qa_service.repository.options import DEFAULT_MODEL

SHORTEST, LONGEST = 100, 230
OWN = "the engine's own"
OPTIONS: dict[str, dict[str, object]] = {
    OWN: {},
    "the same again": {},
    "pinned to a core": {"ENABLE_CPU_PINNING": True},
    "two streams": {"NUM_STREAMS": 2},
    "hint: latency": {"PERFORMANCE_HINT": "LATENCY"},
    "hint: throughput": {"PERFORMANCE_HINT": "THROUGHPUT"},
    "no hyper-threading": {"ENABLE_HYPER_THREADING": False},
    "activations quantised by groups of 64": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"},
}
STATIC = "static shapes, one model a length"
UNPADDED = "lengths as they come"
Run = Callable[[int], object]


def rows(tokens: int) -> list[np.ndarray]:
    """A row of each input: ids, mask, types; int64 [1, tokens]."""
    ids = np.full((1, tokens), 1000, np.int64)
    return [ids, np.ones_like(ids), np.zeros_like(ids)]


def padded(tokens: int) -> int:
    """The length that the engine gives it."""
    return -(-tokens // STEP_TOKENS) * STEP_TOKENS


def variants(
    path: Path, chosen: dict[str, object], inputs: tuple[str, ...], beside: Path | None
) -> dict[str, Run]:
    """What runs a row of so many tokens, in each way; and another file in the engine's own."""
    core = openvino.Core()

    def asking(request: openvino.InferRequest, step: bool = True) -> Run:
        def run(tokens: int) -> object:
            row = rows(padded(tokens) if step else tokens)
            return request.infer(named_inputs(inputs, *row), share_inputs=True)

        return run

    runs = {
        name: asking(core.compile_model(str(path), "CPU", chosen | more).create_infer_request())
        for name, more in OPTIONS.items()
    }
    runs[UNPADDED] = asking(
        core.compile_model(str(path), "CPU", chosen).create_infer_request(), step=False
    )
    if beside:
        other = core.compile_model(str(beside), "CPU", chosen)
        runs[f"the file of {beside.parent}"] = asking(other.create_infer_request())
    static: dict[int, Run] = {}

    def run_static(tokens: int) -> object:
        if (width := padded(tokens)) not in static:
            model = core.read_model(str(path))
            model.reshape({name: [1, width] for name in inputs})
            static[width] = asking(core.compile_model(model, "CPU", chosen).create_infer_request())
        return static[width](tokens)

    runs[STATIC] = run_static
    return runs


def warm(run: Run) -> tuple[float, float]:
    """Runs every length once; returns how long it took, in seconds, and the memory, in MiB."""
    started_s, before = time.perf_counter(), rss_bytes(os.getpid())
    for tokens in range(SHORTEST, LONGEST + STEP_TOKENS, STEP_TOKENS):
        run(tokens)
    return time.perf_counter() - started_s, (rss_bytes(os.getpid()) - before) / MIB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    parser.add_argument("--precision", default="int8", choices=precisions_of("openvino"))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--beside", type=Path, help="another prepared model, to be run too")
    flags = parser.parse_args()
    manifest = load_manifest(flags.model)
    name = ROWS["openvino", flags.precision].file
    config = EngineConfig(intra_op_num_threads=1, precision=flags.precision)
    with tempfile.TemporaryDirectory() as folder:
        chosen = options(config, Path(folder))
        beside = flags.beside and flags.beside / name
        runs = variants(flags.model / name, chosen, manifest.inputs, beside)
        warming = {name: warm(run) for name, run in runs.items()}
        times_ms: dict[str, list[float]] = {name: [] for name in runs}
        draw = random.Random(0)
        for _ in range(flags.rounds):
            tokens = draw.randint(SHORTEST, LONGEST)
            for name, run in runs.items():
                started_s = time.perf_counter()
                run(tokens)
                times_ms[name].append((time.perf_counter() - started_s) * 1e3)
    lines = []
    for name, took_ms in times_ms.items():
        ratios = [ms / own for ms, own in zip(took_ms, times_ms[OWN], strict=True)]
        figures = [statistics.median(took_ms), statistics.median(ratios), *warming[name]]
        lines.append([name, *(f"{x:.{n}f}" for x, n in zip(figures, (1, 2, 1, 0), strict=True))])
    lengths = f"{SHORTEST} to {LONGEST} tokens"
    print(f"openvino {openvino.__version__}, {flags.precision}, one thread, {lengths}\n")
    print(markdown(["", "ms", "by the engine's own", "first runs, s", "MiB more"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
