"""The grid that ruled lines make: which of its neighbouring places have a rule between them."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from qa_service.retrieval.formats.pdf_boxes import Box


def column_of(columns: list[float], box: Box) -> int:
    return _index(columns, (box.left + box.right) / 2)


def _index(places: list[float], place: float) -> int:
    return max(0, min(len(places) - 2, bisect_right(places, place) - 1))


class Walls:
    """Which of a grid's neighbouring places have a rule between them.

    Attributes:
        columns: Where vertical rules stand, from left to right.
        rows: Where horizontal rules stand, from top to bottom.
    """

    def __init__(self, columns: list[float], rows: list[float], rules: list[Box]) -> None:
        self.columns, self.rows = columns, rows
        self._right, self._below = set[tuple[int, int]](), set[tuple[int, int]]()
        for rule in rules:
            if rule.width:
                above = nearest(rows, rule.top) - 1
                crossed = middles_in(columns, rule.left, rule.right)
                self._below.update((above, column) for column in crossed)
            else:
                before = nearest(columns, rule.left) - 1
                crossed = middles_in(rows, rule.top, rule.bottom)
                self._right.update((row, before) for row in crossed)

    def place(self, box: Box) -> tuple[int, int]:
        """The upper left place of the cell that a box stands in."""
        return self.corner(_index(self.rows, box.middle), column_of(self.columns, box))

    def corner(self, row: int, column: int) -> tuple[int, int]:
        """The upper left place of the cell that a place belongs to."""
        while row > 0 and (row - 1, column) not in self._below:
            row -= 1
        while column > 0 and (row, column - 1) not in self._right:
            column -= 1
        while row > 0 and (row - 1, column) not in self._below:
            row -= 1
        return row, column

    def span(self, row: int, column: int) -> tuple[int, int]:
        """Over how many columns and rows a cell goes from its upper left place."""
        right, below = column, row
        while right < len(self.columns) - 2 and (row, right) not in self._right:
            right += 1
        while below < len(self.rows) - 2 and (below, column) not in self._below:
            below += 1
        return right - column + 1, below - row + 1


def nearest(places: list[float], place: float) -> int:
    return min(range(len(places)), key=lambda number: abs(places[number] - place))


def middles_in(places: list[float], start: float, end: float) -> list[int]:
    """The numbers of the gaps between places whose middle lies here."""
    gaps = enumerate(pairwise(places))
    return [number for number, (one, after) in gaps if start < (one + after) / 2 < end]
