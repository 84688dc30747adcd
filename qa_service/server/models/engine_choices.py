"""The engine of each version: chosen when it is planned, measured in a process if necessary.

    a table is kept          ─▶ its best engine
    at the start, on a CPU   ─▶ the likeliest engine serves; measured once the server serves, at the
                                lowest priority, and the best takes its place as a reload does
    its instances fail,
    a GPU, bounded memory    ─▶ open until it is measured: there is no room for both at once
    too little memory left   ─▶ the likeliest stays; the next start looks again
    while the server serves  ─▶ not measured: the engine of another version of the model, if the new
                                one has the files, else the reference

A separate process measures one version after the other, for a few seconds each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from qa_service.autotune.candidates import choose_engine, likeliest
from qa_service.autotune.engine_table import (
    MAX_MESSAGE_BYTES,
    Choice,
    EngineTable,
    Measurement,
    TrialReply,
    TrialRequest,
    encode_trial,
)
from qa_service.child_program import start_program
from qa_service.instance.devices import CPU, first_device
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.manifest import load_manifest, model_files
from qa_service.logs import LogOptions
from qa_service.machine import available_bytes
from qa_service.net.event_loop import EventLoop
from qa_service.server.children.child import Child
from qa_service.server.models.on_disk import FoundVersion

logger = logging.getLogger(__name__)

TRIAL_PROGRAM = "qa_service.autotune.engine_trial"
TRIAL_BYTES, TRIAL_MODELS = 256 << 20, 3
"""What measuring takes: two instances' libraries, and copies of a model's largest file; it was 425
MiB with the built-in model. In less, the serving instances would wait for pages, and be killed."""

_reply_decoder = msgspec.msgpack.Decoder(TrialReply)

_Key = tuple[FoundVersion, InstanceOptions]


@dataclass(eq=False)
class EngineChoices:
    """Chooses engines; remembers its choices, and their tables by the model's folder.

    Args:
        has_room: Whether instances of two engines fit into memory at once.
        free_bytes: How much memory there is at present.

    Attributes:
        is_serving: Whether the server serves: likely engines are measured from then on, and those
            of no new version.
    """

    loop: EventLoop
    logs: LogOptions
    on_found: Callable[[], None]
    has_room: bool = True
    free_bytes: Callable[[], int] = available_bytes

    def __post_init__(self) -> None:
        self.is_serving = False
        self._tables: dict[Path, EngineTable] = {}
        self._chosen: dict[_Key, InstanceOptions] = {}
        self._by_model: dict[tuple[str, InstanceOptions], InstanceOptions] = {}
        self._waiting: dict[_Key, Measurement] = {}
        self._provisional: set[_Key] = set()
        self._trial: Child | None = None

    def choose(self, model: str, found: FoundVersion, options: InstanceOptions) -> InstanceOptions:
        """Fills in the engine, precision and threads that the options leave open.

        While the engine waits to be measured, the options stay as they are. Without a manifest or
        a device it raises `SetupError`.
        """
        key = (found, options)
        chosen = self._chosen.get(key)
        if chosen is None and self.is_serving and options.is_engine_open:
            # The engine of another version of the model, if this version has the files for it.
            chosen = self._by_model.get((model, options))
            if chosen is not None:
                needed = set(model_files(chosen.inference_engine_type, chosen.precision))
                chosen = chosen if needed <= load_manifest(found.path).files.keys() else None
        if chosen is None:
            chosen = self._find(key)
        if chosen is None:
            return options
        self._chosen[key] = self._by_model[model, options] = chosen
        return chosen

    def reject(self, found: FoundVersion, options: InstanceOptions) -> None:
        """Takes the likeliest engine back, which cannot be loaded: its like are measured first."""
        key = (found, options)
        if key in self._provisional:
            self._provisional.discard(key)
            del self._chosen[key]

    def reason(self, folder: Path) -> str:
        """Why a version's engine was chosen and when; empty if there was no choice."""
        if any(found.path == folder for found, _ in self._provisional):
            return "likely the fastest on this processor; which one is, is measured from now on"
        table = self._tables.get(folder)
        if table is None:
            return ""
        return f"{table.reason}; measured on {table.measured_on}".removesuffix("; measured on ")

    def measure_next(self) -> None:
        """Starts to measure the next version whose engine is not known, unless one is measured."""
        due = (key for key in self._waiting if self.is_serving or key not in self._provisional)
        key = next(due, None)
        if self._trial or key is None:
            return
        measurement, folder = self._waiting[key], key[0].path
        is_beside = key in self._provisional
        free_bytes, model_bytes = self.free_bytes(), max(key[0].file_bytes.values(), default=0)
        taken_bytes = TRIAL_BYTES + TRIAL_MODELS * model_bytes
        if is_beside and free_bytes < taken_bytes:
            free, taken = (f"{size >> 20} MiB" for size in (free_bytes, taken_bytes))
            self._on_end(key, TrialReply(failure=f"{free} of memory are free, it takes {taken}"))
            return
        number = len(measurement.candidates)
        logger.info("finding the fastest of %d engines, once for this machine: %s", number, folder)
        died = TrialReply(failure="the program that measures them died")
        self._trial = Child(
            self.loop,
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
        self._trial.write(encode_trial(TrialRequest(measurement, self.logs, is_beside=is_beside)))

    def close(self) -> None:
        """Ends the measurement, and the instances that it has started."""
        if self._trial:
            self._trial.kill()
            self._trial = None

    def _on_end(self, key: _Key, reply: TrialReply) -> None:
        self.close()
        measurement = self._waiting.pop(key)
        if key not in self._provisional:
            self._settle(key, measurement, reply)
        elif reply.table is None:
            logger.warning(
                "the engines could not be measured, the likeliest stays: %s", reply.failure
            )
        else:
            best = self._settle(key, measurement, reply)
            engine = f"{best.inference_engine_type} engine in {best.precision}"
            logger.info("the fastest for %s: %s, %s", key[0].path, engine, reply.table.reason)
        self._provisional.discard(key)
        self.on_found()

    def _settle(self, key: _Key, measurement: Measurement, reply: TrialReply) -> InstanceOptions:
        if reply.failure:
            logger.warning("the engines could not be measured: %s", reply.failure)
        return self._keep(key, measurement.choice(reply.table))

    def _keep(self, key: _Key, choice: Choice) -> InstanceOptions:
        if choice.table:
            self._tables[key[0].path] = choice.table
        self._chosen[key] = choice.options
        return choice.options

    def _find(self, key: _Key) -> InstanceOptions | None:
        """The options with an engine that needs no measuring; None if the engine needs it."""
        if key in self._waiting:
            return None
        version, options = key
        device = first_device(options) if options.is_engine_open else None
        found = choose_engine(options, device, version.path, load_manifest(version.path))
        if isinstance(found, Choice):
            return self._keep(key, found)
        if self.is_serving:
            why = "not while the server serves; restart it to have them measured"
            return self._settle(key, found, TrialReply(failure=why))
        self._waiting[key] = found
        if found.setup.device.device != CPU or not self.has_room:
            return None
        self._provisional.add(key)
        return likeliest(found)
