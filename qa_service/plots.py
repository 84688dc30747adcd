"""Whether a program can draw what its `--plot` names."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from qa_service.installation import install_hint

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


class PlotError(Exception): ...


def check_plot(path: Path) -> None:
    """Raises `PlotError`, before anything is measured, if no plot can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError(f"--plot needs matplotlib: {install_hint('bench')}")
    if path.suffix not in PLOT_SUFFIXES:
        raise PlotError(f"--plot writes {', '.join(PLOT_SUFFIXES)}, not {path.name}")
    if not path.parent.is_dir():
        raise PlotError(f"there is no folder {path.parent}")
