"""Which packages are installed, and the commands that install or prepare what is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from qa_service import __version__

ROOT = Path(__file__).resolve().parents[1]
"""The clone, if the package is in one."""


def installed_version(package: str) -> str:
    """The version of a Python package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def install_hint(extra: str, root: Path = ROOT) -> str:
    """The command that installs an extra: in the clone, or from the wheel."""
    if (root / "pyproject.toml").is_file():
        return f"pip install -c constraints.txt '.[{extra}]'"
    return f"pip install 'qa_server-{__version__}-py3-none-any.whl[{extra}]'"


def say_missing(error: ModuleNotFoundError, extra: str, packages: Iterable[str]) -> str:
    """Names all packages of an extra that are missing, and the command that installs them."""
    missing = [name for name in packages if not installed_version(name)] or [str(error.name)]
    verb = "is" if len(missing) == 1 else "are"
    return f"{', '.join(missing)} {verb} missing: {install_hint(extra)}"


def preparing_program() -> str:
    """The command that prepares models: the installed program, or that of the clone."""
    program = ROOT / "prepare_model.py"
    is_installed = Path(sys.argv[0]).name.startswith("qa-") or not program.is_file()
    return "qa-prepare-model" if is_installed else f"python {program.name}"
