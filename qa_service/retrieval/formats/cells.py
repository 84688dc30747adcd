"""The grid of a table's cells, as its reader finds them, with merged cells filled in."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence, Set
from typing import NamedTuple

MAX_COLUMNS = 1000
"""Columns of a table that are read; the cells to the right are left out."""
_SPACE_POINTS = 3.0
ERROR = re.compile(r"#(?:N/A|REF!|VALUE!|DIV/0!|NAME\?|NULL!|NUM!)")
"""What a sheet shows in place of a value that it cannot calculate."""


def is_of_heads(fill: str, first: Collection[str]) -> bool:
    """Whether a cell's colour sets it off as heads are.

    Where all cells of the first row have a colour, other ones are those of bands.

    Args:
        fill: The colour; "" if it is the paper's.
        first: Those of the first row.
    """
    return bool(fill) and (fill in first or "" in first or not first)


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        columns, rows: How many it goes over.
        is_strong: Whether it is set off as heads are: bold, or a header's cell.
        goes_on: Whether it is a part of the cell above it.
        indent: Where its text begins, in points.
    """

    text: str
    columns: int = 1
    rows: int = 1
    is_strong: bool = False
    goes_on: bool = False
    indent: float = 0.0


class Row(NamedTuple):
    """A row with merged cells filled in: each of its places has their text.

    Attributes:
        line: Its line in the file, or its number in its sheet, from 1; 0 if it has none.
        from_left: The columns whose text is of a merged cell that begins to the left.
        from_above: The columns whose text is of a merged cell that begins above.
        strong: The columns that are set off as heads are.
        is_head: Whether the format says that it is a head.
        heads: The columns of the tables that the format says to begin there, if it says them.
        indent: Where the text of its first cell begins, in points.
    """

    line: int
    cells: list[str]
    from_left: Set[int] = frozenset()
    from_above: Set[int] = frozenset()
    strong: Set[int] = frozenset()
    is_head: bool = False
    indent: float = 0.0
    heads: Sequence[range] = ()

    def columns(self) -> list[int]:
        """The columns with a text, a merged cell's first alone."""
        return [n for n, cell in enumerate(self.cells) if cell and n not in self.from_left]

    def has_own(self) -> bool:
        """Whether it has more than what reaches into it from above."""
        return bool(set(self.columns()) - self.from_above)

    def at(self, column: int) -> str:
        return self.cells[column] if column < len(self.cells) else ""


def indent_of(text: str = "") -> float:
    """How far spaces before a text indent it, in points."""
    return _SPACE_POINTS * (len(text) - len(text.lstrip()))


class Grid:
    """Rows of cells, of which merged ones are filled in."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._reaching: dict[int, int] = {}
        """Of columns into which a cell above reaches: into how many further rows."""

    def split_next(self, count: int) -> None:
        """Splits the row that comes next into several; cells that reach into it reach into all."""
        self._reaching = {column: rows + count - 1 for column, rows in self._reaching.items()}

    def add_row(self, cells: Iterable[Cell], line: int = 0, *, is_head: bool = False) -> None:
        """Adds a row: its cells without the places into which cells of rows above reach."""
        above = self.rows[-1] if self.rows else Row(0, [])
        texts, left, up, strong = list[str](), set[int](), set[int](), set[int]()
        reaching = {column: rows - 1 for column, rows in self._reaching.items() if rows > 1}

        def take_from_above() -> None:
            while (column := len(texts)) in self._reaching:
                take(column)

        def take(column: int) -> None:
            texts.append(above.at(column))
            up.add(column)
            left.update({column} & above.from_left)
            strong.update({column} & above.strong)

        cells = list(cells)
        for cell in cells:
            take_from_above()
            for place in range(min(cell.columns, MAX_COLUMNS - len(texts))):
                column = len(texts)
                if cell.rows > 1:
                    reaching[column] = cell.rows - 1
                if cell.goes_on:
                    take(column)
                    continue
                texts.append(cell.text)
                if place:
                    left.add(column)
                if cell.is_strong:
                    strong.add(column)
        take_from_above()
        self._reaching = reaching
        indent = cells[0].indent if cells else 0.0
        self.rows.append(Row(line, texts, left, up, strong, is_head, indent))
