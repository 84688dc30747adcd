"""The engine of each version: chosen when it is planned, measured in a process if necessary.

While the server starts, a separate process measures the versions without a table, one after
the other, for a few seconds each; until then a version's engine is open. While the server serves,
nothing is measured: a new version takes the engine of another version of its model if it has the
files, else the reference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from qa_service.autotune.candidates import choose_engine
from qa_service.autotune.engine_table import Choice, EngineTable, Measurement
from qa_service.autotune.messages import MAX_MESSAGE_BYTES, TrialReply, TrialRequest, encode
from qa_service.child_program import start_program
from qa_service.instance.devices import first_device
from qa_service.instance.model_folder.manifest import load_manifest, model_files
from qa_service.instance.options import InstanceOptions
from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.server.children.child import Child

logger = logging.getLogger(__name__)

TRIAL_PROGRAM = "qa_service.autotune.trial_main"

_reply_decoder = msgspec.msgpack.Decoder(TrialReply)

_Key = tuple[Path, str, InstanceOptions]


class EngineChoices:
    """Chooses engines; remembers its choices, and their tables by the model's folder."""

    def __init__(self, loop: EventLoop, logs: LogOptions, on_found: Callable[[], None]) -> None:
        self.tables: dict[Path, EngineTable] = {}
        self._loop = loop
        self._logs = logs
        self._on_found = on_found
        self._chosen: dict[_Key, InstanceOptions] = {}
        self._by_model: dict[tuple[str, InstanceOptions], InstanceOptions] = {}
        self._waiting: dict[_Key, Measurement] = {}
        self._trial: Child | None = None

    def choose(
        self,
        model: str,
        folder: Path,
        fingerprint: str,
        options: InstanceOptions,
        *,
        may_measure: bool,
    ) -> InstanceOptions:
        """Fills in the engine, precision and threads that the options leave open.

        While the engine waits to be measured, the options stay as they are.

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
        """Starts to measure the next version whose engine is open, unless one is measured now."""
        if self._trial or not self._waiting:
            return
        key, measurement = next(iter(self._waiting.items()))
        number = len(measurement.candidates)
        logger.info("finding the fastest of %d engines, once for this machine: %s", number, key[0])
        died = TrialReply(failure="the program that measures them died")
        self._trial = Child(
            self._loop,
            "the program that measures engines",
            partial(start_program, TRIAL_PROGRAM),
            on_data=lambda body: self._on_end(key, _reply_decoder.decode(body)),
            max_frame_bytes=MAX_MESSAGE_BYTES,
            on_end=lambda: self._on_end(key, died),
        )
        try:
            self._trial.start()
        except OSError as error:
            self._on_end(key, TrialReply(failure=str(error)))
            return
        self._trial.write(encode(TrialRequest(measurement, self._logs)))

    def close(self) -> None:
        """Ends the measurement, and the instances that it has started."""
        if self._trial:
            self._trial.kill()
            self._trial = None

    def _on_end(self, key: _Key, reply: TrialReply) -> None:
        self.close()
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
        """The engine of another version of the model, if this version has the files for it."""
        chosen = self._by_model.get((model, options))
        if chosen is None or not options.is_engine_open:
            return None
        needed = model_files(chosen.inference_engine_type, chosen.precision)
        return chosen if set(needed) <= load_manifest(folder).files.keys() else None

    def _find(self, key: _Key, *, may_measure: bool) -> InstanceOptions | None:
        """The options with an engine that needs no measuring; None if the engine needs it."""
        if key in self._waiting:
            return None
        folder, _, options = key
        device = first_device(options) if options.is_engine_open else None
        found = choose_engine(options, device, folder, load_manifest(folder))
        if isinstance(found, Choice):
            return self._keep(key, found)
        if not may_measure:
            why = "not while the server serves; restart it to have them measured"
            return self._settle(key, found, TrialReply(failure=why))
        self._waiting[key] = found
        return None
