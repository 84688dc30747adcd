"""ONNX Runtime on a GPU: its CUDA provider, and its TensorRT provider with an engine cache.

Both run buckets (`buckets`) whose inputs and outputs are bound to memory on the GPU. By default
ONNX Runtime takes the CPU if a provider is missing or cannot start, and only logs that; here it is
an error.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime

from qa_service.engine_catalogue import ROWS
from qa_service.errors import DeviceError, SetupError
from qa_service.installation import install_hint
from qa_service.instance.engines import EngineConfig
from qa_service.instance.engines.base import marked
from qa_service.instance.engines.buckets import Bucket, BucketedEngine, BucketGrid, Outputs, Program
from qa_service.instance.engines.kept_engines import KeptEngines
from qa_service.instance.engines.onnx import LogSeverity, Provider, inputs_of, open_session
from qa_service.instance.model_folder.manifest import Manifest, prepared_file

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

_DEVICE_FAULT = re.compile(r"CUDA failure [^;]*|(?<=Please )install TensorRT libraries")
"""ONNX Runtime's messages for a fault of the device, its driver or a library."""

_LIBRARIES = {CUDA: "CUDA or cuDNN", TENSORRT: "TensorRT"}


def cuda_engine(model_dir: Path, manifest: Manifest, config: EngineConfig) -> BucketedEngine:
    """Loads a prepared model into the CUDA provider."""
    path = prepared_file(model_dir, manifest, ROWS["onnx", config.precision].file)
    session = open_gpu_session(path, config, [(CUDA, cuda_options(config))])
    return bucketed_engine(session, manifest, config)


def tensorrt_engine(model_dir: Path, manifest: Manifest, config: EngineConfig) -> BucketedEngine:
    """Loads a prepared model into the TensorRT provider.

    TensorRT compiles the graph for this GPU, which takes minutes, and keeps the result in a
    folder next to the model; the next instance finds it there. Instances that start together take
    turns, so that one compiles for all.
    """
    require(TENSORRT)
    name = ROWS["tensorrt", config.precision].file
    path = prepared_file(model_dir, manifest, name)
    with contextlib.suppress(ImportError, OSError):
        importlib.import_module("tensorrt_libs")  # NVIDIA's wheels: loads what it carries
    # TensorRT's provider records a graph for one shape only; there are many buckets.
    config = msgspec.structs.replace(config, cuda_graphs=False)
    grid = BucketGrid.of(manifest, config)
    kept = opened_engines(model_dir, config, grid, manifest.files[name])
    options = tensorrt_options(config, manifest.inputs, grid, kept)
    with kept.held() if kept else contextlib.nullcontext():
        session = open_gpu_session(
            path, config, [(TENSORRT, options), (CUDA, cuda_options(config))]
        )
    return bucketed_engine(session, manifest, config, kept=kept)


def cuda_options(config: EngineConfig) -> dict[str, str]:
    """The CUDA provider's options.

    The arena grows by what is requested, not by powers of two, which a memory limit would refuse
    with memory to spare. TF32 is off, since it keeps only 10 bits of a product's factors.
    """
    return {
        "device_id": str(config.cuda_index),
        "arena_extend_strategy": "kSameAsRequested",
        "enable_cuda_graph": str(int(config.cuda_graphs)),
        "use_tf32": "0",
        **_memory_limit("gpu_mem_limit", config),
    }


def tensorrt_options(
    config: EngineConfig, inputs: Sequence[str], grid: BucketGrid, kept: KeptEngines | None
) -> dict[str, str]:
    """The TensorRT provider's options: one profile from one token to the largest bucket.

    TensorRT tunes for the optimal shape: one full window, the latency of a single request.
    """
    shapes = {"min": Bucket(1, 1), "opt": Bucket(1, grid.most.tokens), "max": grid.most}
    profiles = {
        f"trt_profile_{name}_shapes": ",".join(f"{i}:{at.rows}x{at.tokens}" for i in inputs)
        for name, at in shapes.items()
    }
    caches = ("trt_engine_cache", "trt_timing_cache") if kept else ()
    return {
        "device_id": str(config.cuda_index),
        "trt_fp16_enable": str(int(config.precision == "fp16")),
        "trt_bf16_enable": str(int(config.precision == "bf16")),
        **{f"{name}_enable": "1" for name in caches},
        **{f"{name}_path": str(kept.path) for name in caches if kept},
        **profiles,
        **_memory_limit("trt_max_workspace_size", config),
    }


def _memory_limit(option: str, config: EngineConfig) -> dict[str, str]:
    if config.gpu_memory_fraction == 1 or not config.gpu_memory_bytes:
        return {}
    return {option: str(int(config.gpu_memory_bytes * config.gpu_memory_fraction))}


def opened_engines(
    model_dir: Path, config: EngineConfig, grid: BucketGrid, model_hash: str
) -> KeptEngines | None:
    """What is kept of one model, precision and profile; None where nothing may be."""
    if not (config.keeps and config.uses_kept):
        return None
    name = f"{config.precision}-{grid.most.rows}x{grid.most.tokens}"
    return KeptEngines(model_dir / "tensorrt" / name, model_hash)


def require(provider: str) -> None:
    if provider not in onnxruntime.get_available_providers():
        raise DeviceError(
            f"the onnxruntime that is installed has no {provider}; "
            f"in a fresh environment, install the extra gpu in place of cpu: {install_hint('gpu')}"
        )


def open_gpu_session(
    path: Path, config: EngineConfig, providers: Sequence[Provider]
) -> onnxruntime.InferenceSession:
    """Loads an ONNX file into the first of the providers, and checks that it runs there."""
    wanted = providers[0][0]
    require(wanted)
    # Its warnings say that there is no plugin for the provider, and are not in the format of the
    # server's log. Its errors stay: that a library is missing is raised without the library's name.
    onnxruntime.set_default_logger_severity(LogSeverity.ERROR)
    onnxruntime.preload_dlls()  # CUDA's own libraries, where pip has put them
    try:
        session = open_session(path, config, providers)
    except SetupError as error:
        if found := _DEVICE_FAULT.search(str(error)):
            raise _cannot_start(wanted, found[0].strip()) from None
        raise
    if session.get_providers()[0] != wanted:
        raise _cannot_start(wanted)
    return session


def _cannot_start(provider: str, reason: str = "") -> DeviceError:
    return DeviceError(
        f"ONNX Runtime {onnxruntime.__version__} cannot start its {provider}: there is no GPU, or "
        f"{_LIBRARIES[provider]} is not installed in the version it needs; its own log says which"
        + (f" ({reason})" if reason else "")
    )


def bucketed_engine(
    session: onnxruntime.InferenceSession,
    manifest: Manifest,
    config: EngineConfig,
    device: str = "cuda",
    kept: KeptEngines | None = None,
) -> BucketedEngine:
    """Makes the engine of a session; inputs and outputs are on the device: `cpu` in tests."""
    graph_ids = itertools.count(1)
    inputs = inputs_of(session)

    def make_program(bucket: Bucket) -> Program:
        if not config.bound_buffers:
            return PlainProgram(session, bucket, inputs)
        graph_id = next(graph_ids) if config.cuda_graphs else None
        return OnnxProgram(session, bucket, inputs, (device, config.cuda_index), graph_id)

    return BucketedEngine(
        BucketGrid.of(manifest, config),
        inputs,
        manifest.pad_token_id,
        make_program,
        device=device,
        runtime=describe(session, config),
        records=config.cuda_graphs,
        kept=kept,
    )


def describe(session: onnxruntime.InferenceSession, config: EngineConfig) -> str:
    words = [f"onnxruntime {onnxruntime.__version__}", session.get_providers()[0]]
    if config.gpu_memory_bytes:
        words.append(f"a GPU of {config.gpu_memory_bytes} bytes")
    words.append("graphs" if config.cuda_graphs else "no graphs")
    if not config.bound_buffers:
        words.append("no bound buffers")
    return ", ".join(words)


class PlainProgram(Program):
    """A session on one bucket, run as everybody runs it: inputs and outputs in host memory."""

    def __init__(
        self, session: onnxruntime.InferenceSession, bucket: Bucket, inputs: Sequence[str]
    ) -> None:
        self.staging = np.ones((len(inputs), bucket.rows, bucket.tokens), np.int64)
        self._session = session
        self._inputs = inputs

    def run(self) -> Outputs:
        outputs = self._session.run(None, dict(zip(self._inputs, self.staging, strict=True)))
        return Outputs(np.stack(outputs))


class OnnxProgram(Program):
    """A session on one bucket, with bound inputs and outputs.

    Args:
        place: Kind and number of the device with the bound memory.
        graph_id: The CUDA provider's id for the graph that it records in the first run, which is
            here; None for no graph.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        bucket: Bucket,
        inputs: Sequence[str],
        place: tuple[str, int],
        graph_id: int | None,
    ) -> None:
        shape = (bucket.rows, bucket.tokens)
        self.staging = np.ones((len(inputs), *shape), np.int64)
        self._session = session
        self._binding = session.io_binding()
        self._inputs = [
            onnxruntime.OrtValue.ortvalue_from_numpy(plane.copy(), *place) for plane in self.staging
        ]
        outputs = [output.name for output in session.get_outputs()]
        self._unwritten = marked(*shape)
        # Copies: on a CPU a value made from an array shares the array's.
        self._outputs = [
            onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, *place)
            for _ in outputs
        ]
        for name, value in zip(inputs, self._inputs, strict=True):
            self._binding.bind_ortvalue_input(name, value)
        for name, value in zip(outputs, self._outputs, strict=True):
            self._binding.bind_ortvalue_output(name, value)
        self._options = onnxruntime.RunOptions()
        if graph_id is not None:
            self._options.add_run_config_entry("gpu_graph_id", str(graph_id))
            self.run()

    def run(self) -> Outputs:
        for value, plane in zip(self._inputs, self.staging, strict=True):
            value.update_inplace(plane)
        for value in self._outputs:
            value.update_inplace(self._unwritten)
        self._session.run_with_iobinding(self._binding, self._options)
        return Outputs(np.stack([value.numpy() for value in self._outputs]))
