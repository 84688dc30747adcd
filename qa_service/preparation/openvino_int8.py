"""Makes `model.openvino_int8.onnx`, the int8 of the OpenVINO engine.

    weight (uint8, a scale and a zero for each output) ─▶ DequantizeLinear ─▶ MatMul

OpenVINO treats these as compressed weights: it multiplies integers, and rounds activations as it
runs, with a scale for every few values of a row. A fixed scale for all rows would be a little
faster, but changes more answers (docs/TRAINING.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from qa_service.preparation.quantize import MIN_OUTPUTS
from qa_service.preparation.sources import as_setup_error

_PRODUCTS = ("Attention", "Gemm", "MatMul")
"""Operators whose second input is a weight, if it is a constant."""

_LARGEST = 255
"""Of a uint8."""


def quantize(fp32: Path, int8: Path) -> None:
    """Writes a graph, fused if it can be, in OpenVINO's int8."""
    with as_setup_error("the model cannot be quantised for OpenVINO"):
        model = onnx.load(str(fp32))
        _compress(model.graph)
        onnx.save(model, str(int8))


def _compress(graph: onnx.GraphProto) -> None:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    axes = {node.input[1]: _output_axis(node) for node in graph.node if _is_product(node, tensors)}
    if not axes:
        raise ValueError("it has no product with a float32 weight")
    nodes = list(graph.node)
    for name, axis in axes.items():
        parts = [f"{name}_{part}" for part in ("rounded", "scale", "zero")]
        arrays: list[npt.NDArray[np.generic]]
        arrays = [*round_weights(numpy_helper.to_array(tensors[name]), axis)]
        graph.initializer.remove(tensors[name])
        for part, array in zip(parts, arrays, strict=True):
            graph.initializer.append(numpy_helper.from_array(array, part))
        nodes.insert(0, helper.make_node("DequantizeLinear", parts, [name], name, axis=axis))
    del graph.node[:]
    graph.node.extend(nodes)


def _is_product(node: NodeProto, tensors: Mapping[str, TensorProto]) -> bool:
    weight = tensors.get(node.input[1]) if node.op_type in _PRODUCTS else None
    if weight is None or weight.data_type != TensorProto.FLOAT or len(weight.dims) != 2:
        return False
    return bool(weight.dims[_output_axis(node)] >= MIN_OUTPUTS)


def _output_axis(node: NodeProto) -> int:
    """The axis of the outputs among a weight's two."""
    return 0 if any(item.name == "transB" and item.i for item in node.attribute) else 1


def round_weights(
    weight: npt.NDArray[np.float32], axis: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Rounds a weight to 256 steps from each output's minimum to its maximum.

    Args:
        axis: Which of the weight's two axes is that of the outputs.

    Returns:
        The steps, in the weight's shape; each output's scale, [outputs]; and its zero, the step
        that stands for 0, [outputs].
    """
    columns = weight if axis == 1 else weight.T
    low, high = np.minimum(columns.min(axis=0), 0), np.maximum(columns.max(axis=0), 0)
    scale = np.maximum((high - low) / _LARGEST, np.finfo(np.float32).tiny).astype(np.float32)
    zero = np.rint(-low / scale)
    steps = np.clip(np.rint(columns / scale) + zero, 0, _LARGEST).astype(np.uint8)
    return steps if axis == 1 else steps.T, scale, zero.astype(np.uint8)
