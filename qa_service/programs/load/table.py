"""The cells of a sweep as Markdown and as CSV."""

from __future__ import annotations

import csv
import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from typing import TextIO

from qa_service import __version__
from qa_service.machine import num_cpus, processor
from qa_service.programs.load.report import PERCENTS, share_of_cores
from qa_service.programs.load.sweep import Cell

COLUMNS = (
    "sessions", "loop", "clients", "offered_per_s", "answered", "failed", "errors", "duration_s",
    "throughput_per_s", "mean_ms", "std_ms", *(f"p{percent}_ms" for percent in PERCENTS),
    "generator_cores", "engine", "bound",
)  # fmt: skip
_LIBRARIES = ("onnxruntime", "onnxruntime-gpu", "torch")


def markdown(cells: Sequence[Cell]) -> str:
    """Two tables, a row for each load and a column for each number of instances; then notes."""
    plan = cells[0].plan
    length = f"{plan.num_requests} requests" if plan.num_requests else f"{plan.duration_s:g} s"
    unit, kind = "clients", "Closed loop: each client asks when it has its answer"
    if plan.is_open:
        unit, kind = "requests/s", "Open loop (Poisson), latency from when a request was due"
    bounds = [
        f"- {column_head(cell.num_instances)}, {cell.load:g} {unit}: {cell.bound}"
        for cell in cells
        if cell.bound
    ]
    most = max(cell.report.generator_cores for cell in cells)
    lines = [
        f"Latency in ms: p50 / p99 (mean ± std)\n\n{_table(cells, _latency)}\n",
        f"Throughput in answers per second\n\n{_table(cells, _throughput)}\n",
        *(["Where the time goes\n", *bounds, ""] if bounds else []),
        f"{kind}; {length} a cell, {len(plan.questions)} questions.",
        f"The load generator took at most {share_of_cores(most)}.",
        f"Measured on {machine()}.",
    ]
    return "\n".join(lines)


def _latency(cell: Cell) -> str:
    report = cell.report
    p50, p99 = report.percentiles_ms[50], report.percentiles_ms[99]
    return f"{p50:.1f} / {p99:.1f} ({report.mean_ms:.1f} ± {report.std_ms:.1f})"


def _throughput(cell: Cell) -> str:
    report = cell.report
    failed = f" ({report.num_failed} failed)" if report.num_failed else ""
    cut_short = " (cut short)" if report.interrupted else ""
    return f"{report.throughput:.1f}{failed}{cut_short}"


def _table(cells: Sequence[Cell], show: Callable[[Cell], str]) -> str:
    columns = {cell.num_instances: cell.engine for cell in cells}
    heads = ["offered, requests/s" if cells[0].plan.is_open else "clients"]
    heads += [f"{column_head(n)}{engine and f', {engine}'}" for n, engine in columns.items()]
    found = {(cell.load, cell.num_instances): show(cell) for cell in cells}
    rows = [
        [f"{load:g}", *(found.get((load, column), "") for column in columns)]
        for load in dict.fromkeys(cell.load for cell in cells)
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(words: Sequence[str]) -> str:
        padded = (f"{word:>{width}}" for word, width in zip(words, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (width + 1) + ":" for width in widths)
    return "\n".join([line(heads), f"|{rule}|", *map(line, rows)])


def column_head(num_instances: int | None) -> str:
    if num_instances is None:
        return "the server"
    return f"{num_instances} instance{'s' if num_instances > 1 else ''}"


def machine() -> str:
    """This machine and the libraries' versions, in a line."""
    versions = [f"Python {platform.python_version()}", f"QA server {__version__}"]
    for library in _LIBRARIES:
        try:
            versions.append(f"{library} {importlib.metadata.version(library)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return f"{num_cpus()} cores of {processor().name}, {system}; {', '.join(versions)}"


class CsvFile:
    """A CSV file with a row for each cell, written as soon as it is measured."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._rows = csv.writer(file, lineterminator="\n")
        self._rows.writerow(COLUMNS)

    def add(self, cell: Cell) -> None:
        """Writes the cell's row, in full precision."""
        plan, report = cell.plan, cell.report
        errors = " ".join(f"{code}={number}" for code, number in sorted(report.errors.items()))
        loop = "open" if plan.is_open else "closed"
        self._rows.writerow(
            [
                cell.num_instances, loop, plan.num_simultaneous_clients, plan.rate_per_s,
                report.num_answered, report.num_failed, errors, report.duration_s,
                report.throughput, report.mean_ms, report.std_ms,
                *(report.percentiles_ms[percent] for percent in PERCENTS),
                report.generator_cores, cell.engine, cell.bound,
            ]
        )  # fmt: skip
        self._file.flush()
