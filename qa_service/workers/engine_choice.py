"""Which engine runs a model: what was found fastest here, measured once and kept beside it.

Where `--inference_engine_type` or `--precision` is `auto`, every candidate runs in an instance of
its own (`engine_trial`): how long it takes, and whether it answers as float32 does. What is found
is kept under a key of all it depends on: processor, versions, the model's files, the candidates.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from qa_service.errors import SetupError
from qa_service.repository.findings import COSTS_DIR, keep
from qa_service.repository.manifest import (
    OPENVINO_INT8_FILE,
    PRECISIONS,
    PYTORCH_FILE,
    Manifest,
)
from qa_service.workers.devices import CPU, DeviceAssignment
from qa_service.workers.engine_table import EngineTable, Finding
from qa_service.workers.messages import Setup
from qa_service.workers.options import AUTO, InstanceOptions

logger = logging.getLogger(__name__)

CPUINFO = Path("/proc/cpuinfo")
REFERENCE = ("onnx", "fp32")
"""What answers are compared with, and what runs where nothing could be measured."""

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "openvino", "torch")
_MODULES = {"onnx": "onnxruntime", "openvino": "openvino", "pytorch": "torch"}
_BF16_FLAGS = {"amx_bf16", "avx512_bf16"}

_ON_CPU = {
    ("onnx", "fp32"): PRECISIONS["fp32"],
    ("onnx", "int8"): PRECISIONS["int8"],
    ("openvino", "fp32"): PRECISIONS["fp32"],
    ("openvino", "bf16"): PRECISIONS["fp32"],
    ("openvino", "int8"): OPENVINO_INT8_FILE,
    ("pytorch", "fp32"): PYTORCH_FILE,
    ("pytorch", "bf16"): PYTORCH_FILE,
}
_ON_GPU = {
    ("onnx", "fp32"): PRECISIONS["fp32"],
    ("onnx", "fp16"): PRECISIONS["fp16"],
    ("pytorch", "fp32"): PYTORCH_FILE,
    ("pytorch", "fp16"): PYTORCH_FILE,
    ("pytorch", "bf16"): PYTORCH_FILE,
}
"""The candidates, the reference first, and the file that each runs."""

_ONLY_BY_NAME = ("pytorch", "fp32")
"""On a CPU: it runs the reference's products with more between them, and takes seconds to load."""

Trial = Callable[[Sequence[tuple[Finding, Setup]]], list[Finding]]
"""Measures candidates, the reference first; raises SetupError if that cannot run."""


def choose_engine(
    options: InstanceOptions,
    device: DeviceAssignment | None,
    model_dir: Path,
    manifest: Manifest,
    trial: Trial,
) -> tuple[InstanceOptions, EngineTable | None]:
    """Fills in what the options leave to be found out.

    Args:
        options: As they were given.
        device: Where the first instance runs; None if not on this machine.
        model_dir: The prepared model's folder.
        manifest: Its manifest.
        trial: Measures the candidates.

    Returns:
        The options with an engine, a precision and a number of threads, and what was measured,
        now or earlier; None if there was nothing to choose.
    """
    if device is None or AUTO not in (options.inference_engine_type, options.precision):
        return _with(options, _unmeasured(options)), None
    candidates = list(_candidates(options, manifest, device.device))
    able = [item for item in candidates if item.may_be_taken and not item.failure]
    if len(able) < 2:
        return _with(options, able[0] if able else _unmeasured(options)), None
    try:
        setup = Setup(str(model_dir), options, device)
        table = _kept_or_measured(setup, manifest, candidates, trial)
    except SetupError as error:
        logger.warning("the engines could not be measured: %s", error)
        return _with(options, able[0]), None
    return _with(options, table.best or able[0]), table


def _with(options: InstanceOptions, finding: Finding) -> InstanceOptions:
    """The options with an engine, its precision and threads."""
    return msgspec.structs.replace(
        options,
        inference_engine_type=finding.engine_type,
        precision=finding.precision,
        intra_op_num_threads=finding.intra_op_num_threads,
    )


def _unmeasured(options: InstanceOptions) -> Finding:
    """What the options name; the reference's engine or precision for what they leave open."""
    engine_type, precision = options.inference_engine_type, options.precision
    return Finding(
        REFERENCE[0] if engine_type == AUTO else engine_type,
        REFERENCE[1] if precision == AUTO else precision,
        options.intra_op_num_threads or 1,
    )


def _candidates(options: InstanceOptions, manifest: Manifest, device: str) -> Iterator[Finding]:
    """Every engine and precision for that device, the reference first.

    Those that cannot run here say so at once; those that the options rule out are left out, but
    for the reference, which is needed to compare with.
    """
    threads = [options.intra_op_num_threads or 1]
    has_spare_cores = (os.cpu_count() or 1) >= 2 * options.num_inference_sessions
    if device == CPU and not options.intra_op_num_threads and has_spare_cores:
        threads.append(2)
    for (engine_type, precision), file in (_ON_CPU if device == CPU else _ON_GPU).items():
        may_be_taken = _is_open_to(options, engine_type, precision, device)
        if not may_be_taken and (engine_type, precision) != REFERENCE:
            continue
        failure = _obstacle(engine_type, precision, file, manifest, device)
        for num_threads in threads if may_be_taken else threads[:1]:
            yield Finding(engine_type, precision, num_threads, may_be_taken, failure=failure)


def runnable(manifest: Manifest) -> list[tuple[str, str]]:
    """Every engine and precision that can run a model on this CPU, the reference first."""
    return [kind for kind, file in _ON_CPU.items() if not _obstacle(*kind, file, manifest, CPU)]


def _is_open_to(options: InstanceOptions, engine_type: str, precision: str, device: str) -> bool:
    """Whether the options leave a candidate to be chosen."""
    if device == CPU and (engine_type, precision) == _ONLY_BY_NAME:
        return options.inference_engine_type == engine_type
    named = (options.inference_engine_type, options.precision)
    return named[0] in (AUTO, engine_type) and named[1] in (AUTO, precision)


def _obstacle(engine_type: str, precision: str, file: str, manifest: Manifest, device: str) -> str:
    """What keeps a candidate from running here, in words; empty if nothing is known to."""
    if not is_installed(_MODULES[engine_type]):
        return f"{_MODULES[engine_type]} is not installed"
    if precision == "bf16" and device == CPU and not _BF16_FLAGS & processor()[1]:
        return "this processor does not compute in bf16"
    if file not in manifest.files:
        return f"the model has no {file}"
    return ""


def is_installed(module: str) -> bool:
    """Whether it could be imported."""
    return importlib.util.find_spec(module) is not None


def processor() -> tuple[str, frozenset[str]]:
    """The processor's name and what it can do, as Linux says; empty elsewhere."""
    try:
        lines = CPUINFO.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return "", frozenset()
    fields = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    name = fields.get("model name", "").strip()
    return name, frozenset((fields.get("flags") or fields.get("Features") or "").split())


def _kept_or_measured(
    setup: Setup, manifest: Manifest, candidates: Sequence[Finding], trial: Trial
) -> EngineTable:
    """What was found earlier for the same, or is now; kept for the next start if it can be.

    Raises:
        SetupError: The reference cannot run.
    """
    options, device = setup.options, setup.device
    name, flags = processor()
    depends_on = (
        (name, sorted(flags), os.cpu_count(), device.device, device.gpu_memory_bytes),
        [_version(package) for package in _PACKAGES],
        manifest.files,
        candidates,
        options.min_agreement,
        (options.max_batch_size, options.max_batch_tokens),
        (options.cuda_graphs, options.gpu_memory_fraction),
    )
    key = hashlib.sha256(msgspec.json.encode(depends_on, order="deterministic")).hexdigest()[:16]
    path = Path(setup.model_dir) / COSTS_DIR / f"engines.{key}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineTable)
    except (OSError, msgspec.DecodeError):
        pass
    able = [item for item in candidates if not item.failure]
    logger.info("finding the fastest of %d engines, once for this machine", len(able))
    measured = iter(trial([(item, _on_trial(setup, item)) for item in able]))
    findings = tuple(item if item.failure else next(measured) for item in candidates)
    table = EngineTable(f"{os.cpu_count()} cores of {name}", options.min_agreement, findings)
    keep(path, table)
    return table


def _on_trial(setup: Setup, candidate: Finding) -> Setup:
    """An instance for the trial: on its device or not at all, and with no measuring of its own."""
    options = msgspec.structs.replace(_with(setup.options, candidate), cost_table="off")
    device = msgspec.structs.replace(setup.device, cuda_index=0, may_fall_back=False)
    return msgspec.structs.replace(setup, options=options, device=device)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
