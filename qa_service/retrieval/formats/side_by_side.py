"""Which tables, forms and notes stand next to each other in the rows of a sheet.

An empty column parts them, or the names of their columns begin again. A table at the right has a
column of words first, and other rows than the one at its left, the same names, or keys and their
values at its left; a column of words without a name is of notes. An empty column alone parts
nothing, and titles over all columns say nothing of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from qa_service.retrieval.formats.cells import Row
from qa_service.retrieval.formats.table_heads import (
    FEW,
    MAX_HEAD_ROWS,
    MIN_HEADS,
    VALUE,
    is_strong,
    num_head,
    reach_of,
)

_MAX_SIDE_BY_SIDE = 16


def side_by_side(rows: list[Row]) -> Iterator[list[Row]]:
    """The tables and notes that stand next to each other in some rows, from left to right."""
    for _ in range(_MAX_SIDE_BY_SIDE):
        if not (gap := _gap(rows)):
            break
        left = (_part(row, 0, gap) for row in rows)
        yield [*filter(Row.has_own, left)]
        rows = [*filter(Row.has_own, (_part(row, gap, None) for row in rows))]
    yield rows


def _part(row: Row, start: int, end: int | None) -> Row:
    """A row's cells of some columns, at their places."""
    kept = range(start, len(row.cells) if end is None else end)
    return row._replace(
        cells=[""] * start + row.cells[start:end],
        from_left={n for n in row.from_left if n in kept},
        from_above={n for n in row.from_above if n in kept},
        strong={n for n in row.strong if n in kept},
        is_head=row.is_head and (not row.heads or any(one.start in kept for one in row.heads)),
        indent=0.0 if start else row.indent,
        heads=[one for one in row.heads if one.start in kept],
    )


def _gap(rows: list[Row]) -> int:
    """Where a table or notes begin at a table's right; 0 if there are none.

    The names of the columns begin again, or an empty column is before them: at the side of a table
    whose columns the format says, or of one that they are no part of.
    """
    for place in range(min(MAX_HEAD_ROWS, len(rows) - 1)):
        if column := _again(rows, place):
            return column
    rows = [*itertools.dropwhile(_is_over_all, rows)]
    reach = sorted(reach_of(rows))
    pairs = [(n, column) for n, column in itertools.pairwise(reach) if column > n + 1]
    ends = [*(n + 1 for n, _ in pairs[1:]), None]
    return next(
        (
            column
            for (before, column), end in list(zip(pairs, ends, strict=False))[:_MAX_SIDE_BY_SIDE]
            if _is_declared(rows, before, column)
            or _are_titled(rows, column)
            or _are_pairs_beside(rows, column)
            or _are_apart(rows, column, end)
        ),
        0,
    )


def _is_over_all(row: Row) -> bool:
    """Whether a row has one text, in a merged cell."""
    return len(row.columns()) == 1 and bool(row.from_left)


def _are_titled(rows: list[Row], column: int) -> bool:
    """Whether a title stands over the names at the left of a column, and one over those there."""
    titles, names = rows[0], rows[1:2]
    first = min(row.columns()[0] for row in rows)
    return {first + 1, column + 1} <= titles.from_left and all(
        titles.at(n) and n not in titles.from_left and len(part.columns()) >= MIN_HEADS
        and not any(VALUE.fullmatch(part.cells[one]) for one in part.columns())
        for n, end in ((first, column), (column, None))
        for part in (_part(row, n, end) for row in names)
    )  # fmt: skip


def _are_pairs_beside(rows: list[Row], column: int) -> bool:
    """Whether keys that are set off, and their values, are at the left of a table's names."""
    sides = [(_part(row, 0, column), _part(row, column, None)) for row in rows]
    named = (one for one in sides if len(one[1].columns()) > 1 and not one[1].from_left)
    pair, names = next(named, sides[0])
    columns = pair.columns()
    if not is_strong(names) or len(columns) != 2 or len(reach_of(left for left, _ in sides)) > 2:
        return False
    are_words = not any(VALUE.fullmatch(names.cells[n]) for n in names.columns()[:2])
    return are_words and columns[0] in pair.strong and columns[1] not in pair.strong


def _is_declared(rows: list[Row], before: int, column: int) -> bool:
    """Whether the empty columns between two others part a table that the format declares."""
    tables = [table for row in rows for table in row.heads]
    if not any((before in table) != (column in table) for table in tables):
        return False
    sides = [[_part(row, *side) for row in rows] for side in ((0, column), (column, None))]
    return all(
        any(row.heads for row in side) or (len(reach_of(side)) > 1 and _has_words(side))
        for side in sides
    )


def _has_words(rows: list[Row]) -> bool:
    return any(cell and not VALUE.fullmatch(cell) for row in rows for cell in row.cells)


def _again(rows: list[Row], place: int) -> int:
    """The column where the names in a row begin again; 0 if they do not.

    They are all the same, or come after an empty column. Below names that part them ("2019" and
    "2020"), they are of one table.
    """
    row, columns = rows[place], rows[place].columns()
    names = [row.cells[column] for column in columns]
    count = next((n for n, name in enumerate(names) if n and name == names[0]), 0)
    if count < MIN_HEADS or any(map(VALUE.fullmatch, names)):
        return 0
    reach = reach_of(rows)
    if names[count:] != names[: len(names) - count]:
        while count and columns[count] - 1 in reach:
            count -= 1
    is_same = len(set(names[:count]) & set(names[count:])) >= MIN_HEADS
    is_named = place > 0 and rows[place - 1].at(columns[0]) and rows[place - 1].at(columns[count])
    is_first = all(one.columns()[0] >= columns[0] for one in rows)
    return columns[count] if is_same and is_first and not is_named else 0


def _are_apart(rows: list[Row], column: int, end: int | None) -> bool:
    """Whether what begins in a column is no part of the table at its left.

    Args:
        end: Where the next empty column is, if there is one.
    """
    left = [any(row.cells[:column]) for row in rows]
    right = [any(row.cells[column:]) for row in rows]
    words = [not VALUE.fullmatch(row.at(column)) for row in rows if row.at(column)]
    if len(words) < MIN_HEADS or 2 * sum(words) < sum(any(row.cells[column:end]) for row in rows):
        return False
    num_alone = sum(one != other for one, other in zip(left, right, strict=True))
    is_alone = 2 * sum(words) > sum(right) and FEW * num_alone >= len(rows)
    first, last = right.index(True), len(right) - right[::-1].index(True)
    if all(len(row.cells) <= column + 1 or not any(row.cells[column + 1 :]) for row in rows):
        return first > 0 and left[0] and is_alone
    names = [{one.cells[n] for n in one.columns()} for one in (
        _part(rows[first], 0, column), _part(rows[first], column, end))]  # fmt: skip
    are_same = bool(names[0] & names[1])
    parts = [_part(row, column, None) for row in rows[first:last]]
    parts = [part for part in parts if part.columns()]
    is_titled = _is_over_all(parts[0]) and reach_of(parts[:1]) == reach_of(parts)
    has_own = num_head(parts, has_head=False) > 0
    return (has_own and (are_same or is_alone)) or (is_titled and is_alone)
