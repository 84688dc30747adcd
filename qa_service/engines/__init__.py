"""Engines run a model over padded windows; nothing here knows of questions or answers.

Each engine's libraries are imported only when it is made: a session with the ONNX engine
never loads torch or transformers, which cost seconds and hundreds of MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qa_service.manifest import Manifest

if TYPE_CHECKING:
    from qa_service.engines.base import Engine

ENGINE_TYPES = ("onnx", "pytorch")

INSTANT = "instant"
"""No engine: every question is answered at once, so that the server itself can be measured."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a session runs its model.

    Attributes:
        intra_op_num_threads: Threads within one operator; one a session, so that N sessions
            on N cores are N threads.
        precision: One of `PRECISIONS`; what the model computes in.
    """

    intra_op_num_threads: int = 1
    precision: str = "fp32"


def make_engine(
    engine_type: str, model_dir: Path, manifest: Manifest, config: EngineConfig
) -> Engine:
    """Loads a prepared model into an engine.

    Raises:
        SetupError: The model cannot be loaded, or not in this precision.
        ValueError: There is no such engine.
    """
    if engine_type == "onnx":
        from qa_service.engines.onnx import OnnxEngine  # noqa: PLC0415

        return OnnxEngine(model_dir, manifest, config)
    if engine_type == "pytorch":
        from qa_service.engines.pytorch import PyTorchEngine  # noqa: PLC0415

        return PyTorchEngine(model_dir, manifest, config)
    raise ValueError(f"no engine {engine_type!r}; there are {', '.join(ENGINE_TYPES)}")
