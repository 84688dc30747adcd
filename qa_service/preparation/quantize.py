"""`model.onnx` becomes `model.int8.onnx`: 8-bit weights, activations quantised as they come.

Each matrix's output channels have scales of their own; an activation has one scale for the whole
batch (onnxruntime quantises no finer), so that an answer may shift a little with its companions.
"""

from __future__ import annotations

import logging
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from qa_service.errors import SetupError
from qa_service.preparation.sources import first_line

_OPERATORS = ["MatMul", "Attention"]
"""Those that multiply by a weight. Attention is the fused one: its projections are quantised,
its softmax is not."""


def quantize(fp32: Path, int8: Path) -> None:
    """Writes a graph's int8 twin.

    Weights are signed, which the 8-bit instructions of x86 (VNNI) and Arm want; left unsigned,
    the built-in model takes 1.8 times as long. They use 7 of the 8 bits: the sums of x86 processors
    without VNNI overflow otherwise (onnxruntime, "Quantize ONNX models"), and the built-in
    model loses no F1 by it.

    Args:
        fp32: The graph, fused if it can be.
        int8: Where its twin goes.

    Raises:
        SetupError: onnxruntime cannot quantise this graph.
    """
    # Types cannot be inferred past onnxruntime's fused operators; all that is quantised is float.
    options = {"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT}
    logging.disable(logging.WARNING)  # it advises a preprocessing that fails on fused graphs
    try:
        quantize_dynamic(
            fp32,
            int8,
            op_types_to_quantize=_OPERATORS,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            extra_options=options,
        )
    except Exception as error:  # it raises whatever an unusual graph trips
        raise SetupError(f"the model cannot be quantised: {first_line(error)}") from None
    finally:
        logging.disable(logging.NOTSET)
