"""Which packages are installed, and the commands that install or prepare what is missing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from qa_service import __version__
from qa_service.errors import SetupError

ROOT = Path(__file__).resolve().parents[1]
"""The clone, if the package is in one."""


def installed_version(package: str) -> str:
    """The version of a Python package; empty if it is not installed."""
    from importlib import metadata  # noqa: PLC0415, a twentieth of the server's start

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def install_hint(extra: str, root: Path = ROOT) -> str:
    """The command that installs an extra: in the clone, or from the wheel."""
    if (root / "pyproject.toml").is_file():
        return f"pip install -c constraints.txt '.[{extra}]'"
    return f"pip install 'qa_server-{__version__}-py3-none-any.whl[{extra}]'"


def load(module: str, who_needs: str, package: str, extra: str) -> ModuleType:
    """Imports a module of a package when it is needed.

    Args:
        who_needs: As in "collections need".

    Raises:
        SetupError: It is not installed; with the command that installs the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        message = f"{who_needs} the package {package}: {install_hint(extra)}"
        raise SetupError(message) from None


def say_missing(
    error: ModuleNotFoundError, extra: str, packages: Iterable[str] = (), root: Path = ROOT
) -> str:
    """One sentence: which packages are missing, and what has or installs them.

    Args:
        extra: What brings all that the program needs.
        packages: Those that it needs, as far as they are known.

    Raises:
        ModuleNotFoundError: The module is one of ours: a bug.
    """
    if (error.name or "").startswith(("qa_service", "training")):
        raise error
    missing = [name for name in packages if not installed_version(name)] or [str(error.name)]
    words = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    program, python = Path(sys.argv[0]), root / ".venv" / "bin" / "python"
    if program.suffix != ".py" or not (root / "pyproject.toml").is_file():
        return f"{words}: {install_hint(extra, root)}"
    if python.exists() and Path(sys.prefix).resolve() != (root / ".venv").resolve():
        shown = python.relative_to(root) if Path.cwd() == root else python
        return f"{words} for {sys.executable}: run {shown} {program}"
    return f"{words}: {install_hint(extra, root)}, or `make model`, which makes {root / '.venv'}"


def preparing_program() -> str:
    """The command that prepares models: the installed program, or that of the clone."""
    program = ROOT / "prepare_model.py"
    is_installed = Path(sys.argv[0]).name.startswith("qa-") or not program.is_file()
    return "qa-prepare-model" if is_installed else f"python {program.name}"


PLOT_SUFFIXES = (".png", ".svg", ".pdf")


class PlotError(SetupError):
    exit_code = 1


def check_plot(path: Path) -> None:
    """Raises `PlotError`, before anything is measured, if no plot can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError(f"--plot needs matplotlib: {install_hint('bench')}")
    if path.suffix not in PLOT_SUFFIXES:
        raise PlotError(f"--plot writes {', '.join(PLOT_SUFFIXES)}, not {path.name}")
    if not path.parent.is_dir():
        raise PlotError(f"there is no folder {path.parent}")
