"""What `--model` names: a prepared model, or one that is prepared first.

saved_models/NAME, or any prepared folder ──▶ served
NAME or OWNER/NAME, prepared before       ──▶ saved_models/NAME, saved_models/OWNER--NAME
a built-in model, a model on the hub,
a folder of `save_pretrained`             ──▶ prepared into saved_models, by a separate program
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from qa_service.child_program import environment_of_programs
from qa_service.errors import SetupError
from qa_service.instance.model_folder.manifest import (
    BUILTINS,
    CONFIG_FILE,
    MANIFEST_FILE,
    SAVED_MODELS,
    folder_of,
    is_on_hub,
)

_PROGRAM = "qa_service.preparation.main"
_ADAPTER_CONFIG = "adapter_config.json"


def served_folder(model: Path) -> Path:
    """The folder that is served for `--model`: itself, or where that was prepared."""
    source = _source_of(model)
    target = _target_of(source) if source else model
    return target if (target / MANIFEST_FILE).is_file() else model


def prepare_first(model: Path, *, may_prepare: bool, say: Callable[[str], None]) -> None:
    """Prepares what `--model` names, unless it is prepared or is no source of a model.

    Args:
        say: Takes each line of the program that prepares.

    Raises:
        SetupError: It cannot be prepared, or may not be.
    """
    source = _source_of(model)
    if source is None or (_target_of(source) / MANIFEST_FILE).is_file():
        return
    if not may_prepare:
        raise SetupError(f"{model} is not prepared, and --no-prepare is set")
    say(f"{model} is not prepared yet: preparing it in {_target_of(source)}")
    _run([sys.executable, "-m", _PROGRAM, "--model", source], say)


def _source_of(model: Path) -> str | None:
    """What `prepare_model.py --model` takes for it; None for what is served as it is."""
    if (model / MANIFEST_FILE).is_file():
        return None
    if model.is_dir():
        is_source = (model / CONFIG_FILE).is_file() or (model / _ADAPTER_CONFIG).is_file()
        return str(model) if is_source else None
    if model.parent == SAVED_MODELS:
        return model.name if model.name in BUILTINS else None
    name = str(model)
    is_known = name in BUILTINS or (_target_of(name) / MANIFEST_FILE).is_file()
    return name if is_known or is_on_hub(model) else None


def _target_of(source: str) -> Path:
    """Its folder in `saved_models`, as `prepare_model.py` names it."""
    is_folder = Path(source).is_dir()
    return SAVED_MODELS / Path(source).resolve().name if is_folder else folder_of(source)


def is_prepared_first(model: Path) -> bool:
    """Whether a start prepares what `--model` names."""
    source = _source_of(model)
    return source is not None and not (_target_of(source) / MANIFEST_FILE).is_file()


def _run(command: list[str], say: Callable[[str], None]) -> None:
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment_of_programs(),
    ) as program:
        line = ""
        try:
            for line in program.stdout or ():
                say(line.rstrip("\n"))
        except BaseException:
            program.terminate()
            raise
    if program.returncode:
        reason = line.strip().partition(": ")[2]  # after the program's name
        raise SetupError(f"the model could not be prepared: {reason}")
