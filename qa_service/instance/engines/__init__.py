"""Engines run a model on padded windows; they know no questions or answers.

An engine's libraries are imported only when it is made: an instance with the ONNX engine never
loads torch or transformers, which cost seconds and hundreds of MB.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from qa_service.engine_catalogue import ENGINES, MODEL_ENGINES, ROWS, precisions_of
from qa_service.errors import DeviceError, SetupError
from qa_service.instance.devices import DeviceAssignment
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.manifest import Manifest

if TYPE_CHECKING:
    from qa_service.instance.engines.base import Engine


class EngineConfig(InstanceOptions, frozen=True, kw_only=True):
    """How an instance runs its model: its options, none of them `auto`, and what its device adds.

    The defaults are those of programs that run a model on one core.

    Attributes:
        cuda_index: The GPU's number in the engine's process.
        cuda_graphs: Whether kernels on a GPU are recorded and replayed as CUDA graphs.
        bound_buffers: Whether ONNX Runtime's inputs and outputs stay on the GPU.
        keeps: Whether it may write into the model's folder what it compiles.
        uses_kept: Whether it may load what an earlier start has compiled.
    """

    precision: str = "fp32"  # type: ignore[assignment]  # `make_engine` checks it
    intra_op_num_threads: int = 1
    static_shapes_bytes: int = 0
    device: str = "cpu"
    cuda_index: int = 0
    gpu_memory_bytes: int = 0
    cuda_graphs: bool = True
    bound_buffers: bool = True
    keeps: bool = True
    uses_kept: bool = True

    @classmethod
    def of(
        cls, options: InstanceOptions, assigned: DeviceAssignment, *, keeps: bool = True
    ) -> Self:
        return cls(
            **msgspec.structs.asdict(options),
            device=assigned.device.partition(":")[0],
            gpu_memory_bytes=assigned.gpu_memory_bytes,
            keeps=keeps,
        )


def check_precision(engine_type: str, precision: str) -> None:
    if (engine_type, precision) not in ROWS:
        able = [name for name, known in ROWS if known == precision]
        raise SetupError(
            f"the {engine_type} engine has no {precision}: "
            f"use --precision {'|'.join(precisions_of(engine_type))}"
            + (f" or --inference_engine_type {'|'.join(able)}" if able else "")
        )


def make_engine(
    engine_type: str, model_dir: Path, manifest: Manifest, config: EngineConfig
) -> Engine:
    """Loads a prepared model into an engine.

    Raises:
        SetupError: The model cannot be loaded, or not in this precision.
        DeviceError: The engine cannot use the device.
        ValueError: There is no such engine.
    """
    if engine_type not in MODEL_ENGINES:
        raise ValueError(f"no engine {engine_type!r}; there are {', '.join(MODEL_ENGINES)}")
    check_precision(engine_type, config.precision)
    precision, device = config.precision, config.device
    if device not in ROWS[engine_type, precision].devices:
        if device == "cpu":
            why = f"the {engine_type} engine needs a GPU; on a CPU, use the onnx engine"
        elif device in ROWS[engine_type, "fp32"].devices:
            why = f"{precision} is for the CPU: use --devices cpu, or fp16 on a GPU"
        else:
            why = f"the {engine_type} engine is for a CPU: use --devices cpu"
        raise DeviceError(why)
    module, name = ENGINES[engine_type].makers[device]
    make = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    engine: Engine = make(model_dir, manifest, config)
    return engine
