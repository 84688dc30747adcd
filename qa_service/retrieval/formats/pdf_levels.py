"""Rows between rules whose lines are rows themselves: columns are ruled, rows are not.

Either each line of the first cell is a label, with short values level with it; or a cell has a time
or an amount in each line, and the others a text for each: the label is that of all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from qa_service.retrieval.formats.cells import Cell, Grid
from qa_service.retrieval.formats.pdf_columns import cell_of
from qa_service.retrieval.formats.pdf_lines import Piece

_MIN_LABELS = 3
_VALUE_WORDS = 3
_LEVEL = 0.3
"""Of a font's size; lines of a row differ less in height."""
_VALUE = re.compile(
    r"[$€£]\s?\d[\d,.]*|\d{1,2}(?:[:.]\d\d)?\s?[ap]\.?m\.?"
    r"|\d[\d,]*[:.]\d\d(?:\s?[-–]\s?\d{1,2}[:.]\d\d)?",  # noqa: RUF001, dash
    re.IGNORECASE,
)
"""A time or an amount."""

Text = list[list[Piece]]
"""The lines of a cell."""


class RuledCell(NamedTuple):
    """A cell, and over how many columns and rows it goes."""

    text: Text
    columns: int = 1
    rows: int = 1


def add_row(grid: Grid, cells: Sequence[RuledCell]) -> None:
    """Adds a row between rules, or a row for each of its lines."""
    if levels := _of_labels([cell.text for cell in cells if cell.rows == 1]):
        for level in levels:
            grid.add_row([_line_of(cell, level) for cell in cells])
    elif levels := _of_values(cells):
        label = cell_of(*cells[0][:2], len(levels)) if _is_of_all(cells[0].text, levels) else None
        grid.split_next(len(levels))
        for number, level in enumerate(levels):
            first = [label] if label and number == 0 else []
            grid.add_row([*first, *(_line_of(cell, level) for cell in cells[bool(label) :])])
    else:
        grid.add_row([cell_of(*cell) for cell in cells])


def _line_of(cell: RuledCell, level: float) -> Cell:
    return cell_of([line for line in cell.text if _is_level(line, level)], cell.columns)


def _of_labels(cells: list[Text]) -> list[float]:
    """The heights of a row's lines, if each has a label."""
    label, *values = [text for text in cells if text] or [[]]
    levels = [line[0].box.middle for line in label]
    if not values or len(levels) < _MIN_LABELS:
        return []
    for text in values:
        are_short = all(len(one.words) <= _VALUE_WORDS for line in text for one in line)
        are_level = all(any(_is_level(line, level) for level in levels) for line in text)
        if not (are_short and are_level and 2 * len(text) > len(levels)):
            return []
    return levels


def _of_values(cells: Sequence[RuledCell]) -> list[float]:
    """The heights of a row's lines, if most have a time or an amount, and others are level."""
    values = next((cell.text for cell in cells if _are_values(cell.text)), [])
    levels = [line[0].box.middle for line in values]
    if len(levels) < 2 or any(cell.rows > 1 for cell in cells):
        return []
    others = [cell.text for cell in cells[_is_of_all(cells[0].text, levels) :] if cell.text]
    are_level = all(
        len(text) == len(levels) and all(map(_is_level, text, levels)) for text in others
    )
    return levels if are_level and len(others) > 1 else []


def _is_of_all(label: Text, levels: list[float]) -> bool:
    """Whether a label is that of all lines; two lines may be one label ("Fri", "5th")."""
    return len(label) < max(len(levels), _MIN_LABELS) and not _are_values(label)


def _are_values(text: Text) -> bool:
    lines = [" ".join(piece.text for piece in line) for line in text]
    return 2 * sum(_VALUE.fullmatch(line) is not None for line in lines) > len(lines)


def _is_level(line: list[Piece], level: float) -> bool:
    return abs(line[0].box.middle - level) < _LEVEL * line[0].size
