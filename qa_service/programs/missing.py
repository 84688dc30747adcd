"""The message of a program in a clone whose interpreter lacks a package."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def advice(error: ModuleNotFoundError, root: Path = ROOT) -> str:
    """One line: which interpreter has the package, or how to install it.

    Raises:
        ModuleNotFoundError: The module is one of ours: a bug.
    """
    if (error.name or "").startswith(("qa_service", "training")):
        raise error
    program = Path(sys.argv[0])
    python = root / ".venv" / "bin" / "python"
    words = f"{program.name}: the package {error.name} is not installed for {sys.executable}"
    if python.exists() and Path(sys.prefix).resolve() != (root / ".venv").resolve():
        shown = python.relative_to(root) if Path.cwd() == root else python
        return f"{words}; run {shown} {program}"
    return f"{words}; `make model` installs it into {root / '.venv'}"
