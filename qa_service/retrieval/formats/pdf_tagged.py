"""Tables that the file names: their rows and cells are known, and where their texts stand.

The file's word counts for texts that stand as cells do. The words of other tables are left for the
readers of lines and rules: some programs call a page's frame a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count, pairwise
from typing import NamedTuple

from qa_service.retrieval.formats.cells import Grid
from qa_service.retrieval.formats.pdf_boxes import Box, around
from qa_service.retrieval.formats.pdf_lines import Piece, joined, lines_of, pieces_of
from qa_service.retrieval.formats.pdf_page import Page, Turned, Word
from qa_service.retrieval.formats.pdf_ruled import (
    Text,
    are_no_cells,
    as_most,
    holds,
    ruled_tables,
)
from qa_service.retrieval.formats.pdf_tables import Columns, Table, cell_of, columns_in, span_of

_NEAR = 2.0
"""Points; columns may overlap by so much, and rows may begin so much above the one before."""
_STRANGE = 0.1
"""Of the rows or words; if more stand elsewhere than in a table, it is none."""


class _Cell(NamedTuple):
    """A cell; `box` is of its words."""

    text: Text
    box: Box | None
    columns: int
    rows: int


class _Row(NamedTuple):
    cells: list[_Cell]

    @property
    def boxes(self) -> list[Box]:
        return [cell.box for cell in self.cells if cell.box]


def tables_on(page: Page, before: Sequence[Table] = ()) -> tuple[list[Table], list[list[Word]]]:
    """The tables of a page, and of all words, and of those turned, what is in none.

    Rules say more than tags do: which cells are one.

    Args:
        before: The tables of the page before, with the last of which a single row may go on.
    """
    ruled, outside = ruled_tables(page, before)
    free = {id(word) for part in outside for word in part}
    tables, taken = _tagged(page, free, before) if page.tagged else ([], set())
    if not tables:
        return ruled, outside
    words = [word for word in page.words if word.cell not in taken]
    turned = [
        Turned([word for word in part.words if word.cell not in taken], part.quarters)
        for part in page.turned
    ]
    ruled, outside = ruled_tables(Page(words, turned, page.rules, []), before)
    return [*tables, *ruled], outside


def _tagged(page: Page, free: set[int], before: Sequence[Table]) -> tuple[list[Table], set[int]]:
    """The tables that the file names and rules do not show, and the numbers of their cells.

    Args:
        free: The words that are in no ruled table.
    """
    words = dict[int, list[Word]]()
    for word in chain(page.words, *map(_upright, page.turned)):
        words.setdefault(word.cell, []).append(word)
    tables, taken, numbers = list[Table](), set[int](), count()
    for tagged in page.tagged:
        its = dict[int, list[Word]]()
        rows = list[_Row]()
        for row in tagged:
            cells = list[_Cell]()
            for cell in row:
                number = next(numbers)
                within = its[number] = words.get(number, [])
                box = around([word.box for word in within]) if within else None
                cells.append(_Cell(lines_of(pieces_of(within)), box, cell.columns, cell.rows))
            rows.append(_Row(cells))
        inside = list(chain.from_iterable(its.values()))
        num_free = sum(id(word) in free for word in inside)
        if num_free <= _STRANGE * len(inside):
            continue
        others = [word for word in page.words if word.cell not in its]
        if table := _table(rows, others, before):
            tables.append(table)
            taken.update(its)
    return tables, taken


def _upright(part: Turned) -> list[Word]:
    """The texts of cells in another direction, each as a word that stands as most words do."""
    cells = dict[int, list[Word]]()
    for word in part.words:
        if word.cell >= 0:
            cells.setdefault(word.cell, []).append(word)
    found = list[Word]()
    for number, its in cells.items():
        text = joined(piece.text for line in lines_of(pieces_of(its)) for piece in line)
        box = around([as_most(word.box, part.quarters) for word in its])
        is_bold = all(word.is_bold for word in its)
        found.append(Word(text, box, its[0].order, is_bold, cell=number))
    return found


def _table(rows: list[_Row], others: list[Word], before: Sequence[Table]) -> Table | None:
    """A table of rows; None if their texts do not stand as cells do.

    Args:
        others: The page's words that are in none of the cells.
    """
    filled = [row for row in rows if row.boxes]
    if not filled or 2 * sum(len(row.boxes) > 1 for row in filled) < len(filled):
        return None
    box = around([one for row in filled for one in row.boxes])
    num_words = sum(len(piece.words) for row in rows for cell in row.cells
                    for line in cell.text for piece in line)  # fmt: skip
    if sum(holds(box, word.box) for word in others) > _STRANGE * num_words:
        return None
    if not _are_in_order(filled):
        return None
    if not (places := _even(rows) or _placed(rows)):
        return None
    texts = {
        (number, column): text
        for number, row in enumerate(places)
        for column, (text, _, _) in enumerate(row)
        if text
    }
    grid = Grid()
    for cells in places:
        grid.add_row(cell_of(*cell) for cell in cells)
    width = len(grid.rows[0].cells)
    goes_on = any(
        table.is_tagged and len(table.grid.rows[0].cells) == width for table in before[-1:]
    )
    if len(filled) < 2 - goes_on or are_no_cells(texts):
        return None
    return Table(box, grid, is_tagged=True)


def _are_in_order(rows: list[_Row]) -> bool:
    """Whether cells follow one another to the right, and rows downwards; all but a few."""
    num_odd = 0
    for above, row in zip([None, *rows], rows, strict=False):
        lefts, top = [box.left for box in row.boxes], min(box.top for box in row.boxes)
        is_odd = lefts != sorted(lefts)
        is_odd |= above is not None and top < min(box.top for box in above.boxes) - _NEAR
        num_odd += is_odd
    return num_odd <= _STRANGE * len(rows)


_Cells = list[tuple[Text, int, int]]
"""A row as `add_row` takes it."""


def _even(rows: list[_Row]) -> list[_Cells]:
    """Rows as the file has them; [] if not all end at one column, or columns overlap."""
    ends, sides = set[int](), dict[int, list[Box]]()
    reaching: dict[int, int] = {}
    for row in rows:
        column, after = 0, {place: number - 1 for place, number in reaching.items() if number > 1}
        for cell in row.cells:
            while column in reaching:
                column += 1
            if cell.box and cell.columns == 1:
                sides.setdefault(column, []).append(cell.box)
            if cell.rows > 1:
                reached = range(column, column + cell.columns)
                after.update(dict.fromkeys(reached, cell.rows - 1))
            column += cell.columns
        while column in reaching:
            column += 1
        ends.add(column)
        reaching = after
    if len(ends) > 1 or not _apart(sides):
        return []
    return [[(cell.text, cell.columns, cell.rows) for cell in row.cells] for row in rows]


def _placed(rows: list[_Row]) -> list[_Cells]:
    """Rows whose cells are put into columns by where they stand; [] if two are in one place."""
    columns = _columns(rows)
    found, reaching = list[_Cells](), dict[int, int]()
    for row in rows:
        starts = _starts(row, columns)
        column, cells = 0, _Cells()
        after = {place: number - 1 for place, number in reaching.items() if number > 1}
        while column < len(columns):
            if column in reaching:
                column += 1
                continue
            cell, end = starts.pop(column, (_EMPTY, column + 1))
            cells.append((cell.text, end - column, cell.rows))
            if cell.rows > 1:
                after.update(dict.fromkeys(range(column, end), cell.rows - 1))
            column = end
        if starts or len(row.boxes) > sum(bool(text) for text, _, _ in cells):
            return []
        found.append(cells)
        reaching = after
    return found


def _columns(rows: list[_Row]) -> Columns:
    """From where to where each column goes: as the rows with most cells have it, if they do."""
    most = max(len(row.cells) for row in rows)
    sides = dict[int, list[Box]]()
    for row in rows:
        for number, cell in enumerate(row.cells if len(row.cells) == most else ()):
            if cell.box:
                sides.setdefault(number, []).append(cell.box)
    boxes = _apart(sides)
    if not boxes:
        return columns_in([Piece([], box, 0.0) for box in row.boxes] for row in rows)
    columns = [(box.left, box.right) for box in boxes]
    for box in chain.from_iterable(row.boxes for row in rows):
        if not any(left < box.right and box.left < right for left, right in columns):
            columns.append((box.left, box.right))
    return sorted(columns)


def _apart(columns: dict[int, list[Box]]) -> list[Box]:
    """A box around each column's texts, from left to right; [] if columns overlap."""
    boxes = [around(its) for _, its in sorted(columns.items())]
    overlap = any(one.right > after.left + _NEAR for one, after in pairwise(boxes))
    return [] if overlap else boxes


_EMPTY = _Cell([], None, 1, 1)


def _starts(row: _Row, columns: Columns) -> dict[int, tuple[_Cell, int]]:
    """A row's cells by the columns that they begin in, each with the column after it.

    A cell over several columns is over those whose middle is nearest to its text's.
    """
    filled = [cell for cell in row.cells if cell.box]
    spans = [span_of(columns, box) for box in row.boxes]
    nexts = [*(first for first, _ in spans), len(columns)][1:]
    found, start = dict[int, tuple[_Cell, int]](), 0
    for cell, box, (left, right), after in zip(filled, row.boxes, spans, nexts, strict=True):
        middle = (box.left + box.right) / 2
        wide = [
            (abs((columns[first][0] + columns[first + cell.columns - 1][1]) / 2 - middle), first)
            for first in range(max(start, right - cell.columns + 1), left + 1)
            if first + cell.columns <= after
        ]
        _, first = min(wide, default=(0.0, left))
        start = max(right + 1, first + cell.columns if wide else 0)
        found[first] = cell, start
    return found
