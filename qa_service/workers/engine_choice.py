"""Which engine runs a model: what was found fastest here, measured once and kept beside it.

Where `--inference_engine_type` or `--precision` is `auto`, every candidate runs in an instance of
its own (`engine_trial`): how long it takes, and whether it answers as float32 does. What is found
is kept under a key of all it depends on: processor, versions, the model's files, the candidates.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec

from qa_service.repository.findings import COSTS_DIR
from qa_service.repository.manifest import (
    OPENVINO_FILES,
    PRECISIONS,
    PYTORCH_FILE,
    Manifest,
)
from qa_service.workers.devices import CPU, DeviceAssignment
from qa_service.workers.engine_table import EngineTable, Finding
from qa_service.workers.messages import Setup
from qa_service.workers.options import AUTO, InstanceOptions

CPUINFO = Path("/proc/cpuinfo")
REFERENCE = ("onnx", "fp32")
"""What answers are compared with, and what runs where nothing could be measured."""
REFERENCE_WITHOUT_ONNX = ("pytorch", "fp32")
"""The same for a model that cannot be had in ONNX."""

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "openvino", "torch")
_MODULES = {"onnx": "onnxruntime", "openvino": "openvino", "pytorch": "torch"}
_BF16 = {"bf16", "int8_bf16"}
_BF16_FLAGS = {"amx_bf16", "avx512_bf16"}

_ON_CPU = {
    ("onnx", "fp32"): PRECISIONS["fp32"],
    ("onnx", "int8"): PRECISIONS["int8"],
    **{("openvino", precision): file for precision, file in OPENVINO_FILES.items()},
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


class Measurement(msgspec.Struct, frozen=True):
    """A choice for which engines have to be measured.

    Attributes:
        setup: The first instance, with its engine left open.
        findings: Every candidate, the reference first; those that cannot run here say why.
        processor: Where it is measured, in words.
        path: Where the table is kept.
    """

    setup: Setup
    findings: tuple[Finding, ...]
    processor: str
    path: str

    @property
    def candidates(self) -> list[tuple[Finding, Setup]]:
        """What is to be measured, each with the instance that runs it."""
        return [(item, _on_trial(self.setup, item)) for item in self.findings if not item.failure]

    def table(self, measured: Sequence[Finding]) -> EngineTable:
        """All that is known, with what was found of the `candidates`, in their order."""
        news = iter(measured)
        findings = tuple(item if item.failure else next(news) for item in self.findings)
        return EngineTable(self.processor, self.setup.options.min_agreement, findings)

    def choice(self, table: EngineTable | None) -> Choice:
        """The engine to take by the table; without one, the first candidate."""
        best = table.best if table else None
        return Choice(_with(self.setup.options, best or _first_able(self.findings)), table)


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine of a version.

    Attributes:
        options: With an engine, a precision and a number of threads.
        table: What was measured, now or earlier; None if there was nothing to choose.
    """

    options: InstanceOptions
    table: EngineTable | None = None


def choose_engine(
    options: InstanceOptions,
    device: DeviceAssignment | None,
    model_dir: Path,
    manifest: Manifest,
) -> Choice | Measurement:
    """Fills in what the options leave to be found out, or says what has to be measured first.

    Args:
        options: As they were given.
        device: Where the first instance runs; None if not on this machine.
        model_dir: The prepared model's folder.
        manifest: Its manifest.
    """
    if device is None or not options.is_engine_open:
        return Choice(_with(options, _unmeasured(options, manifest)))
    findings = tuple(_candidates(options, manifest, device.device))
    able = [item for item in findings if item.may_be_taken and not item.failure]
    if len(able) < 2:
        return Choice(_with(options, able[0] if able else _unmeasured(options, manifest)))
    setup = Setup(str(model_dir), options, device)
    measurement = Measurement(
        setup,
        findings,
        f"{os.cpu_count()} cores of {processor()[0]}",
        str(_path_of_table(setup, manifest, findings)),
    )
    table = _kept(Path(measurement.path))
    return measurement.choice(table) if table else measurement


def _first_able(findings: Sequence[Finding]) -> Finding:
    return next(item for item in findings if item.may_be_taken and not item.failure)


def _with(options: InstanceOptions, finding: Finding) -> InstanceOptions:
    """The options with an engine, its precision and threads."""
    return msgspec.structs.replace(
        options,
        inference_engine_type=finding.engine_type,
        precision=finding.precision,
        intra_op_num_threads=finding.intra_op_num_threads,
    )


def _reference(manifest: Manifest) -> tuple[str, str]:
    return REFERENCE_WITHOUT_ONNX if PRECISIONS["fp32"] in manifest.without else REFERENCE


def _unmeasured(options: InstanceOptions, manifest: Manifest) -> Finding:
    """What the options name; the reference's engine or precision for what they leave open."""
    engine_type, precision = options.inference_engine_type, options.precision
    reference = _reference(manifest)
    return Finding(
        reference[0] if engine_type == AUTO else engine_type,
        reference[1] if precision == AUTO else precision,
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
    table, reference = _ON_CPU if device == CPU else _ON_GPU, _reference(manifest)
    for (engine_type, precision), file in ({reference: table[reference]} | table).items():
        is_reference = (engine_type, precision) == reference
        may_be_taken = _is_open_to(options, engine_type, precision, device, reference)
        if not may_be_taken and not is_reference:
            continue
        failure = _obstacle(engine_type, precision, file, manifest, device)
        for num_threads in threads if may_be_taken else threads[:1]:
            yield Finding(engine_type, precision, num_threads, may_be_taken, failure=failure)


def runnable(manifest: Manifest) -> list[tuple[str, str]]:
    """Every engine and precision that can run a model on this CPU, the reference first."""
    return [kind for kind, file in _ON_CPU.items() if not _obstacle(*kind, file, manifest, CPU)]


def _is_open_to(
    options: InstanceOptions,
    engine_type: str,
    precision: str,
    device: str,
    reference: tuple[str, str],
) -> bool:
    """Whether the options leave a candidate to be chosen."""
    if device == CPU and (engine_type, precision) == _ONLY_BY_NAME != reference:
        return options.inference_engine_type == engine_type
    named = (options.inference_engine_type, options.precision)
    return named[0] in (AUTO, engine_type) and named[1] in (AUTO, precision)


def _obstacle(engine_type: str, precision: str, file: str, manifest: Manifest, device: str) -> str:
    """What keeps a candidate from running here, in words; empty if nothing is known to."""
    if not is_installed(_MODULES[engine_type]):
        return f"{_MODULES[engine_type]} is not installed"
    if precision in _BF16 and device == CPU and not _BF16_FLAGS & processor()[1]:
        return "this processor does not compute in bf16"
    if file not in manifest.files:
        reason = manifest.without.get(file) or manifest.without.get(PRECISIONS["fp32"])
        return reason or f"the model has no {file}"
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


def _path_of_table(setup: Setup, manifest: Manifest, findings: Sequence[Finding]) -> Path:
    """Where what is found is kept: under a key of all that it depends on."""
    options, device = setup.options, setup.device
    name, flags = processor()
    depends_on = (
        (name, sorted(flags), os.cpu_count(), device.device, device.gpu_memory_bytes),
        [_version(package) for package in _PACKAGES],
        manifest.files,
        findings,
        options.min_agreement,
        (options.max_batch_size, options.max_batch_tokens),
        (options.cuda_graphs, options.gpu_memory_fraction),
    )
    key = hashlib.sha256(msgspec.json.encode(depends_on, order="deterministic")).hexdigest()[:16]
    return Path(setup.model_dir) / COSTS_DIR / f"engines.{key}.json"


def _kept(path: Path) -> EngineTable | None:
    """What was found earlier for the same; None if nothing was, or it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineTable)
    except (OSError, msgspec.DecodeError):
        return None


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
