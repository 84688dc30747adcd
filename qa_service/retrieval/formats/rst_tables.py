"""Tables of reStructuredText: grids, simple ones, and those in CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from qa_service.retrieval.formats.rst_lines import Lines, RawTable

GRID_LINE = re.compile(r"\+(?:[-=]+\+)+[ \t]*")
SIMPLE_LINE = re.compile(r"={2,}(?:[ \t]+={2,})+[ \t]*")
_SPAN_LINE = re.compile(r"-{2,}(?:[ \t]+-{2,})*[ \t]*")
_MAX_CELLS = 200_000


def grid_table(part: Lines) -> RawTable:
    """Reads a grid; a cell over several columns or rows stands in its first one."""
    grid_lines = filter(GRID_LINE.fullmatch, part.lines)
    bounds = sorted({n for line in grid_lines for n, sign in enumerate(line) if sign == "+"})
    head, rows = list[str](), list[tuple[int, list[str]]]()
    if len(bounds) * len(part.lines) > _MAX_CELLS:
        return RawTable(head, rows)
    begin, cells = part.numbers[0], [list[str]() for _ in bounds[1:]]
    for place, line in enumerate(part.lines):
        if not (line.startswith("+") and set(line.rstrip()) <= set("+-=") and len(line) > 2):
            _take_grid_line(line, bounds, cells)
            continue
        texts = ["\n".join(cell).strip() for cell in cells]
        if any(texts):
            rows.append((begin, texts))
        if "=" in line and not head:
            head = [" ".join(c) for c in zip(*[texts for _, texts in rows], strict=True)]
            rows = []
        begin, cells = part.numbers[min(place + 1, len(part.numbers) - 1)], [[] for _ in bounds[1:]]
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


def simple_table(part: Lines) -> RawTable:
    """Reads a simple table, from its first border to its last."""
    starts = [found.start() for found in re.finditer("=+", part.lines[0])]
    head, rows = list[str](), list[tuple[int, list[str]]]()
    borders = [place for place, line in enumerate(part.lines) if SIMPLE_LINE.fullmatch(line)]
    for place, line in enumerate(part.lines[1:], 1):
        if SIMPLE_LINE.fullmatch(line):
            if len(borders) > 2 and place == borders[1]:
                columns = zip(*[texts for _, texts in rows], strict=True)
                head, rows = [" ".join(" ".join(column).split()) for column in columns], []
        elif line.strip() and not _SPAN_LINE.fullmatch(line):
            bounds = zip(starts, [*starts[1:], len(line)], strict=True)
            cells = [line[start:end].strip() for start, end in bounds]
            if rows and not cells[0]:
                above = rows[-1][1]
                above[:] = [f"{a}\n{b}".strip() for a, b in zip(above, cells, strict=True)]
            else:
                rows.append((part.numbers[place], cells))
    return RawTable(head, rows)


def csv_table(part: Lines, header: str, num_header: int) -> RawTable:
    read = csv.reader(part.lines, skipinitialspace=True)
    rows = [(part.numbers[place], row) for place, row in enumerate(read) if row]
    if header:
        return RawTable(next(csv.reader([header], skipinitialspace=True)), rows)
    return RawTable(rows[0][1], rows[1:]) if num_header and rows else RawTable([], rows)
