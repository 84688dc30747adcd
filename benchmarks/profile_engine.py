"""The time of a question in an engine, compared with that of its matrix products alone.

    taskset -c 0 python -m benchmarks.profile_engine [--inference_engine_type onnx --precision int8]

Without flags, it is what `auto` finds for one thread. The roofline is measured, not looked up: the
products of the model's own shapes, each alone in the best kernel of the libraries at hand that
computes in the engine's precision (`products`). A round runs the question and each product once;
figures are medians of the rounds, and the ratio is taken in each. Then other runs are profiled by
kind of node; that slows them a little, so their shares count and not their times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.products import (
    SQUARE,
    Product,
    Run,
    Shape,
    flop,
    make_product,
    precision_of,
    product_shapes,
    took_ms,
)
from benchmarks.record import Section, make_parser
from benchmarks.tables import markdown, spread
from qa_service.autotune.candidates import choose_engine
from qa_service.autotune.engine_table import Measurement
from qa_service.autotune.engine_trial import try_engines
from qa_service.engine_catalogue import AUTO, ROWS
from qa_service.instance.devices import DeviceAssignment
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.engines.onnx import SLOWER_ON_CPU, session_options
from qa_service.instance.model_folder.manifest import Manifest, load_manifest
from qa_service.instance.options import InstanceOptions
from qa_service.logs import LogOptions

TOKENS = 166
SQUARE_ROUNDS = 20
PROFILED_RUNS = 50
WARMUP_RUNS, STATIC_SHAPES_BYTES = 200, 2**30
"""So OpenVINO has compiled the model for the row's length before the first round."""


def inputs(manifest: Manifest, tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, mask and types of one row."""
    ids = np.random.default_rng(0).integers(1000, 20000, (1, tokens))
    return ids, np.ones_like(ids), np.zeros_like(ids)


def against_products(
    section: Section, question: Run, shapes: Counter[Shape], precision: str, rounds: int
) -> None:
    """Times the question and its products in turn."""
    products = {shape: make_product(shape, precision_of(shape, precision)) for shape in shapes}
    needed = {precision_of(shape, precision) for shape in shapes}
    squares = {needed_one: make_product(SQUARE, needed_one) for needed_one in sorted(needed)}
    question()
    question_ms: list[float] = []
    for _ in range(rounds):
        question_ms.append(took_ms(question))
        for one in products.values():
            one.run()
    for _ in range(min(rounds, SQUARE_ROUNDS)):
        for one in squares.values():
            one.run()
    by_precision = {
        name: max(
            square.peak_gflop_per_s,
            *(
                one.peak_gflop_per_s
                for s, one in products.items()
                if precision_of(s, precision) == name
            ),
        )
        for name, square in squares.items()
    }
    say_products(section, products, by_precision, precision, shapes)
    say_question(section, question_ms, products, shapes)


def say_products(
    section: Section,
    products: dict[Shape, Product],
    by_precision: dict[str, float],
    precision: str,
    shapes: Counter[Shape],
) -> None:
    """A row for each shape: its best kernel, compared with the core's peak."""
    rows = []
    for shape, one in sorted(products.items()):
        name = " x ".join(map(str, shape if shape[0] > 1 else shape[1:]))
        its = precision_of(shape, precision)
        share = one.gflop_per_s / by_precision[its]
        middle_ms = statistics.median(one.best_ms)
        rows.append(
            [name, shapes[shape], its, one.best, f"{middle_ms:.3f}", f"{one.gflop_per_s:.0f}",
             f"{share:.0%}"]
        )  # fmt: skip
    header = ["product", "times", "precision", "best kernel", "ms each", "GFLOP/s", "of the core"]
    section.say(markdown(header, rows))
    at_all = ", ".join(f"{value:.0f} in {name}" for name, value in by_precision.items())
    section.say(
        f"What the core can do at all, in GFLOP/s: {at_all}; the fastest run of these products "
        f"and of one of {SQUARE[1]} x {SQUARE[2]} x {SQUARE[3]}."
    )
    section.raw |= {
        "gflop_per_s_at_all": by_precision,
        "kernels_ms": {
            str(shape): {name: statistics.median(ms) for name, ms in one.times_ms.items()}
            for shape, one in products.items()
        },
    }


def say_question(
    section: Section,
    question_ms: list[float],
    products: dict[Shape, Product],
    shapes: Counter[Shape],
) -> None:
    """The question and the sum of its products, round by round."""
    sums_ms = [
        sum(count * products[shape].best_ms[number] for shape, count in shapes.items())
        for number in range(len(question_ms))
    ]
    ratios = [whole / part for whole, part in zip(question_ms, sums_ms, strict=True)]
    total = sum(count * flop(shape) for shape, count in shapes.items())
    rates = [total / whole_ms / 1e6 for whole_ms in question_ms]
    rows = [
        ["the question, ms", spread(question_ms, 2)],
        ["the question, GFLOP/s of its products", spread(rates, 0)],
        ["its products in the best kernels, ms", spread(sums_ms, 2)],
        ["**question / products**", f"**{spread(ratios, 2)}**"],
    ]
    section.say(markdown(["", "median (range)"], rows))
    section.raw |= {"question_ms": question_ms, "products_ms": sums_ms, "ratios": ratios}


def onnx_nodes(path: Path, feeds: dict[str, np.ndarray]) -> Counter[str]:
    """Microseconds by kind of node, of ONNX Runtime's own profiler."""
    options = session_options(EngineConfig())
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = f"{folder}/profile"
        session = onnxruntime.InferenceSession(
            str(path), options, ["CPUExecutionProvider"], disabled_optimizers=SLOWER_ON_CPU
        )
        for _ in range(PROFILED_RUNS):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    found: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            found[event["args"]["op_name"]] += event["dur"]
    return found


def openvino_nodes(path: Path, feeds: dict[str, np.ndarray], precision: str) -> Counter[str]:
    """Microseconds by kind of node, of OpenVINO's own counters."""
    from qa_service.instance.engines.openvino import options  # noqa: PLC0415
    from qa_service.instance.engines.quiet_openvino import openvino  # noqa: PLC0415

    core, profiled = openvino.Core(), {"PERF_COUNT": True}
    model = core.read_model(str(path))
    model.reshape({name: row.shape for name, row in feeds.items()})
    own = options(EngineConfig(precision=precision))
    request = core.compile_model(model, "CPU", own | profiled).create_infer_request()
    found: Counter[str] = Counter()
    for _ in range(PROFILED_RUNS):
        request.infer(feeds)
        for item in request.profiling_info:
            found[item.node_type] += round(item.real_time.total_seconds() * 1e6)
    return found


def node_rows(found: Counter[str]) -> Iterator[list[str]]:
    """The kinds of node, the costliest first; what is under a hundredth together."""
    total = found.total()
    small = sum(cost for cost in found.values() if cost < total / 100)
    for name, cost in found.most_common():
        if cost >= total / 100:
            yield [name, f"{cost / total:.1%}"]
    yield ["all others", f"{small / total:.1%}"]


def chosen(flags: argparse.Namespace, manifest: Manifest) -> tuple[str, str]:
    """The engine and precision that were named, or what `auto` finds."""
    options = InstanceOptions(
        inference_engine_type=flags.inference_engine_type,
        precision=flags.precision,
        intra_op_num_threads=1,
    )
    found = choose_engine(options, DeviceAssignment(), flags.model, manifest)
    if isinstance(found, Measurement):
        found = found.choice(try_engines(found, LogOptions(log_level="error"), measures_all=True))
    options = found.options
    return options.inference_engine_type, options.precision


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--inference_engine_type", default=AUTO, choices=(AUTO, "onnx", "openvino"))
    parser.add_argument("--precision", default=AUTO)
    parser.set_defaults(repeats=100)
    flags = parser.parse_args()
    manifest = load_manifest(flags.model)
    engine_type, precision = chosen(flags, manifest)
    config = EngineConfig(precision=precision, static_shapes_bytes=STATIC_SHAPES_BYTES)
    engine = make_engine(engine_type, flags.model, manifest, config)
    row = inputs(manifest, TOKENS)
    for _ in range(WARMUP_RUNS):
        engine.logits(*row)
    section = Section(
        f"profile_{engine_type}_{precision}", f"One question: {engine.runtime}", flags
    )
    shapes = product_shapes(flags.model / "model.onnx", TOKENS)
    total = sum(count * flop(shape) for shape, count in shapes.items())
    section.say(f"{TOKENS} tokens, {total / 1e9:.2f} GFLOP in products.")
    rounds = 5 if flags.quick else flags.repeats
    against_products(section, lambda: engine.logits(*row), shapes, precision, rounds)
    names = ("input_ids", "attention_mask", "token_type_ids")
    feeds = {name: value for name, value in zip(names, row, strict=True) if name in manifest.inputs}
    if engine_type == "onnx":
        nodes = onnx_nodes(flags.model / ROWS["onnx", precision].file, feeds)
    else:
        nodes = openvino_nodes(flags.model / ROWS["openvino", precision].file, feeds, precision)
    section.say(markdown(["kind of node", "share of a run"], list(node_rows(nodes))))
    section.raw["nodes_us"] = dict(nodes)
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
