"""Tables that the file names: their rows and cells are known, and where their texts stand.

The file's word counts for texts that stand as cells do. The words of other tables are left for the
readers of lines and rules: some programs call a page's frame a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from qa_service.retrieval.formats.cells import MAX_COLUMNS, Grid
from qa_service.retrieval.formats.pdf_boxes import Box, around
from qa_service.retrieval.formats.pdf_columns import (
    Columns,
    cell_of,
    columns_in,
    level_centred,
    span_of,
)
from qa_service.retrieval.formats.pdf_levels import Text
from qa_service.retrieval.formats.pdf_lines import (
    Piece,
    lines_of,
    pieces_of,
)
from qa_service.retrieval.formats.pdf_page import Page, Turned, Word
from qa_service.retrieval.formats.pdf_ruled import (
    are_no_cells,
    as_most,
    holds,
    ruled_tables,
    upright,
)
from qa_service.retrieval.formats.pdf_tables import Table
from qa_service.retrieval.formats.pdf_tags import Tag, TaggedCell

_NEAR = 2.0
"""Points; columns may overlap by so much, and rows may begin so much above the one before."""
_UNTAGGED = 0.05
"""Of a page's words, which tags leave out between others, at most."""
_CUT, _FEW_CUT = 0.05, 1
"""Of a page's tags, how many may go on with the one before; and how many always may."""
_MANY_WORDS = 100
"""In one tag; if it has half of a page's, the page is not tagged by paragraphs."""
_MAX_ROWS = 1000
"""Of a table on one page."""
_STRANGE = 0.1
"""Of the rows or words; if more stand elsewhere than in a table, it is none."""


class _Cell(NamedTuple):
    """A cell; `box` is of its words."""

    text: Text
    box: Box | None
    columns: int
    rows: int


_EMPTY = _Cell([], None, 1, 1)
_Row = list[_Cell]


def _boxes(row: _Row) -> list[Box]:
    return [cell.box for cell in row if cell.box]


def tables_on(page: Page, before: Sequence[Table] = ()) -> tuple[list[Table], list[list[Word]]]:
    """The tables of a page, and of all words, and of those turned, what is in none.

    Rules say more than tags do: which cells are one.

    Args:
        before: The tables of the page before, with the last of which a single row may go on.
    """
    ruled, outside = ruled_tables(page, before)
    if not any(word.tag for word in page.words):
        return ruled, outside
    free = {id(word) for part in outside for word in part}
    tables, taken = _tagged(page, free, before) if page.tagged else ([], set())
    if tables:
        words = _outside(page.words, taken)
        turned = [Turned(_outside(part.words, taken), part.quarters) for part in page.turned]
        ruled, outside = ruled_tables(Page(words, turned, page.rules, []), before)
    in_cells = {tag for table in page.tagged for row in table for cell in row for tag in cell.tags}
    words = list(chain.from_iterable(outside))
    for word in words:
        if word.tag and word.tag.number in in_cells:
            word.tag = None  # of a table that is none
    if not _are_trusted(outside[0]):
        for word in words:
            word.tag = None
    return [*tables, *ruled], outside


def _are_trusted(words: list[Word]) -> bool:
    """Whether tags say of almost all words which paragraph they are of; some programs tag lines."""
    by_tag = dict[int, list[Word]]()
    for word in words:
        if word.tag:
            by_tag.setdefault(word.tag.number, []).append(word)
    if not by_tag:
        return False
    whole = around([word.box for its in by_tag.values() for word in its])
    others = [word for word in words if not word.tag and whole.top < word.box.middle < whole.bottom]
    tagged = [its for _, its in sorted(by_tag.items())]
    num_cut = sum(
        after[0].text[:1].islower() and one[-1].text[-1:].isalnum()
        for one, after in pairwise(tagged)
    )
    largest = max(map(len, tagged))
    return (
        len(others) <= _UNTAGGED * len(words)
        and num_cut <= max(_FEW_CUT, _CUT * len(tagged))
        and (largest < _MANY_WORDS or 2 * largest <= len(words))
    )


def _outside(words: list[Word], tags: set[int]) -> list[Word]:
    return [word for word in words if not word.tag or word.tag.number not in tags]


def _tagged(page: Page, free: set[int], before: Sequence[Table]) -> tuple[list[Table], set[int]]:
    """The tables that the file names and rules do not show, and the numbers of their tags.

    Args:
        free: The words that are in no ruled table.
    """
    by_tag = dict[int, list[Word]]()
    for word in chain(page.words, *map(_upright, page.turned)):
        if word.tag:
            by_tag.setdefault(word.tag.number, []).append(word)
    tables, taken, full = list[Table](), set[int](), list[Box]()
    for tagged in page.tagged:
        tags = {tag for row in tagged for cell in row for tag in cell.tags}
        inside = [word for tag in tags for word in by_tag.get(tag, ())]
        if sum(id(word) in free for word in inside) <= _STRANGE * len(inside):
            continue
        parts = chain.from_iterable(_paragraphs(row, by_tag) for row in tagged)
        rows = [[_cell(cell, by_tag) for cell in row] for row in parts]
        if all(cell.box for row in rows for cell in row):
            full.append(around([box for row in rows for box in _boxes(row)]))
        if table := _table(rows, _outside(page.words, tags), before):
            tables.append(table)
            taken |= tags
    full.sort(key=lambda box: box.top)
    if any(after.top < one.bottom - _NEAR for one, after in pairwise(full)):
        return [], set()  # Excel tags no empty cells, and what stands at their sides one by one
    return tables, taken


def _paragraphs(row: list[TaggedCell], by_tag: dict[int, list[Word]]) -> Iterator[list[TaggedCell]]:
    """A row, or of one that has a text in one cell, a title's and its notes', one for each."""
    texts = [[tag for tag in cell.tags if tag in by_tag] for cell in row]
    if sum(map(bool, texts)) != 1:
        yield row
        return
    for tag in chain.from_iterable(texts):
        yield [
            cell._replace(tags=range(tag, tag + 1)) if tag in cell.tags else cell for cell in row
        ]


def _cell(cell: TaggedCell, by_tag: dict[int, list[Word]]) -> _Cell:
    words = [word for tag in cell.tags for word in by_tag.get(tag, ())]
    box = around([word.box for word in words]) if words else None
    return _Cell(lines_of(pieces_of(words)), box, cell.columns, cell.rows)


def _upright(part: Turned) -> list[Word]:
    """Tagged texts in another direction, each as a word that stands as most words do."""
    by_tag = dict[Tag, list[tuple[Word, Box]]]()
    for word in part.words:
        if word.tag:
            at = as_most(word.box, part.quarters)
            by_tag.setdefault(word.tag, []).append((word, at))
    return list(map(upright, by_tag.values()))


def _table(rows: list[_Row], others: list[Word], before: Sequence[Table]) -> Table | None:
    """A table of rows; None if their texts do not stand as cells do.

    Args:
        others: The page's words that are in none of the cells.
    """
    filled = [row for row in rows if _boxes(row)]
    if max(map(len, rows), default=0) > MAX_COLUMNS or len(rows) > _MAX_ROWS:
        return None
    if not filled or 2 * sum(len(_boxes(row)) > 1 for row in filled) < len(filled):
        return None
    box = around([one for row in filled for one in _boxes(row)])
    num_words = sum(len(piece.words) for row in rows for cell in row
                    for line in cell.text for piece in line)  # fmt: skip
    if sum(holds(box, word.box) for word in others) > _STRANGE * num_words:
        return None
    if not _are_in_order(filled) or not (places := _even(rows) or _placed(rows)):
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
    level_centred(grid, [text for (_, column), text in texts.items() if not column])
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
        lefts, top = [box.left for box in _boxes(row)], min(box.top for box in _boxes(row))
        is_odd = lefts != sorted(lefts)
        is_odd |= above is not None and top < min(box.top for box in _boxes(above)) - _NEAR
        num_odd += is_odd
    return num_odd <= _STRANGE * len(rows)


_Cells = list[tuple[Text, int, int]]
"""The text of each, and how many columns and rows it goes over."""


def _even(rows: list[_Row]) -> list[_Cells]:
    """Rows as the file has them; [] if not all end at one column, or columns overlap."""
    ends, sides = set[int](), dict[int, list[Box]]()
    reaching: dict[int, int] = {}
    for row in rows:
        column, after = 0, {place: number - 1 for place, number in reaching.items() if number > 1}
        for cell in row:
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
    if len(ends) > 1 or max(ends) > MAX_COLUMNS or not _apart(sides):
        return []
    return [[(cell.text, cell.columns, cell.rows) for cell in row] for row in rows]


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
        if starts or len(_boxes(row)) > sum(bool(text) for text, _, _ in cells):
            return []
        found.append(cells)
        reaching = after
    return found


def _columns(rows: list[_Row]) -> Columns:
    """From where to where each column goes: as the rows with most cells have it, if they do."""
    most = max(len(row) for row in rows)
    sides = dict[int, list[Box]]()
    for row in rows:
        for number, cell in enumerate(row if len(row) == most else ()):
            if cell.box:
                sides.setdefault(number, []).append(cell.box)
    boxes = _apart(sides)
    if not boxes:
        return columns_in([Piece([], box, 0.0) for box in _boxes(row)] for row in rows)
    columns = [(box.left, box.right) for box in boxes]
    for box in chain.from_iterable(_boxes(row) for row in rows):
        if not any(left < box.right and box.left < right for left, right in columns):
            columns.append((box.left, box.right))
    return sorted(columns)


def _apart(columns: dict[int, list[Box]]) -> list[Box]:
    """A box around each column's texts, from left to right; [] if columns overlap."""
    boxes = [around(its) for _, its in sorted(columns.items())]
    overlap = any(one.right > after.left + _NEAR for one, after in pairwise(boxes))
    return [] if overlap else boxes


def _starts(row: _Row, columns: Columns) -> dict[int, tuple[_Cell, int]]:
    """A row's cells by the columns that they begin in, each with the column after it.

    A cell over several columns is over those whose middle is nearest to its text's.
    """
    filled = [cell for cell in row if cell.box]
    spans = [span_of(columns, box) for box in _boxes(row)]
    nexts = [*(first for first, _ in spans), len(columns)][1:]
    found, start = dict[int, tuple[_Cell, int]](), 0
    for cell, box, (left, right), after in zip(filled, _boxes(row), spans, nexts, strict=True):
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
