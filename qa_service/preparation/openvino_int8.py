"""`model.onnx` becomes `model.int8.xml`: the int8 of the OpenVINO engine, made by NNCF.

NNCF smooths activations and corrects biases on real text (its scheme for transformers). It is
needed here alone, and an extra of its own: `pip install 'qa-server[int8]'`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from qa_service.errors import SetupError
from qa_service.preparation.quantize import Inputs
from qa_service.preparation.sources import first_line


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
        model = nncf.quantize(
            openvino.Core().read_model(str(fp32)),
            nncf.Dataset([dict(inputs) for inputs in texts]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(texts),
        )
        openvino.save_model(model, str(int8), compress_to_fp16=False)
    except Exception as error:  # both raise classes of their own
        raise SetupError(
            f"the model cannot be quantised for OpenVINO: {first_line(error)}"
        ) from None
