"""`model.onnx` becomes `model.int8.xml`: the int8 of the OpenVINO engine.

Weights are int8 in the file, by NNCF, with a scale and a zero for each output. What they are
multiplied with is rounded as it runs, with a scale for so many values of a row, which the file
says. A scale fixed beforehand for all rows would be a little faster, but changes more answers
(docs/TRAINING.md).

NNCF is needed here alone, and an extra of its own: `pip install 'qa-server[int8]'`.
"""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from qa_service.errors import SetupError
from qa_service.preparation.sources import first_line

if TYPE_CHECKING:
    import openvino

_VALUES_A_SCALE = ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"]
"""Where the file says it."""


def quantize(fp32: Path, int8: Path) -> None:
    """Writes a graph's int8 twin for OpenVINO: `int8`, and its weights in a `.bin` beside.

    Args:
        fp32: The graph.
        int8: Where its twin goes.

    Raises:
        SetupError: NNCF cannot quantise this graph.
    """
    os.environ.setdefault("NNCF_CI", "1")  # it would report its use to its makers
    import nncf  # noqa: PLC0415
    import openvino  # noqa: PLC0415

    nncf.set_log_level(logging.WARNING)
    try:
        model = nncf.compress_weights(
            openvino.Core().read_model(str(fp32)),
            mode=nncf.CompressWeightsMode.INT8_ASYM,
            ignored_scope=nncf.IgnoredScope(types=["Gather"]),  # embeddings are not multiplied
        )
        model.set_rt_info(str(_inputs_in_common(model)), _VALUES_A_SCALE)
        openvino.save_model(model, str(int8), compress_to_fp16=False)
    except Exception as error:  # both raise classes of their own
        raise SetupError(
            f"the model cannot be quantised for OpenVINO: {first_line(error)}"
        ) from None


def _inputs_in_common(model: openvino.Model) -> int:
    """The greatest number that divides the inputs of every product with weights."""
    products = (node for node in model.get_ops() if node.get_type_name() == "MatMul")
    inputs = []
    for product in products:
        weights = product.input(1).get_partial_shape()
        if weights.is_static:
            axis = -1 if product.get_attributes()["transpose_b"] else -2
            inputs.append(weights.to_shape()[axis])
    return math.gcd(*inputs)
