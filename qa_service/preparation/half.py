"""`model.onnx` becomes `model.fp16.onnx`, for GPUs: weights and arithmetic in half precision.

Its inputs and outputs stay as they are. A CPU has no kernels for it: ONNX Runtime then puts
conversions around every operator, which gives the right answers, slowly; so it can be checked
where there is no GPU.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16

from qa_service.errors import SetupError
from qa_service.preparation.sources import first_line


def convert(fp32: Path, fp16: Path) -> None:
    """Writes a graph's half-precision twin.

    Args:
        fp32: The graph, fused if it can be.
        fp16: The file to write.

    Raises:
        SetupError: onnxruntime cannot convert this graph.
    """
    try:
        # Types cannot be inferred past onnxruntime's fused operators, nor need they be.
        model = convert_float_to_float16(
            onnx.load(str(fp32)), keep_io_types=True, disable_shape_infer=True
        )
        onnx.save(model, str(fp16))
    except Exception as error:  # it raises whatever an unusual graph trips
        raise SetupError(f"the model cannot be converted to fp16: {first_line(error)}") from None
