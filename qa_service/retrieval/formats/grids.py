"""Tables of all formats: a grid of cells becomes titles, columns' names and rows.

A reader makes a `Grid` of a table, or of a whole sheet, and `add_grid` finds in it, as a person
does, by what cells hold and how they are set off:

- the regions between empty rows; one without a head goes on with the table before, and a head above
  an empty row names the rows below it,
- titles: rows of one cell, of a few at the left, or of keys, above the head; notes below the table,
- the head (`table_heads`); the names of several rows are joined ("Q1 Sales"),
- without a head, keys and their values (`Key: value`),
- a section's row: one cell over the rows that it names; it goes with each passage of them,
- labels that belong to rows below: of groups, and those that others are indented below ("Aged 65
  and over, men").
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf

from qa_service.retrieval.documents import BlockList
from qa_service.retrieval.formats.cells import Row
from qa_service.retrieval.formats.table_heads import (
    FEW,
    MAX_HEAD_ROWS,
    MAX_LABEL_CHARS,
    MIN_HEADS,
    SAMPLE_ROWS,
    VALUE,
    columns_of,
    is_strong,
    may_be_head,
    num_head,
    reach_of,
    value_columns,
)

_KEYED = re.compile(r"[^\W\d][^:]{1,30}:\s+\S")
_LONG_WORD = re.compile(r"[^\W\d_]{4}")
_MAX_CAPTION_CHARS = 200
"""Longer titles are paragraphs: a caption goes with each passage of the rows."""
_SAME_INDENT = 2.0
"""In points; labels that begin no further apart are at one level."""
_MAX_INDENTS = 5
"""Levels of labels in a column; where there are more, it is centred or aligned at the right."""
_MAX_SIDE_BY_SIDE = 8
_TOTAL = re.compile(r"(?:sub|grand )?-?total|summe|gesamt|insgesamt", re.IGNORECASE)
"""A label that belongs to all rows above it, however it is indented."""


def add_grid(
    out: BlockList, rows: Sequence[Row], *, has_head: bool = False, above: Sequence[_Table] = ()
) -> Sequence[_Table]:
    """Adds the tables of a grid.

    Args:
        has_head: Whether there is one table whose first row of several cells names the columns,
            whatever it holds; empty rows are left out.
        above: The last tables of the page before, with which the grid may go on.

    Returns:
        The last tables of the grid.
    """
    rows = [row for row in rows if not row.columns() or set(row.columns()) - row.from_above]
    rows = [row for row in rows if any(row.cells)] if has_head else rows
    open_tables = above
    for region in _regions(rows):
        made = list[_Table]()
        for part in [region] if has_head else _tables(region):
            titles, rest = _without_titles(part, has_head=has_head)
            words = ["; ".join(_paired(title)) for title in titles]
            has_caption = bool(rest and words) and len(words[-1]) <= _MAX_CAPTION_CHARS
            caption = (words[-1], titles[-1].line) if has_caption else ()
            for title, text in zip(titles[: -1 if has_caption else None], words, strict=False):
                out.paragraph(text, title.line)
            if not rest:
                made += [table for table in open_tables if table.is_wide]
            elif table := next((one for one in open_tables if one.goes_on_with(rest)), None):
                table.write(out, rest, *caption, goes_on=True)
                made.append(table)
            else:
                count = num_head(rest, has_head=has_head)
                made.append(_Table(rest[:count], rest[count:], has_sections=not has_head))
                made[-1].write(out, rest[count:], *caption)
        open_tables = [table for table in made if table.is_named] or open_tables
    return open_tables


def _regions(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows between empty ones; a head with the rows that it names below an empty one."""
    groups = itertools.groupby(rows, key=lambda row: any(row.cells))
    held = list[Row]()
    for region in (list(group) for has_words, group in groups if has_words):
        if held and not _heads(held, region):
            yield held
            held = []
        held += region
        if len(held) > MAX_HEAD_ROWS:
            yield held
            held = []
    if held:
        yield held


def _tables(region: list[Row]) -> Iterator[list[Row]]:
    """A region's tables: those side by side, and those with a head in another's rows.

    A table at the right has a column of words first, and other rows than the one at its left or the
    same names; a column of words without a name is of notes.
    """
    for rows in _side_by_side(region):
        heads = [0, *_further_heads(rows), len(rows)]
        yield from (rows[start:end] for start, end in itertools.pairwise(heads))


def _side_by_side(rows: list[Row]) -> Iterator[list[Row]]:
    for _ in range(_MAX_SIDE_BY_SIDE):
        if not (gap := _gap(rows)):
            break
        left = (_part(row, 0, gap) for row in rows)
        yield [row for row in left if any(row.cells)]
        right = (_part(row, gap, None) for row in rows)
        rows = [row for row in right if any(row.cells)]
    yield rows


def _part(row: Row, start: int, end: int | None) -> Row:
    """A row's cells of some columns, at their places."""
    kept = set(range(start, len(row.cells) if end is None else end))
    cells = [cell if column in kept else "" for column, cell in enumerate(row.cells)]
    return row._replace(
        cells=cells,
        from_left=row.from_left & kept,
        from_above=row.from_above & kept,
        strong=row.strong & kept,
    )


def _gap(rows: list[Row]) -> int:
    """An empty column with a table or notes at its right; 0 if there is none."""
    pairs = itertools.pairwise(sorted(reach_of(rows)))
    beyond = [column for before, column in pairs if column - before > 1]
    return next((one for one in beyond[:_MAX_SIDE_BY_SIDE] if _are_apart(rows, one)), 0)


def _are_apart(rows: list[Row], column: int) -> bool:
    """Whether what begins in a column is no part of the table at its left."""
    left = [any(row.cells[:column]) for row in rows]
    right = [any(row.cells[column:]) for row in rows]
    words = [not VALUE.fullmatch(row.at(column)) for row in rows if row.at(column)]
    if len(words) < MIN_HEADS or 2 * sum(words) <= sum(right):
        return False
    num_alone = sum(one != other for one, other in zip(left, right, strict=True))
    first, last = right.index(True), len(right) - right[::-1].index(True)
    if all(len(row.cells) <= column + 1 or not any(row.cells[column + 1 :]) for row in rows):
        return first > 0 and left[0] and FEW * num_alone >= len(rows)
    names = [rows[first].cells[:column], rows[first].cells[column:]]
    are_same = len(set(filter(None, names[0])) & set(filter(None, names[1]))) > 0
    parts = [_part(row, column, None) for row in rows[first:last]]
    has_own = num_head(parts, has_head=False) > 0
    return has_own and (are_same or FEW * num_alone >= len(rows))


def _further_heads(rows: list[Row]) -> list[int]:
    """Where declared heads, or rows set off from those around them, name other columns.

    A row of one cell above them is their title.
    """
    found = list[int]()
    first = next((n for n, row in enumerate(rows) if len(row.columns()) > 1), len(rows))
    for place in range(first + 1, len(rows) - 1):
        row, above = rows[place], rows[place - 1]
        is_declared = row.is_head and not above.is_head
        if not is_declared and (not is_strong(row) or is_strong(rows[place + 1]) or place < 2):
            continue
        is_merged = is_strong(above) and bool(above.from_left)
        start = place - (is_merged or len(above.columns()) == 1)
        if (
            start > first
            and (is_declared or not is_strong(rows[start - 1] if is_merged else above))
            and len(row.columns()) >= MIN_HEADS
            and not any(VALUE.fullmatch(row.cells[column]) for column in row.columns())
            and row.cells != rows[0].cells
        ):
            found.append(start)
    return found


def _heads(rows: list[Row], below: list[Row]) -> bool:
    """Whether rows, but for their titles, are no more than the head of those below."""
    head = _without_titles(rows, has_head=False)[1]
    reach, first = reach_of(head), columns_of([*head, *below])[:1]
    is_full = 2 * max(len(row.columns()) for row in below[:SAMPLE_ROWS]) > len(reach)
    if len(reach) < MIN_HEADS or not is_full or not set(columns_of(below)) <= reach.union(first):
        return False
    has_head = num_head(below, has_head=False) > 0
    return not has_head and num_head([*head, *below], has_head=False) == len(head)


def _without_titles(region: list[Row], *, has_head: bool) -> tuple[list[Row], list[Row]]:
    """The rows above a table, of one cell or a few at the left (a report's date); and the table."""
    width = max(len(row.columns()) for row in region)
    if has_head and width == 1:
        return [], region
    first = min(row.columns()[0] for row in region)
    for place, row in enumerate(region):
        if _begins_table(row, region[place + 1 : place + 2], width, first):
            return region[:place], region[place:]
    return region, []


def _begins_table(row: Row, below: Sequence[Row], width: int, first: int) -> bool:
    """Whether a row is none of the titles above a table.

    Args:
        below: The next row, if there is one.
        width: Cells of the longest row.
        first: The first column.
    """
    columns = row.columns()
    if len(columns) == 1 or (len(columns) < width and _is_pairs(row)):
        return False
    if 2 * len(columns) > width or row.from_left or columns[0] != first:
        return True
    is_contiguous = columns[-1] - first < len(columns)
    is_above_names = any(
        one.at(first) and not any(map(VALUE.fullmatch, one.cells)) for one in below
    )
    return not is_above_names and (is_strong(row) or not is_contiguous)


def _is_pairs(row: Row) -> bool:
    """Whether a row has keys, that end in a colon, and their values."""
    if not row.strong and _are_keyed(row):
        return True
    are_keys = [row.cells[column].rstrip(" -").endswith(":") for column in row.columns()]
    return are_keys == [True, False] * (len(are_keys) // 2)


def _are_keyed(row: Row) -> bool:
    """Whether each cell has a key and its value."""
    return all(_KEYED.match(row.cells[column]) for column in row.columns())


class _Table:
    """A table whose head is known.

    Args:
        body: The rows below, by which it is known whether others go on with it.
        has_sections: Whether a row of one cell may name the rows below it.
    """

    def __init__(self, head: Sequence[Row], body: Sequence[Row], *, has_sections: bool) -> None:
        self._names = _names(head)
        self._head = [row.cells for row in head]
        self._columns = columns_of([*head, *body])
        self._reach = reach_of([*head, *body[:SAMPLE_ROWS]])
        self.is_named, self.is_wide = any(self._names), len(self._columns) > 2
        firsts = [self._columns[0] in row.strong for row in body if len(row.columns()) > 1]
        self._has_strong_labels = 2 * sum(firsts) > len(firsts)
        self._has_groups = bool(head) and _has_groups(body[:SAMPLE_ROWS], self._columns)
        self._has_sections = has_sections and len(self._columns) > 1
        self._values = value_columns(body)
        counts = sorted(count for row in body[:SAMPLE_ROWS] if (count := len(row.columns())) > 1)
        self._is_dense = bool(counts) and 2 * counts[len(counts) // 2] > len(self._columns) > 2

    def goes_on_with(self, rows: Sequence[Row]) -> bool:
        """Whether rows below an empty one belong to the table: they hold what its columns do."""
        first, columns = rows[0], rows[0].columns()
        is_set_off = is_strong(first) and (
            2 * len(columns) <= len(self._columns) or may_be_head(rows, 0)
        )
        has_head = len(rows) > 1 and (first.is_head or is_set_off)
        if has_head or not self._names or not set(columns) <= self._reach:
            return False
        values = [column for column in columns if column in self._values]
        if values:
            return 2 * sum(bool(VALUE.fullmatch(first.cells[c])) for c in values) > len(values)
        has_other_head = any(not VALUE.fullmatch(first.at(c)) for c in value_columns(rows[1:]))
        return 2 * len(columns) > len(self._columns) and not has_other_head

    def write(
        self,
        out: BlockList,
        rows: Sequence[Row],
        caption: str = "",
        at: int = 0,
        *,
        goes_on: bool = False,
    ) -> None:
        """Adds rows; the caption of those below a row that names them is its text."""
        held = list[Row]()
        last = max((n for n, row in enumerate(rows) if len(row.columns()) > 1), default=-1)
        for place, row in enumerate(rows):
            if self._is_apart(row, is_below=place > last):
                self._add(out, held, caption, at, goes_on=goes_on)
                held, caption, at = [], row.cells[row.columns()[0]], row.line
                goes_on = True
            elif row.cells not in self._head:
                held.append(row)
        self._add(out, held, caption, at, goes_on=goes_on)

    def _add(
        self, out: BlockList, rows: Sequence[Row], caption: str, at: int, *, goes_on: bool
    ) -> None:
        is_title = not goes_on
        is_caption = (bool(rows) or is_title) and len(caption) <= _MAX_CAPTION_CHARS
        if caption and not is_caption:
            out.paragraph(caption, at)
        caption = caption if is_caption else ""
        out.table(self._names, self._written(rows), caption, at, goes_on=goes_on)

    def _written(self, rows: Sequence[Row]) -> list[tuple[int, Sequence[str]]]:
        """Rows as a table has them; a cell over several columns is the first one's."""
        found = _labelled(rows, self._columns[0] if self._columns else 0)
        found = _grouped(found, self._columns[0]) if self._has_groups else found
        return [
            (row.line, ["" if n in row.from_left else cell for n, cell in enumerate(row.cells)])
            if self._names
            else (row.line, _paired(row))
            for row in found
        ]

    def _is_apart(self, row: Row, *, is_below: bool) -> bool:
        """Whether a row names the rows below it, or is a note below the table."""
        columns = row.columns()
        if len(columns) != 1 or not self._has_sections:
            return False
        text = row.cells[columns[0]]
        if len(row.from_left) + 1 >= len(self._columns):
            return True
        if is_below:
            return len(text) > MAX_LABEL_CHARS or not text[0].isalnum()
        is_set_off = columns[0] in row.strong and not self._has_strong_labels
        is_name = text.endswith(":") or self._is_dense or is_set_off
        is_value = VALUE.fullmatch(text) and not _LONG_WORD.search(text)
        is_no_cell = columns[0] == self._columns[0] or columns[0] in self._values
        return is_no_cell and is_name and not is_value


def _has_groups(rows: Sequence[Row], columns: Sequence[int]) -> bool:
    """Whether a label in the first column is that of rows without one below it, too."""
    if len(columns) < MIN_HEADS or not rows or not rows[0].at(columns[0]):
        return False
    cells = [row.at(columns[0]) for row in rows]
    labels = list(filter(None, cells))
    others = [bool(row.at(columns[1])) for row in rows if not row.at(columns[0])]
    go_on = any(cell and not before for before, cell in itertools.pairwise(cells))
    are_labels = not any(VALUE.fullmatch(text) and len(text) > 3 for text in labels)
    are_few = len(set(labels)) == len(labels) <= len(others)
    return go_on and are_labels and are_few and FEW * sum(others) >= (FEW - 1) * len(others)


def _grouped(rows: Sequence[Row], column: int) -> list[Row]:
    """Rows of which each has its group's label; a total of all has none."""
    found, label = list[Row](), ""
    for row in rows:
        cells = list(row.cells)
        if any(map(_TOTAL.match, cells)):
            label = ""
        label = row.at(column) or label
        cells[column : column + 1] = [label]
        found.append(row._replace(cells=cells))
    return found


def _labelled(rows: Sequence[Row], column: int) -> Sequence[Row]:
    """Rows whose label in a column, if it is indented, has before it those that it belongs to."""
    named = [row for row in rows if row.at(column)]
    places = sorted({row.indent for row in named})
    steps = itertools.pairwise([-inf, *places])
    levels = [place for before, place in steps if place - before > _SAME_INDENT]
    is_list = 1 < len(levels) <= _MAX_INDENTS and named[0].indent < levels[1]
    if not is_list or any(VALUE.fullmatch(row.at(column)) for row in named):
        return rows
    found, path = list[Row](), dict[int, str]()
    for row in rows:
        cells, label = list(row.cells), row.at(column)
        if label and column not in row.from_above and not _TOTAL.match(label):
            level = bisect_right(levels, row.indent)
            path = {its: text for its, text in path.items() if its < level and text != label}
            cells[column] = ", ".join([*path.values(), label])
            path[level] = label[:MAX_LABEL_CHARS]
        found.append(row._replace(cells=cells))
    return found


def _names(head: Sequence[Row]) -> list[str]:
    """The columns' names: of several rows, joined."""
    if not head:
        return []
    width = max(len(row.cells) for row in head)
    rows = [[row.at(column) for column in range(width)] for row in head]
    lowest = list(filter(None, rows[-1]))
    if len(set(lowest)) < len(lowest):  # "Q1" stands over the first of its columns alone
        for texts, row in zip(rows[:-1], head, strict=False):
            for column in range(row.columns()[0] + 1, width):
                texts[column] = texts[column] or texts[column - 1]
    return [" ".join(dict.fromkeys(filter(None, names))) for names in zip(*rows, strict=True)]


def _paired(row: Row) -> list[str]:
    """A row's cells where no head names them: a key is written before its value."""
    columns = row.columns()
    parts, place = list[str](), 0
    while place < len(columns):
        column, *after = columns[place : place + 2]
        text = row.cells[column]
        is_set_off = column in row.strong and row.strong.isdisjoint(after)
        is_key = text.endswith(":") or is_set_off or (len(columns) == 2 and not _are_keyed(row))
        if after and is_key and len(text) <= MAX_LABEL_CHARS and any(map(str.isalpha, text)):
            parts.append(f"{text.rstrip(': ')}: {row.cells[after[0]]}")
            place += 2
        else:
            parts.append(text)
            place += 1
    return parts
