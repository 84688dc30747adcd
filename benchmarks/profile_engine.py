"""Where a question's time goes in an engine, beside what its matrix products take alone.

    taskset -c 0 python -m benchmarks.profile_engine [--inference_engine_type onnx --precision int8]

Without flags, it is what `auto` finds for one thread. The roofline is measured, not looked up: the
products of the model's own shapes, each alone in ONNX Runtime. A round runs the question and each
product once; figures are medians of the rounds, and the ratio is taken in each. Then other runs are
profiled by kind of node; that slows them a little, so their shares count and not their times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.record import Section, make_parser
from benchmarks.tables import markdown, spread
from qa_service.engine_catalogue import AUTO, ROWS
from qa_service.inference.engines import EngineConfig, make_engine
from qa_service.inference.engines.onnx import SLOWER_ON_CPU, onnx_file, session_options
from qa_service.logs import LogOptions
from qa_service.repository.manifest import Manifest, load_manifest
from qa_service.workers.devices import DeviceAssignment
from qa_service.workers.engine_choice import choose_engine
from qa_service.workers.engine_table import Measurement
from qa_service.workers.engine_trial import try_engines
from qa_service.workers.options import InstanceOptions

TOKENS = 166
GOAL = 1.3
PROFILED_RUNS = 50

Shape = tuple[int, int, int, int]
"""How many products at once, rows, columns between, columns out."""
Run = Callable[[], object]


def product_shapes(path: Path, tokens: int) -> Counter[Shape]:
    """The matrix products of one question, by shape; of attention, as many at once as heads."""
    graph = onnx.load(str(path)).graph
    weights = {item.name: list(item.dims) for item in graph.initializer}
    shapes: Counter[Shape] = Counter()
    for node in graph.node:
        for name in node.input[1:2]:
            if node.op_type in {"MatMul", "Attention"} and len(weights.get(name, [])) == 2:
                shapes[1, tokens, weights[name][0], weights[name][1]] += 1
        if node.op_type == "Attention":
            heads = next(item.i for item in node.attribute if item.name == "num_heads")
            head = weights[node.input[1]][1] // 3 // heads
            shapes[heads, tokens, head, tokens] += 1
            shapes[heads, tokens, tokens, head] += 1
    return shapes


def product(shape: Shape, precision: str) -> Run:
    """One product in ONNX Runtime; in int8 of integers, if it is one with a weight."""
    times, rows, inner, columns = shape
    random = np.random.default_rng(0)
    is_int8 = precision.startswith("int8") and times == 1
    left: np.ndarray = random.standard_normal((times, rows, inner), np.float32)
    right: np.ndarray = random.standard_normal((times, inner, columns), np.float32)
    if is_int8:
        left = random.integers(0, 255, left.shape, np.uint8)
        right = random.integers(-64, 64, right.shape[1:], np.int8)
    constants = [numpy_helper.from_array(right, "right")] if times == 1 else []
    given = {"left": left} if times == 1 else {"left": left, "right": right}
    node = helper.make_node("MatMulInteger" if is_int8 else "MatMul", ["left", "right"], ["out"])
    kind = TensorProto.UINT8 if is_int8 else TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(name, kind, None) for name in given]
    out = helper.make_tensor_value_info(
        "out", TensorProto.INT32 if is_int8 else TensorProto.FLOAT, None
    )
    model = helper.make_model(
        helper.make_graph([node], "product", inputs, [out], constants),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options(EngineConfig()), ["CPUExecutionProvider"]
    )
    return lambda: session.run(None, given)


def inputs(manifest: Manifest, tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, mask and types of one row."""
    ids = np.random.default_rng(0).integers(1000, 20000, (1, tokens))
    return ids, np.ones_like(ids), np.zeros_like(ids)


def took_ms(run: Run) -> float:
    started_s = time.perf_counter()
    run()
    return (time.perf_counter() - started_s) * 1e3


def against_products(
    section: Section, question: Run, shapes: Counter[Shape], precision: str, rounds: int
) -> None:
    """Times the question and its products in turn."""
    products = {shape: product(shape, precision) for shape in shapes}
    for run in (question, *products.values()):
        run()
    question_ms: list[float] = []
    products_ms: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    for _ in range(rounds):
        question_ms.append(took_ms(question))
        for shape, run in products.items():
            products_ms[shape].append(took_ms(run))
    sums_ms = [
        sum(count * products_ms[shape][number] for shape, count in shapes.items())
        for number in range(rounds)
    ]
    ratios = [whole / part for whole, part in zip(question_ms, sums_ms, strict=True)]
    rows = []
    for shape, count in sorted(shapes.items()):
        flop = 2 * np.prod(shape)
        middle_ms = statistics.median(products_ms[shape])
        name = " x ".join(map(str, shape if shape[0] > 1 else shape[1:]))
        rows.append([name, count, f"{middle_ms:.3f}", f"{flop / middle_ms / 1e6:.0f}"])
    section.say(markdown(["product", "times", "ms each", "GFLOP/s"], rows))
    whole = [["the question, ms", spread(question_ms, 2)], ["its products, ms", spread(sums_ms, 2)]]
    whole += [[f"**question / products** (goal {GOAL})", f"**{spread(ratios, 2)}**"]]
    section.say(markdown(["", "median (range)"], whole))
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
    import openvino  # noqa: PLC0415

    options = {
        "PERF_COUNT": True,
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": "bf16" if precision.endswith("bf16") else "f32",
    }
    request = openvino.Core().compile_model(str(path), "CPU", options).create_infer_request()
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
        table = found.table(try_engines(found.candidates, LogOptions(log_level="error")))
        found = found.choice(table)
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
    engine = make_engine(engine_type, flags.model, manifest, EngineConfig(precision=precision))
    row = inputs(manifest, TOKENS)
    section = Section(
        f"profile_{engine_type}_{precision}", f"One question: {engine.runtime}", flags
    )
    shapes = product_shapes(flags.model / "model.onnx", TOKENS)
    flop = sum(count * 2 * int(np.prod(shape)) for shape, count in shapes.items())
    section.say(f"{TOKENS} tokens, {flop / 1e9:.2f} GFLOP in products.")
    rounds = 5 if flags.quick else flags.repeats
    against_products(section, lambda: engine.logits(*row), shapes, precision, rounds)
    names = ("input_ids", "attention_mask", "token_type_ids")
    feeds = {name: value for name, value in zip(names, row, strict=True) if name in manifest.inputs}
    if engine_type == "onnx":
        nodes = onnx_nodes(onnx_file(flags.model, manifest, precision), feeds)
    else:
        nodes = openvino_nodes(flags.model / ROWS["openvino", precision].file, feeds, precision)
    section.say(markdown(["kind of node", "share of a run"], list(node_rows(nodes))))
    section.raw["nodes_us"] = dict(nodes)
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
