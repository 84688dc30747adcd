"""The engine of each version that is served, where the options leave the choice.

While the server starts, engines that have not been measured on this machine are, one version after
the other, in a process beside the loop; until then a version's engine stays open. Later on there is
no time for that: what was found for another version of the same model is taken, if this one has the
files, else what runs anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.repository.manifest import load_manifest, model_files
from qa_service.workers.devices import CPU, DeviceAssignment
from qa_service.workers.engine_choice import Choice, Measurement, choose_engine
from qa_service.workers.engine_table import EngineTable
from qa_service.workers.factory import devices_of
from qa_service.workers.options import InstanceOptions
from qa_service.workers.trial_process import TrialProcess, TrialReply, TrialRequest

logger = logging.getLogger(__name__)

_Key = tuple[Path, str, InstanceOptions]


class EngineChoices:
    """Chooses engines, and remembers what it has chosen.

    Args:
        loop: The server's loop.
        logs: The log of the instances that are measured.
        on_found: Called when an engine that was open is chosen.

    Attributes:
        tables: What was measured, by the model's folder.
    """

    def __init__(self, loop: EventLoop, logs: LogOptions, on_found: Callable[[], None]) -> None:
        self.tables: dict[Path, EngineTable] = {}
        self._loop = loop
        self._logs = logs
        self._on_found = on_found
        self._chosen: dict[_Key, InstanceOptions] = {}
        self._by_model: dict[tuple[str, InstanceOptions], InstanceOptions] = {}
        self._waiting: dict[_Key, Measurement] = {}
        self._trial: TrialProcess | None = None

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

        Returns:
            The options; as they were given while their engine is still to be measured.

        Raises:
            SetupError: The manifest cannot be read, or a device cannot be had.
        """
        key = (folder, fingerprint, options)
        chosen = self._chosen.get(key)
        if chosen is None and not may_measure:
            chosen = self._inherited(model, folder, options)
        if chosen is None:
            chosen = self._find(key, may_measure=may_measure)
        if chosen is None:
            return options
        self._chosen[key] = self._by_model[model, options] = chosen
        return chosen

    def measure_next(self) -> None:
        """Begins to measure the next version whose engine is open, if nothing is measured now."""
        if self._trial or not self._waiting:
            return
        key, measurement = next(iter(self._waiting.items()))
        number = len(measurement.candidates)
        logger.info("finding the fastest of %d engines, once for this machine", number)
        request = TrialRequest(measurement, self._logs)
        try:
            self._trial = TrialProcess(self._loop, request, lambda reply: self._on_end(key, reply))
        except OSError as error:
            self._on_end(key, TrialReply(failure=str(error)))

    def close(self) -> None:
        """Ends what is measured."""
        if self._trial:
            self._trial.close()

    def _on_end(self, key: _Key, reply: TrialReply) -> None:
        self._trial = None
        self._settle(key, self._waiting.pop(key), reply)
        self._on_found()

    def _settle(self, key: _Key, measurement: Measurement, reply: TrialReply) -> InstanceOptions:
        if reply.failure:
            logger.warning("the engines could not be measured: %s", reply.failure)
        return self._keep(key, measurement.choice(reply.table))

    def _keep(self, key: _Key, choice: Choice) -> InstanceOptions:
        if choice.table:
            self.tables[key[0]] = choice.table
        self._chosen[key] = choice.options
        return choice.options

    def _inherited(
        self, model: str, folder: Path, options: InstanceOptions
    ) -> InstanceOptions | None:
        """What was chosen for another version of the model, if this one has the files for it."""
        chosen = self._by_model.get((model, options))
        if chosen is None or not options.is_engine_open:
            return None
        device = _first_device(options)
        on_gpu = device is not None and device.device != CPU
        needed = model_files(chosen.inference_engine_type, chosen.precision, on_gpu=on_gpu)
        return chosen if set(needed) <= load_manifest(folder).files.keys() else None

    def _find(self, key: _Key, *, may_measure: bool) -> InstanceOptions | None:
        """What is known without measuring; None if that is to be done."""
        if key in self._waiting:
            return None
        folder, _, options = key
        device = _first_device(options) if options.is_engine_open else None
        found = choose_engine(options, device, folder, load_manifest(folder))
        if isinstance(found, Choice):
            return self._keep(key, found)
        if not may_measure:
            why = "not while the server serves; restart it to have them measured"
            return self._settle(key, found, TrialReply(failure=why))
        self._waiting.setdefault(key, found)
        return None


def _first_device(options: InstanceOptions) -> DeviceAssignment | None:
    """Where the first instance runs; None if not on this machine."""
    devices = devices_of(options.num_inference_sessions, options.devices)
    return devices[0] if devices else None
