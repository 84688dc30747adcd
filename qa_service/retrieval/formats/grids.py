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
import re
from collections.abc import Collection, Iterator, Sequence

from qa_service.retrieval.documents import BlockList
from qa_service.retrieval.formats.cells import Row
from qa_service.retrieval.formats.grid_table import (
    MAX_CAPTION_CHARS,
    GridTable,
    are_keyed,
    have_blanks,
    have_values_by_turns,
    paired,
)
from qa_service.retrieval.formats.row_labels import TOTAL
from qa_service.retrieval.formats.side_by_side import side_by_side
from qa_service.retrieval.formats.table_heads import (
    MAX_HEAD_ROWS,
    MIN_HEADS,
    SAMPLE_ROWS,
    VALUE,
    columns_of,
    is_strong,
    num_head,
    reach_of,
    words_and_numbers,
)

_COLONS = frozenset({":", ":-", "-:"})
_SUM = re.compile(r"[^\w\s]?\s?\d{1,3}(?:,\d{3})*(?:\.\d+)?")
"""No year."""
_DATE_OR_SHARE = re.compile(r"\d{1,4}([-/. ])(?:\d\d?|[^\W\d_]{3,9})\1\d{1,4}|\d[\d.,]*\s?%")


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
    rows = [_with_colons(row) for row in rows]
    rows = [row for row in rows if not row.columns() or row.has_own()]
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
            words = [
                "; ".join(paired(title, has_pairs=have_values_by_turns(title))) for title in titles
            ]
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
                is_total = not (has_head or rest[0].is_head) and _is_total(rest[0])
                count = 0 if is_total else num_head(rest, has_head=has_head)
                if not has_head and (pair := words_and_numbers(rest)):
                    rest, count = pair, 1
                made.append(GridTable(rest[:count], rest[count:], has_sections=not has_head))
                made[-1].write(out, rest[count:], *caption)
        open_tables = [table for table in made if table.is_named] or open_tables
    return open_tables


def _with_colons(row: Row) -> Row:
    """A row in which a colon that has a cell of its own is that of the key before it."""
    cells = list(row.cells)
    for before, column in itertools.pairwise(row.columns()):
        if cells[column] in _COLONS:
            cells[before] = f"{cells[before].rstrip(': ')}:"
            cells[column] = ""
    return row._replace(cells=cells)


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
    """A region's tables: those side by side, and those with a head in another's rows."""
    for rows in side_by_side(region):
        heads = [0, *_further_heads(rows), len(rows)]
        yield from (rows[start:end] for start, end in itertools.pairwise(heads))


def _further_heads(rows: list[Row]) -> list[int]:
    """Where declared heads, or rows set off from those around them, name other columns.

    So does a row below a title, that has a name of the first head in the same column. A row of one
    cell above them is their title, and so are rows of keys and values.
    """
    found = list[int]()
    first = next((n for n, row in enumerate(rows) if not _is_title(row)), len(rows))
    for place in range(first + 1, len(rows) - 1):
        row, above = rows[place], rows[place - 1]
        is_declared = row.is_head and not above.is_head
        is_declared |= _is_title(above) and _has_name_of(rows[first], row)
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


def _is_total(row: Row) -> bool:
    """Whether a row is of a sum, so that it names no columns; those of years it may."""
    label, *texts = (row.cells[column] for column in row.columns())
    return bool(TOTAL.match(label)) and any(map(_SUM.fullmatch, texts))


def _is_title(row: Row) -> bool:
    return len(row.columns()) == 1 or are_keyed(row)


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
    rest = _without_titles(below, has_head=False)[1]
    has_head = num_head(rest if len(rest) > 1 else below, has_head=False) > 0
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
    is_head = rows[:1] and (rows[0].is_head or _is_set_off_alone(rows))
    return is_usual and not is_head and len(set(itertools.chain(*keys))) > 1


def _is_set_off_alone(rows: Sequence[Row]) -> bool:
    """Whether of rows the first alone is set off, and has words without colons."""
    words = [rows[0].cells[column] for column in rows[0].columns()]
    are_names = not any(VALUE.fullmatch(text) or text.endswith(":") for text in words)
    return are_names and is_strong(rows[0]) and not any(map(is_strong, rows[1:]))


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
    declared = next((n for n, row in enumerate(region[:MAX_HEAD_ROWS]) if row.is_head), 0)
    names = region[declared]
    if declared and all(_is_over_head(row, names) for row in region[:declared]):
        return region[:declared], region[declared:]
    starts = [row.columns()[0] for row in region]
    lefts = [*itertools.accumulate(reversed(starts), min)][::-1]  # of each row and all below it
    first = lefts[0]
    for place, row in enumerate(region):
        if row.columns()[-1] < min(lefts[place + 1 : place + 2], default=0):
            continue  # what those at its right are about
        if (place and row.from_above) or _is_banner(region[place:]):
            continue
        if _begins_table(row, region[place + 1 : place + 2], width, first):
            return region[:place], region[place:]
    return region, []


def _is_over_head(row: Row, names: Row) -> bool:
    """Whether a row has a text and a label at most, which name no columns apart from others."""
    first = names.columns()[0]
    return not names.from_above and sum(column != first for column in row.columns()) < 2


def _is_banner(rows: Sequence[Row]) -> bool:
    """Whether merged cells, some of them two rows high, stand above one cell over all columns."""
    merged = list(itertools.takewhile(lambda row: row.from_left, rows))
    last = next((row for row in merged[1:] if len(row.columns()) == 1), None)
    is_high = last is not None and len(rows[0].columns()) > 1 and bool(rows[1].from_above)
    return is_high and reach_of(merged) == reach_of(merged[-1:])


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
    if any(_is_above_names(row, one, first) for one in below):
        return False
    if 2 * len(columns) > width or row.from_left or columns[0] != first:
        return True
    is_contiguous = columns[-1] - first < len(columns)
    is_above_names = any(
        one.at(first) and not any(map(VALUE.fullmatch, one.cells)) for one in below
    )
    return not is_above_names and (is_strong(row) or not is_contiguous)


def _is_above_names(row: Row, below: Row, first: int) -> bool:
    """Whether a row above one that names the columns, all in that row, is none of their head.

    It has keys and their values without colons, or few cells and a date or a share.
    """
    columns, names = row.columns(), below.columns()
    texts = [below.cells[column] for column in names]
    if names[0] != first or below.from_above or any(map(VALUE.fullmatch, texts)):
        return False
    if columns[0] == first and len(names) > len(columns) and have_values_by_turns(row):
        return True
    is_plain = not row.from_left | below.from_left and len({*texts}) == len(texts)
    has_date = any(_DATE_OR_SHARE.fullmatch(row.cells[column]) for column in columns)
    return is_plain and has_date and 2 * len(columns) < len(names)


def _is_pairs(row: Row) -> bool:
    """Whether a row has keys, that end in a colon, and their values."""
    if are_keyed(row):
        return True
    are_keys = [row.cells[column].rstrip(" -").endswith(":") for column in row.columns()]
    return are_keys == [True, False] * (len(are_keys) // 2)
