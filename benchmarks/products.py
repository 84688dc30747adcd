"""Matrix products by themselves, in the best kernel at hand: what a model could take at best.

Kernels of ONNX Runtime, OpenVINO and PyTorch are timed in turn for each shape, on one thread; a
library that is not installed, or refuses a shape, is left out. How many GFLOP/s the core can do at
all in a precision is what the best of them does with a large square product.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from qa_service.engine_catalogue import is_installed
from qa_service.instance.engines import EngineConfig
from qa_service.instance.engines.onnx import session_options
from qa_service.preparation.openvino_int8 import round_weights

Shape = tuple[int, int, int, int]
"""How many products at once, rows, columns between, columns out."""
Run = Callable[[], object]
Maker = Callable[[np.ndarray, np.ndarray], Run]

SQUARE: Shape = (1, 1024, 1024, 1024)


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


def flop(shape: Shape) -> int:
    """Its multiplications and additions."""
    return 2 * int(np.prod(shape))


def precision_of(shape: Shape, precision: str) -> str:
    """What an engine of a precision computes a product in: attention has no weights to round."""
    if shape[0] == 1:
        return "int8" if precision.startswith("int8") else precision
    return "bf16" if precision.endswith("bf16") else "fp32"


@dataclass(slots=True)
class Product:
    """One shape, and by library the kernels that compute it and the time of each run."""

    shape: Shape
    kernels: dict[str, Run]
    times_ms: dict[str, list[float]] = field(default_factory=dict)

    def run(self) -> None:
        """A round: each kernel once."""
        for name, run in self.kernels.items():
            self.times_ms.setdefault(name, []).append(took_ms(run))

    @property
    def best(self) -> str:
        """The library of the fastest kernel by its median."""
        return min(self.times_ms, key=lambda name: statistics.median(self.times_ms[name]))

    @property
    def best_ms(self) -> list[float]:
        """What the fastest kernel took in each round."""
        return self.times_ms[self.best]

    @property
    def gflop_per_s(self) -> float:
        """What the fastest kernel does."""
        return flop(self.shape) / statistics.median(self.best_ms) / 1e6

    @property
    def peak_gflop_per_s(self) -> float:
        """What any kernel did in its fastest run."""
        return flop(self.shape) / min(map(min, self.times_ms.values())) / 1e6


def took_ms(run: Run) -> float:
    """How long something takes."""
    started_s = time.perf_counter()
    run()
    return (time.perf_counter() - started_s) * 1e3


def make_product(shape: Shape, precision: str) -> Product:
    """A product with every kernel that computes it here, each run once.

    Args:
        precision: `fp32`, `bf16` or `int8`.

    Raises:
        ValueError: No library at hand computes it.
    """
    times, rows, inner, columns = shape
    random = np.random.default_rng(0)
    left: np.ndarray = random.standard_normal((times, rows, inner), np.float32)
    right: np.ndarray = random.standard_normal((times, inner, columns), np.float32)
    kernels: dict[str, Run] = {}
    for name, maker in _makers(precision):
        try:
            kernel = maker(left, right)
            kernel()
        except Exception:
            continue
        kernels[name] = kernel
    if not kernels:
        raise ValueError(f"no library at hand computes products in {precision}")
    return Product(shape, kernels)


def _makers(precision: str) -> Iterator[tuple[str, Maker]]:
    """What makes a kernel of each library that is installed."""
    if precision in _ONNX:
        yield "ONNX Runtime", _ONNX[precision]
    if is_installed("openvino"):
        yield "OpenVINO", lambda left, right: _openvino(left, right, precision)
    if is_installed("torch"):
        yield "PyTorch", lambda left, right: _torch(left, right, precision)


def _onnx_fp32(left: np.ndarray, right: np.ndarray) -> Run:
    if len(left) == 1:
        return _session("MatMul", {"left": left}, right, TensorProto.FLOAT)
    return _session("MatMul", {"left": left, "right": right}, None, TensorProto.FLOAT)


def _onnx_int8(left: np.ndarray, right: np.ndarray) -> Run:
    rounded, _, _ = round_weights(left[0], 1)
    weights = (round_weights(right[0], 1)[0] // 2).astype(np.int8)
    return _session("MatMulInteger", {"left": rounded[None]}, weights, TensorProto.INT32)


def _session(
    operator: str, given: dict[str, np.ndarray], weight: np.ndarray | None, out: int
) -> Run:
    constants = [] if weight is None else [numpy_helper.from_array(weight, "right")]
    session = onnxruntime.InferenceSession(
        _graph(operator, given, constants, out).SerializeToString(),
        session_options(EngineConfig()),
        ["CPUExecutionProvider"],
    )
    return lambda: session.run(None, given)


def _graph(
    operator: str, given: dict[str, np.ndarray], constants: list[TensorProto], out: int
) -> onnx.ModelProto:
    """One operator of `left` and `right`; compressed weights are dequantised before it."""
    nodes = [helper.make_node(operator, ["left", "right"], ["out"])]
    if len(constants) > 1:
        names = [item.name for item in constants]
        nodes.insert(0, helper.make_node("DequantizeLinear", names, ["right"], axis=1))
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in given.items()
    ]
    graph = helper.make_graph(
        nodes, "product", inputs, [helper.make_tensor_value_info("out", out, None)], constants
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


_ONNX: dict[str, Maker] = {"fp32": _onnx_fp32, "int8": _onnx_int8}


def _openvino(left: np.ndarray, right: np.ndarray, precision: str) -> Run:
    from qa_service.instance.engines.quiet_openvino import openvino  # noqa: PLC0415

    given = {"left": left}
    constants = []
    if len(left) > 1:
        given["right"] = right
    elif precision == "int8":
        arrays: Sequence[Any] = round_weights(right[0], 1)
        parts = zip(("rounded", "scale", "zero"), arrays, strict=True)
        constants = [numpy_helper.from_array(array, name) for name, array in parts]
    else:
        constants = [numpy_helper.from_array(right, "right")]
    core = openvino.Core()
    needs_bf16 = precision == "bf16"
    if needs_bf16 and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ValueError("this processor does not compute in bf16")
    model = core.read_model(
        _graph("MatMul", given, constants, TensorProto.FLOAT).SerializeToString()
    )
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": 1,
            "INFERENCE_PRECISION_HINT": "bf16" if needs_bf16 else "f32",
        },
    )
    request = compiled.create_infer_request()
    return lambda: request.infer(given, share_inputs=True, share_outputs=True)


def _torch(left: np.ndarray, right: np.ndarray, precision: str) -> Run:
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    ours, theirs = torch.from_numpy(left), torch.from_numpy(right)
    if precision == "int8":
        ours, theirs = (tensor[0].mul(30).to(torch.int8) for tensor in (ours, theirs))
        return lambda: torch._int_mm(ours, theirs)
    if precision == "bf16":
        ours, theirs = ours.bfloat16(), theirs.bfloat16()
    return lambda: torch.matmul(ours, theirs)
