"""The columns of a table without rules: where they go, and which of them a piece stands in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from qa_service.retrieval.formats.cells import Cell, Grid
from qa_service.retrieval.formats.pdf_boxes import Box
from qa_service.retrieval.formats.pdf_lines import NUMBER, Piece, cut_at, joined
from qa_service.retrieval.formats.pdf_page import HYPHEN

Columns = list[tuple[float, float]]
"""From where to where each column of a table goes."""
HEAD_GAP = 0.4
"""Of a font's size; columns' names may be no farther apart."""
_SAME_MIDDLE = 3.0
"""Points; the middles of centred texts differ by less."""
_NAME = re.compile(r"[A-Za-z]|\b(?:19|20)\d\d\b")
"""In a cell that may name a column, if it is bold: a total may be bold too."""


def columns_in(lines: Iterable[list[Piece]]) -> Columns:
    """From where to where each column goes, as the lines with most pieces have it."""
    columns = list[tuple[float, float]]()
    for line in sorted(lines, key=len, reverse=True):
        for piece in line:
            left, right = piece.box.left, piece.box.right
            met = [column for column in columns if column[0] < right and left < column[1]]
            if len(met) < 2:
                columns = [column for column in columns if column not in met]
                met.append((left, right))
                columns.append((min(met)[0], max(right for _, right in met)))
    return sorted(columns)


def span_of(columns: Columns, box: Box) -> tuple[int, int]:
    """The first and the last column that a piece is in."""
    met = [n for n, (left, right) in enumerate(columns) if left < box.right and box.left < right]
    return (met[0], met[-1]) if met else (0, 0)


def stand_in(lines: Iterable[list[Piece]], columns: Sequence[tuple[float, float]]) -> bool:
    """Whether each piece of lines is in a column of its own."""
    met = [
        [n for piece in line for n, (left, right) in enumerate(columns)
         if left < piece.box.right and piece.box.left < right]
        for line in lines
    ]  # fmt: skip
    return all(len(line) == len(ns) == len(set(ns)) for line, ns in zip(lines, met, strict=True))


def fitted(line: list[Piece], columns: Columns) -> list[Piece]:
    """A line whose pieces over several columns are cut, if their parts stand in one each."""
    found = list[Piece]()
    for piece in line:
        parts = cut_at(piece, HEAD_GAP)
        spans = [span_of(columns, part.box) for part in parts]
        is_apart = all(one[1] < after[0] for one, after in pairwise(spans))
        found += parts if is_apart and all(first == last for first, last in spans) else [piece]
    return found


def gap(above: list[Piece], below: list[Piece]) -> float:
    """How far two lines are apart, of their size."""
    return (below[0].box.middle - above[0].box.middle) / max(below[0].size, above[0].size, 1)


def is_value(piece: Piece) -> bool:
    return bool(NUMBER.fullmatch(piece.text)) and not _NAME.search(piece.text)


def cell_of(lines: Iterable[list[Piece]], columns: int = 1, rows: int = 1) -> Cell:
    pieces = [piece for line in lines for piece in line]
    text = joined(piece.text for piece in pieces).replace(f"{HYPHEN} ", "")
    is_strong = _NAME.search(text) is not None and all(piece.is_bold for piece in pieces)
    indent = pieces[0].box.left if pieces else 0.0
    return Cell(text, columns, rows, is_strong, indent=indent)


def level_centred(grid: Grid, labels: Sequence[Sequence[list[Piece]]]) -> None:
    """Takes the indents from rows whose labels stand in the middle of their column.

    Args:
        labels: The lines of each.
    """
    lines = [line for label in labels for line in label]
    lefts = [line[0].box.left for line in lines]
    middles = [(line[0].box.left + line[-1].box.right) / 2 for line in lines]
    if lines and max(middles) - min(middles) < _SAME_MIDDLE < max(lefts) - min(lefts):
        grid.rows[:] = [row._replace(indent=0.0) for row in grid.rows]
