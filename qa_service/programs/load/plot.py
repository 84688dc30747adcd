"""Plots a sweep: latency and throughput against load, with matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qa_service.programs.load.sweep import Cell, column_head

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = {50: "-", 90: "--", 99: ":"}
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, which the colour-blind can tell apart."""
_INCHES = (12.0, 5.0)

_Row = tuple[str, str, list[Cell]]
"""The cells of a number of instances, with its colour and its name."""


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Draws latency percentiles on the left, throughput on the right, of loops of one kind."""
    make_figure(cells).savefig(path, dpi=150)


def make_figure(cells: Sequence[Cell]) -> Figure:
    """Two panels side by side; a colour for each number of instances."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only --plot needs it

    figure = Figure(figsize=_INCHES, layout="constrained")
    latency, throughput = figure.subplots(1, 2)
    rows, is_open = list[_Row](), cells[0].plan.is_open
    numbers = list(dict.fromkeys(cell.num_instances for cell in cells))
    for colour, number in zip(itertools.cycle(_COLOURS), numbers, strict=False):
        row = sorted(
            (cell for cell in cells if cell.num_instances == number), key=lambda cell: cell.load
        )
        rows.append((colour, column_head(number), row))
    _draw_latency(latency, rows)
    _draw_throughput(throughput, rows, is_open)
    loads = sorted({cell.load for cell in cells})
    for axes in (latency, throughput):
        if not is_open:  # where rates are offered, all of them are a straight line
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks(loads, [f"{load:g}" for load in loads])
        label = "offered load (requests per second)" if is_open else "simultaneous clients"
        axes.set_xlabel(label)
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    if is_open or len(rows) > 1:
        throughput.legend(frameon=False)
    return figure


def _draw_latency(axes: Axes, rows: Sequence[_Row]) -> None:
    """Draws each percentile in its line style, on a logarithmic scale."""
    from matplotlib.ticker import LogFormatter  # noqa: PLC0415 - only --plot needs it

    for colour, _, row in rows:
        for percent, style in _STYLES.items():
            values = [cell.report.percentiles_ms[percent] for cell in row]
            axes.plot([c.load for c in row], values, style, marker="o", ms=4, color=colour)
    for percent, style in _STYLES.items():
        axes.plot([], [], style, color="black", label=f"p{percent}")
    if len(rows) > 1:
        for colour, label, _ in rows:
            axes.plot([], [], color=colour, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter())
    axes.set_ylabel("latency (ms, logarithmic)")
    axes.set_title("Latency", loc="left")
    axes.legend(frameon=False, ncols=2)


def _draw_throughput(axes: Axes, rows: Sequence[_Row], is_open: bool) -> None:
    if is_open:
        offered = sorted({cell.load for _, _, row in rows for cell in row})
        axes.plot(offered, offered, color="grey", lw=1, ls="--", label="all that was offered")
    for colour, label, row in rows:
        values = [cell.report.throughput for cell in row]
        axes.plot([c.load for c in row], values, marker="o", ms=4, color=colour, label=label)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("throughput (answers per second)")
    axes.set_title("Throughput", loc="left")
