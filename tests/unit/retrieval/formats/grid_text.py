"""Grids for tests, and their text."""

from collections.abc import Sequence

from qa_service.retrieval.documents import BlockList, Parsed
from qa_service.retrieval.formats.cells import Cell, Grid, Row
from qa_service.retrieval.formats.grids import add_grid
from qa_service.retrieval.layout import lay_out


def written(rows: Sequence[Row | list[str]], *, has_head: bool = False) -> list[str]:
    """The lines of a grid's text that are not empty."""
    made = [row if isinstance(row, Row) else Row(n, row) for n, row in enumerate(rows, 1)]
    add_grid(out := BlockList(), made, has_head=has_head)
    return [line for line in lay_out(Parsed(out.blocks), "x").text.splitlines() if line]


def merged(*rows: Sequence[Cell | str]) -> list[Row]:
    grid = Grid()
    for row in rows:
        grid.add_row(Cell(cell) if isinstance(cell, str) else cell for cell in row)
    return grid.rows
