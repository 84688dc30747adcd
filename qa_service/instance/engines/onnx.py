"""The ONNX Runtime engine on a CPU. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path

import onnxruntime

from qa_service.engine_catalogue import ROWS
from qa_service.errors import SetupError
from qa_service.instance.arrays import Int64Array, Logits
from qa_service.instance.devices import CPU
from qa_service.instance.engines import EngineConfig
from qa_service.instance.engines.base import Engine, describe_cpu, named_inputs
from qa_service.instance.model_folder.manifest import Manifest, prepared_file

SLOWER_ON_CPU = ["SkipLayerNormFusion"]
"""The fused kernel is slower on a core than the addition and the normalization that it replaces."""

Provider = tuple[str, Mapping[str, str]]
"""An execution provider's name and its options."""


class LogSeverity(IntEnum):
    """ONNX Runtime's (`OrtLoggingLevel` of its C API); `WARNING` is its default."""

    WARNING = 2
    ERROR = 3
    FATAL = 4


class OnnxEngine(Engine):
    """Runs a prepared model's ONNX file of one precision."""

    def __init__(self, model_dir: Path, manifest: Manifest, config: EngineConfig) -> None:
        path = prepared_file(model_dir, manifest, ROWS["onnx", config.precision].file)
        self._session = open_session(
            path, config, [("CPUExecutionProvider", {})], disabled_optimizers=SLOWER_ON_CPU
        )
        self._inputs = inputs_of(self._session)
        device = describe_cpu(config.intra_op_num_threads)
        self.runtime = f"onnxruntime {onnxruntime.__version__} {config.precision}, {device}"

    def _run(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        start, end = self._session.run(None, named_inputs(self._inputs, ids, mask, types))
        return start, end


def open_session(
    path: Path,
    config: EngineConfig,
    providers: Sequence[Provider],
    disabled_optimizers: Sequence[str] = (),
) -> onnxruntime.InferenceSession:
    """Loads an ONNX file into the named providers only."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = config.intra_op_num_threads
    options.inter_op_num_threads = 1
    # A thread that spins for its next piece of work takes the core from another instance.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if config.device != CPU:
        # On a GPU each session warns of operators that belong on the CPU, and its lines are not in
        # the format of the server's log. Its errors are raised, so they need no lines.
        options.log_severity_level = LogSeverity.FATAL
    try:
        return onnxruntime.InferenceSession(
            str(path),
            options,
            providers=list(providers),
            disabled_optimizers=list(disabled_optimizers),
            enable_fallback=0,
        )
    except Exception as error:  # onnxruntime raises its C++ module's classes
        reason = str(error).strip().replace("\n", " ")
        raise SetupError(f"ONNX Runtime cannot load {path.name}: {reason}") from None


def inputs_of(session: onnxruntime.InferenceSession) -> tuple[str, ...]:
    """The inputs of a graph: those of the model that affect its logits."""
    return tuple(item.name for item in session.get_inputs())
