"""Prints what each option of ONNX Runtime does to the time of one run, beside the engine's own.

python -m benchmarks.onnx_options [--model DIR] [--precision int8] [--rounds 100]

In each round every variant runs once, in turn, on the same tokens; a variant's figure is the
median, over rounds, of its CPU time by the engine's in the same round. So the machine's other work
weighs on both alike, and leaves the ratio; "the same again" shows how much of a ratio is chance.
Variants with two threads are timed by the clock, and by the CPU time of all threads.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime import ExecutionMode, GraphOptimizationLevel, SessionOptions

from qa_service.engine_catalogue import ROWS, precisions_of
from qa_service.inference.engines import EngineConfig
from qa_service.inference.engines.onnx import SLOWER_ON_CPU, session_options
from qa_service.repository.manifest import load_manifest

LENGTHS_TOKENS = (32, 166)
_ERRORS_ONLY = 3
Inputs = dict[str, np.ndarray]
Run = Callable[[Inputs], object]


def entry(name: str, value: str) -> Callable[[SessionOptions], None]:
    return lambda options: options.add_session_config_entry(name, value)


def attribute(name: str, value: object) -> Callable[[SessionOptions], None]:
    return lambda options: setattr(options, name, value)


OPTIONS: dict[str, Callable[[SessionOptions], None]] = {
    "memory arena off": attribute("enable_cpu_mem_arena", False),
    "memory pattern off": attribute("enable_mem_pattern", False),
    "denormals as zero": entry("session.set_denormal_as_zero", "1"),
    "parallel execution": attribute("execution_mode", ExecutionMode.ORT_PARALLEL),
    "prepacking off": entry("session.disable_prepacking", "1"),
    "optimization: basic": attribute(
        "graph_optimization_level", GraphOptimizationLevel.ORT_ENABLE_BASIC
    ),
    "optimization: extended": attribute(
        "graph_optimization_level", GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    ),
    "GELU by tanh": entry("optimization.enable_gelu_approximation", "1"),
}
THREADED: dict[str, Callable[[SessionOptions], None]] = {
    "2 threads": lambda options: None,
    "2 threads that spin for work": entry("session.intra_op.allow_spinning", "1"),
}


class Variants:
    """Sessions over one file that differ in one thing from the engine's."""

    def __init__(self, file: str) -> None:
        self._file = file

    def session(
        self,
        change: Callable[[SessionOptions], None] = lambda options: None,
        num_threads: int = 1,
        disabled: tuple[str, ...] = tuple(SLOWER_ON_CPU),
    ) -> onnxruntime.InferenceSession:
        options = session_options(EngineConfig(num_threads))
        change(options)
        return onnxruntime.InferenceSession(
            self._file, options, ["CPUExecutionProvider"], disabled_optimizers=list(disabled)
        )

    def runs(self) -> dict[str, Run]:
        """A callable of each variant with one thread; the first is the engine's own way."""
        base = self.session()
        runs = {"as it is": plain(base), "the same again": plain(self.session())}
        runs["SkipLayerNormFusion on"] = plain(self.session(disabled=()))
        runs["IO binding"] = bound(base)
        runs["values of ONNX Runtime's"] = with_values(base)
        return runs | {name: plain(self.session(change)) for name, change in OPTIONS.items()}

    def threaded_runs(self) -> dict[str, Run]:
        two = {name: plain(self.session(change, 2)) for name, change in THREADED.items()}
        return {"1 thread": plain(self.session())} | two


def plain(session: onnxruntime.InferenceSession) -> Run:
    return lambda inputs: session.run(None, inputs)


def bound(session: onnxruntime.InferenceSession) -> Run:
    """Inputs and outputs bound to memory made beforehand: no copy, no allocation at the ends."""
    binding = session.io_binding()

    def run(inputs: Inputs) -> object:
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    return run


def with_values(session: onnxruntime.InferenceSession) -> Run:
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Inputs) -> object:
        values = {k: onnxruntime.OrtValue.ortvalue_from_numpy(v) for k, v in inputs.items()}
        return [value.numpy() for value in session.run_with_ort_values(names, values)]

    return run


def measure(
    runs: dict[str, Run], inputs: Inputs, rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Times of each variant, round by round, in milliseconds; each round starts elsewhere."""
    times_ms: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for _ in range(rounds):
        order.append(order.pop(0))
        for name in order:
            begin = clock()
            runs[name](inputs)
            times_ms[name].append(1e3 * (clock() - begin))
    return times_ms


def report(runs: dict[str, Run], names: tuple[str, ...], rounds: int, clock: str) -> None:
    print(f"\n| {clock} | " + " | ".join(f"{n} tokens, ms | ratio" for n in LENGTHS_TOKENS) + " |")
    print("|---|" + "---:|---|" * len(LENGTHS_TOKENS))
    rows: dict[str, list[str]] = {name: [] for name in runs}
    for length in LENGTHS_TOKENS:
        ids = np.random.default_rng(length).integers(1000, 20000, (1, length))
        inputs = {name: ids if name == "input_ids" else np.ones_like(ids) for name in names}
        measure(runs, inputs, 3, time.perf_counter)
        times_ms = measure(runs, inputs, rounds, getattr(time, clock))
        first = next(iter(times_ms.values()))
        for name, times in times_ms.items():
            ratios = [ours / theirs for ours, theirs in zip(times, first, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            rows[name] += [
                f"{statistics.median(times):.2f}",
                f"{middle:.3f} ({low:.2f}-{high:.2f})",
            ]
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


def report_loading(variants: Variants, repeats: int) -> None:
    """How long a session takes to load, from the file and from one optimized beforehand."""
    none = attribute("graph_optimization_level", GraphOptimizationLevel.ORT_DISABLE_ALL)
    with tempfile.TemporaryDirectory() as folder:
        optimized = str(Path(folder) / "optimized.onnx")
        variants.session(attribute("optimized_model_filepath", optimized))
        loads = {
            "loading the file": variants.session,
            "loading it optimized": lambda: Variants(optimized).session(none),
        }
        runs = {name: lambda _, load=load: load() for name, load in loads.items()}
        times_ms = measure(runs, {}, repeats, time.thread_time)
    for name, times in times_ms.items():
        print(f"{name}: {statistics.median(times):.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("saved_models/builtin"))
    parser.add_argument("--precision", choices=precisions_of("onnx"), default="fp32")
    parser.add_argument("--rounds", type=int, default=50)
    flags = parser.parse_args()
    onnxruntime.set_default_logger_severity(_ERRORS_ONLY)
    manifest = load_manifest(flags.model)
    variants = Variants(str(flags.model / ROWS["onnx", flags.precision].file))
    print(f"onnxruntime {onnxruntime.__version__}, {manifest.name} {flags.precision}, batch 1")
    report(variants.runs(), manifest.inputs, flags.rounds, "thread_time")
    for clock in ("perf_counter", "process_time"):
        report(variants.threaded_runs(), manifest.inputs, flags.rounds, clock)
    print()
    report_loading(variants, repeats=5)


if __name__ == "__main__":
    main()
