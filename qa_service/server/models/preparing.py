"""What `--model` names: a prepared model, or one that is prepared first.

saved_models/NAME, or any prepared folder ──▶ served
NAME or OWNER/NAME, prepared before       ──▶ saved_models/NAME, saved_models/OWNER--NAME
a built-in model, a model on the hub,
a folder of `save_pretrained` or `optimum` ─▶ prepared into saved_models, by a child of the server

Here `saved_models` is `RepositoryOptions.models_dir`: where the working directory has no such
folder, the user's folder of data.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from qa_service.child_program import start_program
from qa_service.engine_catalogue import ONNX_FILE
from qa_service.errors import SetupError
from qa_service.files import SAVED_MODELS, is_there
from qa_service.instance.model_folder.manifest import (
    BUILTINS,
    CONFIG_FILE,
    MANIFEST_FILE,
    folder_of,
    is_on_hub,
)
from qa_service.net.event_loop import EventLoop
from qa_service.server.children.child import Child
from qa_service.server.models.model_options import RepositoryOptions

logger = logging.getLogger(__name__)

TIMEOUT_S = 3600.0
"""A model of 1.3 GB takes half of it at 5 Mbit/s; a hub that sends nothing takes for ever."""
MAX_LINE_BYTES = 1 << 16
"""Of what the program says; a longer line is logged in parts."""

_PROGRAM = "qa_service.preparation.child_main"
_COMPLAINT = "qa-prepare-model: "
"""Begins the line in which the program says why it fails."""
_SOURCE_FILES = (CONFIG_FILE, "adapter_config.json", ONNX_FILE, f"onnx/{ONNX_FILE}")
"""One of these makes a folder a source."""


def served_folder(its: RepositoryOptions) -> Path:
    """The folder that is served for `--model`: itself, or where that was prepared."""
    source = _source_of(its)
    target = _target_of(source, its.models_dir) if source else its.model
    return target if is_there(target / MANIFEST_FILE) else its.model


def source_to_prepare(its: RepositoryOptions) -> str | None:
    """What must be prepared before `--model` can be served.

    None if that is prepared, or is no source of a model; a `SetupError` if it may not be prepared.
    """
    if not (found := unprepared(its)):
        return None
    if not its.prepare:
        raise SetupError(f"{its.model} is not prepared, and --no-prepare is set")
    source, target = found
    logger.info("%s is not prepared yet: preparing it in %s", its.model, target)
    return source


def prepare_first(its: RepositoryOptions) -> None:
    """Prepares what `--model` names, unless it is prepared; raises `SetupError` if it cannot."""
    source = source_to_prepare(its)
    if source is None:
        return
    loop, failures = EventLoop(), [""]

    def on_end(failure: str) -> None:
        failures.append(failure)
        loop.stop()

    preparing = Preparing(loop, source, its.models_dir, on_end)
    with contextlib.closing(loop), contextlib.closing(preparing):
        loop.run()
    if failures[-1]:
        raise SetupError(failures[-1])


class Preparing:
    """The program that prepares a model, seen from the loop; its lines are logged.

    Args:
        source: What `prepare_model.py --model` takes.
        on_end: Called once, with why it failed or with an empty string; not after `close`.

    Raises:
        SetupError: It cannot be started.
    """

    def __init__(
        self, loop: EventLoop, source: str, models: Path, on_end: Callable[[str], None]
    ) -> None:
        self._on_end = on_end
        self._rest, self._reason = b"", ""
        flags = ("--model", source, "--output_dir", str(models))
        self.child = Child(
            loop,
            "the program that prepares",
            partial(start_program, _PROGRAM, *flags),
            on_data=self._on_data,
            on_end=lambda: self.child.when_exited(self._on_exit),
            has_end=True,
        )
        try:
            self.child.start()
        except OSError as error:
            raise SetupError(f"the model could not be prepared: {error}") from error
        self.child.expect("preparing", TIMEOUT_S)

    def close(self) -> None:
        self.child.kill()

    def _on_data(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).splitlines(keepends=True)
        if self._rest.endswith(b"\n") or len(self._rest) > MAX_LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in filter(None, (line.decode(errors="replace").strip() for line in lines)):
            if line.startswith(_COMPLAINT):  # which the server says itself
                self._reason = line.removeprefix(_COMPLAINT)
            else:
                logger.info("%s", line)

    def _on_exit(self) -> None:
        self._on_data(b"\n")  # ends a line that it could not finish
        reason = self._reason or self.child.failure or f"its program {self.child.status}"
        self._on_end(f"the model could not be prepared: {reason}" if self.child.exit_code else "")


def _source_of(its: RepositoryOptions) -> str | None:
    """What `prepare_model.py --model` takes for it; None for what is served as it is."""
    model, name = its.model, str(its.model)
    if is_there(model / MANIFEST_FILE):
        return None
    try:
        if model.is_dir():
            return name if any((model / file).is_file() for file in _SOURCE_FILES) else None
        if model.parent == SAVED_MODELS:
            return model.name if model.name in BUILTINS else None
        is_known = name in BUILTINS or is_there(_target_of(name, its.models_dir) / MANIFEST_FILE)
        return name if is_known or is_on_hub(model) else None
    except OSError:  # it may not be looked at: who loads it says so
        return None


def _target_of(source: str, models: Path) -> Path:
    """Its folder among the prepared models, as `prepare_model.py` names it."""
    is_folder = Path(source).is_dir()
    return models / Path(source).resolve().name if is_folder else folder_of(source, models)


def unprepared(its: RepositoryOptions) -> tuple[str, Path] | None:
    """The source that is not prepared yet, and the folder that it goes to."""
    if not (source := _source_of(its)):
        return None
    target = _target_of(source, its.models_dir)
    return None if is_there(target / MANIFEST_FILE) else (source, target)
