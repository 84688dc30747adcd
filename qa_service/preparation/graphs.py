"""A graph's version, and what ONNX Runtime's own tools make of it: attention fused, fp16."""

from __future__ import annotations

from pathlib import Path

import onnx

from qa_service.preparation.sources import as_setup_error

MIN_OPSET = 13
"""The first in which a weight can have a scale for each output, as int8's need."""


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
