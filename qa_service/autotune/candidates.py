"""The engine of a model: the fastest on this machine, measured once and kept in its folder.

If `--inference_engine_type` or `--precision` is `auto`, each candidate runs in an instance of its
own (`engine_trial`), which shows how fast it is and whether it answers as float32 does. The table
is kept under a key of all it depends on: processor, versions, the model's files, the candidates.

`EngineChoices` says when a version's candidates are measured; `--print_engines` measures those that
a start left out.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from qa_service.autotune.engine_table import (
    MIN_AGREEMENT,
    Choice,
    EngineTable,
    Finding,
    Measurement,
    setup_on_trial,
    with_engine,
)
from qa_service.engine_catalogue import (
    AUTO,
    ENGINES,
    ONNX_FILE,
    PROCESSOR_FLAGS,
    ROWS,
    UNSUITED,
    Kind,
    is_installed,
)
from qa_service.installation import installed_version
from qa_service.instance.devices import CPU, DeviceAssignment
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.costs_dir import kept_path, read_kept
from qa_service.instance.model_folder.manifest import Manifest
from qa_service.instance.worker_messages import Setup
from qa_service.machine import gpu_driver, num_cpus, processor

logger = logging.getLogger(__name__)

REFERENCE = ("onnx", "fp32")
"""Its answers are the standard, and it runs if nothing could be measured."""
REFERENCE_WITHOUT_ONNX = ("pytorch", "fp32")
"""The reference of a model that cannot be converted to ONNX."""

_ONLY_BY_NAME = REFERENCE_WITHOUT_ONNX
"""Not measured on a CPU unless named: it is slower than ONNX there, and takes seconds to load."""


def choose_engine(
    options: InstanceOptions,
    device: DeviceAssignment | None,
    model_dir: Path,
    manifest: Manifest,
    *,
    measures_all: bool = False,
) -> Choice | Measurement:
    """Chooses an engine, or returns what has to be measured first.

    Args:
        device: `first_device` of the options.
        measures_all: Whether a table from which a start left candidates out is measured again.
    """
    if device is None or not options.is_engine_open:
        return Choice(with_engine(options, _unmeasured(options, manifest)))
    findings = tuple(_candidates(options, manifest, device.device))
    able = [item for item in findings if item.is_eligible and not item.failure]
    if len(able) < 2:
        return Choice(with_engine(options, able[0] if able else _unmeasured(options, manifest)))
    setup = Setup(str(model_dir), options, device)
    measurement = Measurement(
        setup,
        findings,
        f"{num_cpus()} cores of {processor().name}",
        str(_path_of_table(setup, manifest, findings)),
    )
    table = _kept_table(measurement)
    if table is None or (measures_all and not table.is_complete):
        return measurement
    return measurement.choice(table)


def _kept_table(measurement: Measurement) -> EngineTable | None:
    """The table that is kept, if it is of these candidates."""
    table = read_kept(Path(measurement.path), EngineTable)
    if table and sorted(map(str, table.findings)) != sorted(map(str, measurement.findings)):
        logger.warning("%s is of other engines, and is measured again", measurement.path)
        return None
    return table


def likeliest(measurement: Measurement) -> InstanceOptions:
    """The options with the engine that is probably the fastest: what serves while it is measured.

    Of the candidates that the options allow and that can run here, the one with the least
    `Row.relative_time` on a processor with these flags.
    """
    device = measurement.setup.device.device
    able = [item for item in measurement.findings if item.is_eligible and not item.failure]
    its = min(able, key=lambda finding: _likely_time(finding, device))
    return with_engine(measurement.setup.options, its)


def _reference(manifest: Manifest) -> Kind:
    return REFERENCE_WITHOUT_ONNX if ONNX_FILE in manifest.without else REFERENCE


def _unmeasured(options: InstanceOptions, manifest: Manifest) -> Finding:
    """The engine and precision that the options name; the reference's where they are open."""
    engine_type, precision = options.inference_engine_type, options.precision
    reference = _reference(manifest)
    return Finding(
        reference[0] if engine_type == AUTO else engine_type,
        reference[1] if precision == AUTO else precision,
        options.intra_op_num_threads or 1,
    )


def _candidates(options: InstanceOptions, manifest: Manifest, device: str) -> list[Finding]:
    """Every engine and precision for a device: the reference, then the likely fastest first.

    The reference is there for comparison, all others if the options allow them. Those that cannot
    run have a `failure`.
    """
    threads = [options.intra_op_num_threads or 1]
    has_spare_cores = num_cpus() >= 2 * options.num_inference_sessions
    if device == CPU and not options.intra_op_num_threads and has_spare_cores:
        threads.append(2)
    reference = _reference(manifest)
    found: list[Finding] = []
    for kind in dict.fromkeys([reference, *_tried_on(device)]):
        is_eligible = _is_open_to(options, kind, device, reference)
        if is_eligible or kind == reference:
            failure = _obstacle(kind, manifest, device)
            found += [
                Finding(*kind, num_threads, is_eligible, failure=failure)
                for num_threads in (threads if is_eligible else threads[:1])
            ]
    first, *others = found
    return [first, *sorted(others, key=lambda finding: _likely_time(finding, device))]


def every_engine(
    options: InstanceOptions, device: DeviceAssignment, model_dir: Path, manifest: Manifest
) -> list[tuple[Finding, Setup]]:
    """Every engine that could be tried on a device, whatever the options name, and its setup.

    Those that cannot run have a `failure`.
    """
    kinds = dict.fromkeys([_reference(manifest), *_tried_on(device.device)])
    num_threads = options.intra_op_num_threads or 1
    findings = [
        Finding(*kind, num_threads, failure=_obstacle(kind, manifest, device.device))
        for kind in kinds
    ]
    setup = Setup(str(model_dir), options, device)
    return [(finding, setup_on_trial(setup, finding)) for finding in findings]


def _likely_time(finding: Finding, device: str) -> float:
    """Estimates a candidate's time on this processor, as a share of the reference's."""
    row = ROWS[finding.engine_type, finding.precision]
    time = row.relative_time / math.sqrt(finding.intra_op_num_threads)
    is_fast = (
        device != CPU or not row.fast_with or PROCESSOR_FLAGS[row.fast_with] & processor().flags
    )
    return time if is_fast else UNSUITED * time


def _tried_on(device: str) -> list[Kind]:
    return [kind for kind, row in ROWS.items() if device.partition(":")[0] in row.tried_on]


def runnable(manifest: Manifest) -> list[Kind]:
    """Every engine and precision that can run a model on this CPU, the reference first."""
    return [kind for kind in _tried_on(CPU) if not _obstacle(kind, manifest, CPU)]


def _is_open_to(options: InstanceOptions, kind: Kind, device: str, reference: Kind) -> bool:
    engine_type, precision = kind
    if device == CPU and kind == _ONLY_BY_NAME != reference:
        return options.inference_engine_type == engine_type
    return options.names(engine_type, precision)


def _obstacle(kind: Kind, manifest: Manifest, device: str) -> str:
    """Why a candidate cannot run here; empty if no reason is known."""
    row = ROWS[kind]
    if not is_installed(row.engine.module):
        return f"{row.engine.module} is not installed"
    if row.requires and device == CPU and not PROCESSOR_FLAGS[row.requires] & processor().flags:
        return f"this processor does not compute in {row.requires}"
    if row.file not in manifest.files:
        reason = manifest.without.get(row.file) or manifest.without.get(ONNX_FILE)
        return reason or f"the model has no {row.file}"
    return ""


def _path_of_table(setup: Setup, manifest: Manifest, findings: Sequence[Finding]) -> Path:
    options, device = setup.options, setup.device
    its = processor()
    packages = dict.fromkeys(
        name for engine in ENGINES.values() for name in engine.packages.values()
    )
    driver = () if device.device == CPU else (gpu_driver(),)
    depends_on = (
        (its.name, sorted(its.flags), num_cpus(), device.device, device.gpu_memory_bytes, *driver),
        [installed_version(package) for package in packages],
        manifest.computing_files,
        findings,
        MIN_AGREEMENT,
        (options.max_batch_size, options.max_batch_tokens),
        options.gpu_memory_fraction,
    )
    key = msgspec.json.encode(depends_on, order="deterministic")
    return kept_path(Path(setup.model_dir), key, "engines.")
