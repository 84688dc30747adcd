"""Tables of all formats: a grid of cells becomes titles, columns' names and rows.

A reader makes a `Grid` of a table, or of a whole sheet, and `add_grid` finds in it, as a person
does, by what cells hold and how they are set off:

- the regions between empty rows; one without a head goes on with the table before, and a head above
  an empty row names the rows below it,
- titles: rows of one cell, of a few at the left, or of keys, above the head; notes below the table,
- the head (`table_heads`); what a table is once that is known is `grid_table`'s.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

from qa_service.retrieval.documents import BlockList
from qa_service.retrieval.formats.cells import Row
from qa_service.retrieval.formats.grid_table import (
    MAX_CAPTION_CHARS,
    TOTAL,
    GridTable,
    are_keyed,
    have_blanks,
    paired,
)
from qa_service.retrieval.formats.table_heads import (
    FEW,
    MAX_HEAD_ROWS,
    MIN_HEADS,
    SAMPLE_ROWS,
    VALUE,
    columns_of,
    is_strong,
    num_head,
    reach_of,
)

_MAX_SIDE_BY_SIDE = 16


def add_grid(
    out: BlockList, rows: Sequence[Row], *, has_head: bool = False, above: Sequence[GridTable] = ()
) -> Sequence[GridTable]:
    """Adds the tables of a grid.

    Args:
        has_head: Whether there is one table whose first row of several cells names the columns,
            whatever it holds; empty rows are left out.
        above: The last tables of the page before, with which the grid may go on.

    Returns:
        The last tables of the grid.
    """
    rows = [row for row in rows if not row.columns() or set(row.columns()) - row.from_above]
    rows = [row for row in rows if row.columns()] if has_head else rows
    open_tables = above
    for region in _regions(rows):
        made = list[GridTable]()
        for part in [region] if has_head else _tables(region):
            has_blanks = not has_head and have_blanks(part)
            is_form = not (has_head or has_blanks) and _is_form(part)
            titles, rest = list[Row](), part
            if not has_blanks:
                titles, rest = _without_titles(part, has_head=has_head, is_form=is_form)
            words = ["; ".join(paired(title)) for title in titles]
            lines = [(text, title.line) for text, title in zip(words, titles, strict=True)]
            short = [n for n, text in enumerate(words) if rest and len(text) <= MAX_CAPTION_CHARS]
            caption = lines.pop(short[-1]) if short else ()  # long notes may stand below it
            for text, line in lines:
                out.paragraph(text, line)
            if is_form or has_blanks:
                form = GridTable(
                    [], rest, has_sections=is_form, is_form=True, has_blanks=has_blanks
                )
                form.write(out, rest, *caption)
            elif not rest:
                made += [table for table in open_tables if table.is_wide]
            elif table := next((one for one in open_tables if one.goes_on_with(rest)), None):
                table.write(out, rest, *caption, goes_on=True)
                made.append(table)
            else:
                count = num_head(rest, has_head=has_head)
                made.append(GridTable(rest[:count], rest[count:], has_sections=not has_head))
                made[-1].write(out, rest[count:], *caption)
        open_tables = [table for table in made if table.is_named] or open_tables
    return open_tables


def _regions(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows between empty ones; a head with the rows that it names below an empty one."""
    groups = itertools.groupby(rows, key=lambda row: bool(row.columns()))
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
        yield [row for row in left if row.columns()]
        right = (_part(row, gap, None) for row in rows)
        rows = [row for row in right if row.columns()]
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
    reach = sorted(reach_of(rows))
    pairs = [(n, column) for n, column in itertools.pairwise(reach) if column > n + 1]
    ends = [*(n + 1 for n, _ in pairs[1:]), None]
    return next(
        (
            column
            for (before, column), end in list(zip(pairs, ends, strict=False))[:_MAX_SIDE_BY_SIDE]
            if _is_declared(rows, before, column)
            or _are_titled(rows, column)
            or _are_apart(rows, column, end)
        ),
        0,
    )


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
    has_own = num_head([part for part in parts if part.columns()], has_head=False) > 0
    return has_own and (are_same or is_alone)


def _further_heads(rows: list[Row]) -> list[int]:
    """Where declared heads, or rows set off from those around them, name other columns.

    So does a row below a title, that has a name of the first head in the same column. A row of one
    cell above them is their title, and so are rows of keys and values.
    """
    found = list[int]()
    first = next((n for n, row in enumerate(rows) if len(row.columns()) > 1), len(rows))
    for place in range(first + 1, len(rows) - 1):
        row, above = rows[place], rows[place - 1]
        is_declared = row.is_head and not above.is_head
        is_declared |= len(above.columns()) == 1 and _has_name_of(rows[first], row)
        if not is_declared and (not is_strong(row) or is_strong(rows[place + 1]) or place < 2):
            continue
        is_merged = is_strong(above) and bool(above.from_left)
        start = place - (is_merged or len(above.columns()) == 1)
        if start == place and not _is_form(rows[:place]):
            pairs = itertools.takewhile(_is_of_next, reversed(rows[first + 1 : place]))
            start -= sum(1 for _ in pairs)
        if (
            start > first
            and (is_declared or not is_strong(rows[start - 1] if is_merged else above))
            and len(row.columns()) >= MIN_HEADS
            and not any(VALUE.fullmatch(row.cells[column]) for column in row.columns())
            and row.cells != rows[0].cells
        ):
            found.append(start)
    return found


def _is_of_next(row: Row) -> bool:
    """Whether a row of keys and their values, none a total, is about the table below it."""
    return _is_pairs(row) and not any(TOTAL.match(row.cells[column]) for column in row.columns())


def _has_name_of(head: Row, row: Row) -> bool:
    """Whether a cell of a row, not its label, is the name of its column, so that it is no value."""
    return any(row.cells[column] == head.at(column) for column in row.columns()[1:])


def _heads(rows: list[Row], below: list[Row]) -> bool:
    """Whether rows, but for their titles, are no more than the head of those below."""
    head = _without_titles(rows, has_head=False)[1]
    reach, first = reach_of(head), columns_of([*head, *below])[:1]
    is_full = 2 * max(len(row.columns()) for row in below[:SAMPLE_ROWS]) > len(reach)
    if len(reach) < MIN_HEADS or not is_full or not set(columns_of(below)) <= reach.union(first):
        return False
    has_head = num_head(below, has_head=False) > 0
    return not has_head and num_head([*head, *below], has_head=False) == len(head)


def _is_form(rows: Sequence[Row]) -> bool:
    """Whether most rows have a key before a value, not all in one column.

    A key ends in a colon; or all cells of its row are by turns in columns that are set off, as keys
    that are words, and in others.
    """
    rows = [row for row in rows if len(row.columns()) > 1]
    plain = {n for row in rows for n in row.columns() if n not in row.strong}
    keys = [_keys(row, plain) for row in rows]
    is_usual = 2 * sum(map(bool, keys)) > len(rows) > 1 and bool(keys[0])
    return is_usual and not rows[0].is_head and len(set(itertools.chain(*keys))) > 1


def _keys(row: Row, plain: Collection[int]) -> list[int]:
    columns = row.columns()
    are_set_off = [column not in plain for column in columns] == [True, False] * (len(columns) // 2)
    if are_set_off and not any(VALUE.fullmatch(row.cells[column]) for column in columns[::2]):
        return columns[::2]
    return [
        key
        for key, value in itertools.pairwise(columns)
        if row.cells[key].endswith(":") and not row.cells[value].endswith(":")
    ]


def _without_titles(
    region: list[Row], *, has_head: bool, is_form: bool = False
) -> tuple[list[Row], list[Row]]:
    """The rows above a table, of one cell or a few at the left (a report's date); and the table."""
    if is_form:
        first = next(n for n, row in enumerate(region) if len(row.columns()) > 1)
        return region[:first], region[first:]
    width = max(len(row.columns()) for row in region)
    if has_head and width == 1:
        return [], region
    starts = [row.columns()[0] for row in region]
    lefts = [*itertools.accumulate(reversed(starts), min)][::-1]  # of each row and all below it
    first = lefts[0]
    for place, row in enumerate(region):
        if row.columns()[-1] < min(lefts[place + 1 : place + 2], default=0):
            continue  # what those at its right are about
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
    if row.heads:
        return True
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
    if not row.strong and are_keyed(row):
        return True
    are_keys = [row.cells[column].rstrip(" -").endswith(":") for column in row.columns()]
    return are_keys == [True, False] * (len(are_keys) // 2)
