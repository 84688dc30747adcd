"""A graph's version, and what is made of it: attention fused, fp16, OpenVINO's int8.

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

from qa_service.preparation.sources import as_setup_error

MIN_OPSET = 13
"""The first in which a weight can have a scale for each output, as int8's need."""
MIN_OUTPUTS = 32
"""A product with fewer, such as the last one with two logits, stays in float32: it is quick."""
_PRODUCTS = ("Attention", "Gemm", "MatMul")
"""Operators whose second input is a weight, if it is a constant."""

_LARGEST = 255
"""Of a uint8."""


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators that a graph is written in."""
    own = (its for its in model.opset_import if its.domain in ("", "ai.onnx"))
    return int(next(own).version)


def fuse(path: Path, num_heads: int, hidden_size: int) -> int:
    """Fuses a graph's attention in place, if it can be; returns the number of layers.

    Residual additions stay apart from their normalization: with ONNX Runtime's one kernel for both
    (SkipLayerNormalization), the built-in model takes 8 % longer on a CPU core. An instance fuses
    them when it loads the file, unless an option forbids it.
    """
    from onnxruntime.transformers import optimizer  # noqa: PLC0415, slow, as below
    from onnxruntime.transformers.fusion_options import FusionOptions  # noqa: PLC0415

    options = FusionOptions("bert")
    options.enable_skip_layer_norm = False
    try:
        fused = optimizer.optimize_model(
            str(path),
            model_type="bert",
            num_heads=num_heads,
            hidden_size=hidden_size,
            optimization_options=options,
            opt_level=0,
        )
    except Exception:  # an unknown architecture may fail anywhere; the plain graph still serves
        return 0
    layers = fused.get_fused_operator_statistics()["Attention"]
    if layers:
        fused.save_model_to_file(str(path))
    return int(layers)


def convert_to_fp16(fp32: Path, fp16: Path) -> None:
    """Writes a graph, fused if it can be, in half precision, for GPUs.

    Inputs and outputs keep their types. On a CPU, which has no kernels for it, ONNX Runtime
    converts around every operator: slow, but enough to check the file without a GPU.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415, rare

    with as_setup_error("the model cannot be converted to fp16"):
        # Shape inference fails at onnxruntime's fused operators, and is not needed.
        model = convert_float_to_float16(
            onnx.load(str(fp32)), keep_io_types=True, disable_shape_infer=True
        )
        onnx.save(model, str(fp16))


def compress_for_openvino(fp32: Path, int8: Path) -> None:
    """Writes a graph, fused if it can be, in OpenVINO's int8."""
    with as_setup_error("the model cannot be quantised for OpenVINO"):
        model = onnx.load(str(fp32))
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        axes = {
            node.input[1]: _output_axis(node)
            for node in model.graph.node
            if _is_product(node, tensors)
        }
        if not axes:
            raise ValueError("it has no product with a float32 weight")
        nodes = list(model.graph.node)
        for name, axis in axes.items():
            parts = [f"{name}_{part}" for part in ("rounded", "scale", "zero")]
            arrays: list[npt.NDArray[np.generic]]
            arrays = [*round_weights(numpy_helper.to_array(tensors[name]), axis)]
            model.graph.initializer.remove(tensors[name])
            for part, array in zip(parts, arrays, strict=True):
                model.graph.initializer.append(numpy_helper.from_array(array, part))
            nodes.insert(0, helper.make_node("DequantizeLinear", parts, [name], name, axis=axis))
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        onnx.save(model, str(int8))


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
