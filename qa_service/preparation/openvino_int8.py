"""`model.onnx` becomes `model.int8.xml`: the int8 of the OpenVINO engine, made by NNCF.

NNCF smooths activations and corrects biases on real text (its scheme for transformers), and gives
each product one scale for all its activations. That is too coarse after the activation function,
where few values are large: products that make rows narrower have only their weights in int8, and
OpenVINO rounds what they are multiplied with as it runs, with a scale for every so many values.

NNCF is needed here alone, and an extra of its own: `pip install 'qa-server[int8]'`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qa_service.errors import SetupError
from qa_service.preparation.quantize import Inputs
from qa_service.preparation.sources import first_line

if TYPE_CHECKING:
    import openvino

_VALUES_A_SCALE = ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"]
"""Where the file says it; OpenVINO's own choice, 32, is slower."""


def quantize(fp32: Path, int8: Path, texts: Sequence[Inputs]) -> None:
    """Writes a graph's int8 twin for OpenVINO: `int8`, and its weights in a `.bin` beside.

    Args:
        fp32: The graph.
        int8: Where its twin goes.
        texts: What the model is given for some real text.

    Raises:
        SetupError: NNCF cannot quantise this graph.
    """
    os.environ.setdefault("NNCF_CI", "1")  # it would report its use to its makers
    import nncf  # noqa: PLC0415
    import openvino  # noqa: PLC0415

    try:
        model = openvino.Core().read_model(str(fp32))
        narrowing = _narrowing(model)
        model = nncf.quantize(
            model,
            nncf.Dataset([dict(inputs) for inputs in texts]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(texts),
            ignored_scope=nncf.IgnoredScope(names=list(narrowing)),
        )
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
        model.set_rt_info(str(max(narrowing.values())), _VALUES_A_SCALE)
        openvino.save_model(model, str(int8), compress_to_fp16=False)
    except Exception as error:  # both raise classes of their own
        raise SetupError(
            f"the model cannot be quantised for OpenVINO: {first_line(error)}"
        ) from None


def _narrowing(model: openvino.Model) -> dict[str, int]:
    """Products with weights that have fewer outputs than inputs: names, with their outputs."""
    found = {}
    for node in model.get_ops():
        weights = node.input(1).get_partial_shape() if node.get_type_name() == "MatMul" else None
        if weights is not None and weights.is_static and len(weights) == 2:
            inputs, outputs = weights.to_shape()
            if outputs < inputs:
                found[node.get_friendly_name()] = outputs
    return found
