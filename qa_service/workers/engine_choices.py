"""The engine of each version that is served, where the options leave the choice.

Before the server serves, the engines are measured if they have not been on this machine. Later on
there is no time for that: what was found for another version of the same model is taken, if this
one has the files, else what runs anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_service.errors import SetupError
from qa_service.logs import LogOptions
from qa_service.repository.manifest import load_manifest, model_files
from qa_service.workers.devices import CPU, DeviceAssignment
from qa_service.workers.engine_choice import choose_engine
from qa_service.workers.engine_table import EngineTable, Finding
from qa_service.workers.engine_trial import try_engines
from qa_service.workers.factory import devices_of
from qa_service.workers.messages import Setup
from qa_service.workers.options import AUTO, InstanceOptions


class EngineChoices:
    """Chooses engines, and remembers what it has chosen.

    Args:
        logs: The log of the instances that are measured.

    Attributes:
        tables: What was measured, by the model's folder.
    """

    def __init__(self, logs: LogOptions) -> None:
        self.tables: dict[Path, EngineTable] = {}
        self._logs = logs
        self._chosen: dict[tuple[Path, str, InstanceOptions], InstanceOptions] = {}
        self._by_model: dict[tuple[str, InstanceOptions], InstanceOptions] = {}

    def choose(
        self,
        model: str,
        folder: Path,
        fingerprint: str,
        options: InstanceOptions,
        *,
        may_measure: bool,
    ) -> InstanceOptions:
        """Fills in the engine, precision and threads where the options leave them open.

        Args:
            model: The model's name.
            folder: The version's folder.
            fingerprint: SHA-256 of its manifest.
            options: As they were given.
            may_measure: Whether there is time to measure.

        Raises:
            SetupError: The manifest cannot be read, or a device cannot be had.
        """
        key = (folder, fingerprint, options)
        if key not in self._chosen:
            chosen = self._inherited(model, folder, options) if not may_measure else None
            chosen = chosen or self._find(folder, options, may_measure=may_measure)
            self._chosen[key] = self._by_model[model, options] = chosen
        return self._chosen[key]

    def _inherited(
        self, model: str, folder: Path, options: InstanceOptions
    ) -> InstanceOptions | None:
        """What was chosen for another version of the model, if this one has the files for it."""
        chosen = self._by_model.get((model, options))
        if chosen is None or not _is_open(options):
            return None
        device = _first_device(options)
        on_gpu = device is not None and device.device != CPU
        needed = model_files(chosen.inference_engine_type, chosen.precision, on_gpu=on_gpu)
        return chosen if set(needed) <= load_manifest(folder).files.keys() else None

    def _find(
        self, folder: Path, options: InstanceOptions, *, may_measure: bool
    ) -> InstanceOptions:
        trial = self._try if may_measure else _refuse_trial
        device = _first_device(options) if _is_open(options) else None
        chosen, table = choose_engine(options, device, folder, load_manifest(folder), trial)
        if table:
            self.tables[folder] = table
        return chosen

    def _try(self, candidates: Sequence[tuple[Finding, Setup]]) -> list[Finding]:
        return try_engines(candidates, self._logs)


def _is_open(options: InstanceOptions) -> bool:
    return AUTO in (options.inference_engine_type, options.precision)


def _first_device(options: InstanceOptions) -> DeviceAssignment | None:
    """Where the first instance runs; None if not on this machine."""
    devices = devices_of(options.num_inference_sessions, options.devices)
    return devices[0] if devices else None


def _refuse_trial(_: Sequence[tuple[Finding, Setup]]) -> list[Finding]:
    raise SetupError("not while the server serves; restart it to have them measured")
