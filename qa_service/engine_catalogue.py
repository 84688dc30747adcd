"""What is known of each engine and precision: one table, which everything else reads.

A new engine is its rows here, its name in `EngineType` and a module of `instance/engines`; a new
precision is a row and its name in `Precision`. What makes a precision's file is in `preparation`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Literal

import msgspec

AUTO = "auto"
INSTANT = "instant"
"""No engine: every question is answered at once, so that the server itself can be measured."""

EngineType = Literal["auto", "onnx", "openvino", "pytorch", "tensorrt", "instant"]
Precision = Literal["auto", "fp32", "fp16", "int8", "bf16", "int8_bf16"]

ONNX_FILE = "model.onnx"
ONNX_INT8_FILE = "model.int8.onnx"
ONNX_FP16_FILE = "model.fp16.onnx"
OPENVINO_INT8_FILE = "model.openvino_int8.onnx"
PLAIN_ONNX_FILE = "model.plain.onnx"
PYTORCH_FILE = "model.safetensors"

PREPARING_FLAGS = {
    ONNX_INT8_FILE: "--precision int8",
    ONNX_FP16_FILE: "--precision fp16",
    OPENVINO_INT8_FILE: "--precision int8",
    PLAIN_ONNX_FILE: "--tensorrt",
}
"""What `prepare_model.py` is given to make a file that not every model has."""

PROCESSOR_FLAGS = {
    "bf16": frozenset({"amx_bf16", "avx512_bf16"}),
    "int8": frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}),
}
"""A processor computes in a format if it has one of these flags, as Linux names them."""

TOLERANCES = {"fp32": 1e-3, "fp16": 0.1, "bf16": 0.5, "int8": 2.0, "int8_bf16": 2.0}
"""About three to ten times the largest difference of a logit seen with the built-in model; where
a model was prepared with a file of the precision, its own difference counts."""

Kind = tuple[str, str]
"""An engine and a precision."""


class Engine(msgspec.Struct, frozen=True):
    """What runs models; platform and backend as Triton names them.

    Attributes:
        module: What it imports; empty for nothing beyond the server's own.
        packages: What brings the module, by this project's extra.
        makers: What makes one on each kind of device: a module of `instance/engines`, and its name.
    """

    name: str
    module: str
    packages: Mapping[str, str]
    platform: str
    backend: str
    makers: Mapping[str, tuple[str, str]]


class Row(msgspec.Struct, frozen=True):
    """An engine in one precision.

    Attributes:
        file: The model's file that it runs; empty for none.
        tried_on: Where `auto` measures it.
        requires: The key of `PROCESSOR_FLAGS` that a CPU must have; empty for none.
        relative_time: Its time over that of float32 on ONNX Runtime, as far as is known; the likely
            fastest is measured first.
        fast_with: The key of `PROCESSOR_FLAGS` without which a CPU takes about `UNSUITED` times
            that.
    """

    engine: Engine
    precision: str
    file: str
    devices: frozenset[str]
    tried_on: frozenset[str] = frozenset()
    requires: str = ""
    relative_time: float = 1.0
    fast_with: str = ""

    @property
    def tolerance(self) -> float:
        """By how much a logit may differ from the source's in float32, if that was not measured."""
        return TOLERANCES[self.precision]


UNSUITED = 2.5
"""As far as is known, like the shares: they order the measurements, so an error costs only time."""

_ONNX_PACKAGES = {"serve": "onnxruntime", "serve-gpu": "onnxruntime-gpu"}
_ONNX = Engine(
    "onnx", "onnxruntime", _ONNX_PACKAGES, "onnxruntime_onnx", "onnxruntime",
    {"cpu": ("onnx", "OnnxEngine"), "cuda": ("onnx_gpu", "cuda_engine")},
)  # fmt: skip
_OPENVINO = Engine(
    "openvino", "openvino", {"openvino": "openvino"}, "openvino", "openvino",
    {"cpu": ("openvino", "OpenVinoEngine")},
)  # fmt: skip
_PYTORCH = Engine(
    "pytorch", "torch", {"models": "torch"}, "pytorch_libtorch", "pytorch",
    {"cpu": ("pytorch", "PyTorchEngine"), "cuda": ("pytorch", "bucketed_engine")},
)  # fmt: skip
_TENSORRT = Engine(
    "tensorrt", "onnxruntime", {"serve-gpu": "onnxruntime-gpu"}, "tensorrt_plan", "tensorrt",
    {"cuda": ("onnx_gpu", "tensorrt_engine")},
)  # fmt: skip
_INSTANT = Engine(INSTANT, "", {}, "instant", "instant", {})

_CPU, _CUDA, _BOTH = frozenset({"cpu"}), frozenset({"cuda"}), frozenset({"cpu", "cuda"})

_TABLE = (
    Row(_ONNX, "fp32", ONNX_FILE, _BOTH, _BOTH),
    Row(_ONNX, "fp16", ONNX_FP16_FILE, _BOTH, _CUDA, relative_time=0.45),
    Row(_ONNX, "int8", ONNX_INT8_FILE, _CPU, _CPU, relative_time=0.6, fast_with="int8"),
    Row(_OPENVINO, "fp32", ONNX_FILE, _CPU, _CPU, relative_time=0.85),
    Row(_OPENVINO, "bf16", ONNX_FILE, _CPU, _CPU, "bf16", relative_time=0.47),
    Row(_OPENVINO, "int8", OPENVINO_INT8_FILE, _CPU, _CPU, relative_time=0.46, fast_with="int8"),
    Row(
        _OPENVINO,
        "int8_bf16",
        OPENVINO_INT8_FILE,
        _CPU,
        _CPU,
        "bf16",
        relative_time=0.4,
        fast_with="int8",
    ),
    Row(_PYTORCH, "fp32", PYTORCH_FILE, _BOTH, _BOTH, relative_time=0.9),
    Row(_PYTORCH, "fp16", PYTORCH_FILE, _BOTH, _CUDA, relative_time=0.4),
    Row(_PYTORCH, "bf16", PYTORCH_FILE, _BOTH, _BOTH, "bf16", relative_time=0.7),
    Row(_TENSORRT, "fp32", PLAIN_ONNX_FILE, _CUDA),
    Row(_TENSORRT, "fp16", PLAIN_ONNX_FILE, _CUDA),
    Row(_TENSORRT, "bf16", PLAIN_ONNX_FILE, _CUDA),
    Row(_INSTANT, "fp32", "", _BOTH),
)
ROWS = {(row.engine.name, row.precision): row for row in _TABLE}
"""Every row."""

ENGINES = {row.engine.name: row.engine for row in _TABLE}
MODEL_ENGINES = tuple(name for name in ENGINES if name != INSTANT)
"""The engines that run a model."""


def precisions_of(engine_type: str) -> tuple[str, ...]:
    return tuple(precision for name, precision in ROWS if name == engine_type)


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that it is in
        return False
