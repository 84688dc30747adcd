"""Tables of reStructuredText: grids, simple ones, and lists of lists."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import NamedTuple

GRID_LINE = re.compile(r"\+(?:[-=]+\+)+[ \t]*")
SIMPLE_LINE = re.compile(r"={2,}(?:[ \t]+={2,})+[ \t]*")
_SPAN_LINE = re.compile(r"-{2,}(?:[ \t]+-{2,})*[ \t]*")
_MAX_CELLS = 200_000


class Cells(NamedTuple):
    """A row: where it begins among the table's lines, and its cells' markup."""

    line: int
    cells: list[str]


class RawTable(NamedTuple):
    """A table whose cells are markup still."""

    head: list[str]
    rows: list[Cells]


def grid_table(lines: Sequence[str]) -> RawTable:
    """Reads a grid; a cell over several columns or rows stands in its first one."""
    bounds = sorted(
        {
            place
            for line in lines
            if GRID_LINE.fullmatch(line)
            for place, sign in enumerate(line)
            if sign == "+"
        }
    )
    if len(bounds) * len(lines) > _MAX_CELLS:
        return RawTable([], [])
    head: list[str] = []
    rows: list[Cells] = []
    begin, cells = 0, [list[str]() for _ in bounds[1:]]
    for place, line in enumerate(lines):
        is_border = line.startswith("+") and set(line.rstrip()) <= set("+-=|") and len(line) > 2
        if is_border and set(line.rstrip()) <= set("+-="):
            texts = ["\n".join(cell).strip() for cell in cells]
            if any(texts):
                rows.append(Cells(begin, texts))
            if "=" in line and not head:
                head = [" ".join(c) for c in zip(*[row.cells for row in rows], strict=True)]
                rows = []
            begin, cells = place + 1, [[] for _ in bounds[1:]]
            continue
        _take_grid_line(line, bounds, cells)
    return RawTable(head, rows)


def _take_grid_line(line: str, bounds: Sequence[int], cells: list[list[str]]) -> None:
    """Shares a line among the columns; a text goes on where no border is."""
    first = 0
    for place, bound in enumerate(bounds[1:]):
        sign = line[bound : bound + 1]
        if sign in {"|", "+", ""} or place == len(cells) - 1:
            part = line[bounds[first] + 1 : bound].rstrip()
            if part.strip("-=+ "):
                cells[first].append(part[1:] if part.startswith(" ") else part)
            elif not part.strip():
                cells[first].append("")
            first = place + 1


def simple_table(lines: Sequence[str]) -> RawTable:
    """Reads a simple table, from its first border to its last."""
    columns = [found.span() for found in re.finditer("=+", lines[0])]
    borders = [place for place, line in enumerate(lines) if SIMPLE_LINE.fullmatch(line)]
    rows: list[Cells] = []
    head: list[str] = []
    for place, line in enumerate(lines[1:], 1):
        if SIMPLE_LINE.fullmatch(line):
            if len(borders) > 2 and place == borders[1]:
                head = [
                    " ".join(c.split())
                    for c in map(" ".join, zip(*[r.cells for r in rows], strict=True))
                ]
                rows = []
        elif not line.strip() or _SPAN_LINE.fullmatch(line):
            continue
        else:
            cells = _simple_cells(line, columns)
            if rows and not cells[0]:
                rows[-1] = Cells(
                    rows[-1].line,
                    [f"{a}\n{b}".strip() for a, b in zip(rows[-1].cells, cells, strict=True)],
                )
            else:
                rows.append(Cells(place, cells))
    return RawTable(head, rows)


def _simple_cells(line: str, columns: Sequence[tuple[int, int]]) -> list[str]:
    cells = []
    for place, (start, _) in enumerate(columns):
        end = columns[place + 1][0] if place + 1 < len(columns) else len(line)
        cells.append(line[start:end].strip())
    return cells


def csv_table(lines: Sequence[str], header: str, num_header: int) -> RawTable:
    """Reads the rows of a `csv-table`."""
    rows = [
        Cells(place, row)
        for place, row in enumerate(csv.reader(lines, skipinitialspace=True))
        if row
    ]
    if header:
        return RawTable(next(csv.reader([header], skipinitialspace=True)), rows)
    head = rows[0].cells if num_header and rows else []
    return RawTable(head, rows[1:] if head else rows)
