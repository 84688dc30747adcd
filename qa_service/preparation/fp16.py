"""Makes `model.fp16.onnx`, for GPUs."""

from __future__ import annotations

from pathlib import Path

import onnx

from qa_service.preparation.sources import as_setup_error


def convert_to_fp16(fp32: Path, fp16: Path) -> None:
    """Writes a graph, fused if it can be, in half precision, for GPUs.

    Inputs and outputs keep their types. On a CPU, which has no kernels for it, ONNX Runtime
    converts around every operator: slow, but enough to check the file without a GPU.

    Raises:
        SetupError: onnxruntime cannot convert this graph.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415, rare

    with as_setup_error("the model cannot be converted to fp16"):
        # Shape inference fails at onnxruntime's fused operators, and is not needed.
        model = convert_float_to_float16(
            onnx.load(str(fp32)), keep_io_types=True, disable_shape_infer=True
        )
        onnx.save(model, str(fp16))
