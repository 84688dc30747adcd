"""The ONNX Runtime engine. Imports neither torch nor transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime

from qa_service.engines import EngineConfig
from qa_service.engines.base import Engine, FloatArray, Int64Array, describe_cpu
from qa_service.errors import SetupError
from qa_service.manifest import PRECISIONS, Manifest, preparing_command

SLOWER_ON_CPU = ["SkipLayerNormFusion"]
"""Its one kernel costs a core more than the addition and the normalization that it replaces."""


class OnnxEngine(Engine):
    """Runs a prepared model's ONNX file of one precision.

    Raises:
        SetupError: There is no such file, or ONNX Runtime cannot load it.
    """

    def __init__(self, model_dir: Path, manifest: Manifest, config: EngineConfig) -> None:
        name = PRECISIONS[config.precision]
        if name not in manifest.files:
            command = preparing_command(manifest, config.precision)
            raise SetupError(f"there is no {name} in {model_dir}; make it with: {command}")
        try:
            self._session = onnxruntime.InferenceSession(
                str(model_dir / name),
                session_options(config),
                providers=["CPUExecutionProvider"],
                disabled_optimizers=SLOWER_ON_CPU,
            )
        except Exception as error:  # onnxruntime raises classes of its own C++ module
            raise SetupError(f"ONNX Runtime cannot load {name}: {error}") from None
        self._inputs = manifest.inputs
        device = describe_cpu(config.intra_op_num_threads)
        self.runtime = f"onnxruntime {onnxruntime.__version__} {config.precision}, {device}"

    def logits(
        self, input_ids: Int64Array, attention_mask: Int64Array, token_type_ids: Int64Array
    ) -> tuple[FloatArray, FloatArray]:
        """See `Engine.logits`."""
        given = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
        }
        start, end = self._session.run(None, {name: given[name] for name in self._inputs})
        return np.asarray(start, np.float32), np.asarray(end, np.float32)


def session_options(config: EngineConfig) -> onnxruntime.SessionOptions:
    """Options of a session; what each costs or saves, `benchmarks/onnx_options.py` prints."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = config.intra_op_num_threads
    options.inter_op_num_threads = 1
    # A thread that spins for its next piece of work takes the core from another session.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
