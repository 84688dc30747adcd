"""Tables of all formats: a grid of cells becomes titles, columns' names and rows.

A reader makes a `Grid` of a table, or of a whole sheet, and `add_grid` finds in it, as a person
does, by what cells hold and how they are set off:

- the regions between empty rows; one that has no head of its own goes on with the table before,
- titles: rows of one cell, or of a few at the left, above the head; notes of one cell below it,
- the head: rows that the format declares, or that are set off, or whose cells name columns of
  numbers; the names of several rows are joined ("Q1 Sales"),
- without a head, keys and their values (`Key: value`),
- a section's row: one cell over the rows that it names,
- labels that are indented below others, and belong to them ("Aged 65 and over, men").
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from qa_service.retrieval.documents import BlockList
from qa_service.retrieval.formats.cells import Row

_MAX_HEAD_ROWS = 4
_MIN_HEADS = 3
"""Fewer cells above an empty row are a key and its value."""
_SAMPLE_ROWS = 50
"""Rows below a head that are looked at to see whether its cells name what they hold."""

_VALUE = re.compile(
    r"[^\w\s]{0,3}\s?(?:[A-Z]{3} )?\d.{0,30}|[-–—.*]{1,5}|[x✓✔]|n/?a",  # noqa: RUF001, dashes
    re.IGNORECASE,
)
"""A number with its signs and unit, a date, or what stands for none."""
_NUMBER_AS_NAME = re.compile(
    r"(?:19|20)\d\d(?!\d|[.,]\d).{0,25}|[$€£]?[\d,.]+\s?[-–]\s?[$€£]?[\d,.]+"  # noqa: RUF001, dashes
    r"|\d\d?([./-])\d\d?\1\d{2,4}|\d\d?:\d\d(?:\W+\d\d?:\d\d)?(?:\s?[ap]m)?",
    re.IGNORECASE,
)
"""A year ("2019 Budget"), a range, a date or a time, which may name a column."""
_FEW = 4
"""One cell or row in four, or fewer, are an exception."""
_WORD = re.compile(r"[^\W\d_]{3}")
_LONG_WORD = re.compile(r"[^\W\d_]{4}")
_WORD_OR_UNIT = re.compile(r"[^\W\d_]{3}|\d\s?[^\W\d_]{2}")
_MAX_LABEL_CHARS = 60
"""Longer texts are no keys, nor names of the rows below them."""
_MAX_CAPTION_CHARS = 200
"""Longer titles are paragraphs: a caption goes with each passage of the rows."""
_SAME_INDENT = 2.0
"""In points; labels that begin no further apart are at one level."""
_MAX_INDENTS = 5
"""Levels of labels in a column; where there are more, it is centred or aligned at the right."""
_TOTAL = re.compile(r"(?:sub|grand )?-?total|summe|gesamt|insgesamt", re.IGNORECASE)
"""A label that belongs to all rows above it, however it is indented."""
_UNIT = re.compile(r"[(\[].{1,20}[)\]]|[%‰€$£¥]")


def add_grid(out: BlockList, rows: Sequence[Row], *, has_head: bool = False) -> None:
    """Adds the tables of a grid.

    Args:
        has_head: Whether there is one table whose first row of several cells names the columns,
            whatever it holds; empty rows are left out.
    """
    rows = [row for row in rows if not row.columns() or set(row.columns()) - row.from_above]
    rows = [row for row in rows if any(row.cells)] if has_head else rows
    table: _Table | None = None
    for region in _regions(rows):
        titles, rest = _without_titles(region, has_head=has_head)
        words = ["; ".join(_paired(title)) for title in titles]
        has_caption = bool(rest and words) and len(words[-1]) <= _MAX_CAPTION_CHARS
        caption = (words[-1], titles[-1].line) if has_caption else ()
        for title, text in zip(titles[: -1 if has_caption else None], words, strict=False):
            out.paragraph(text, title.line)
        if not rest:
            table = table if table is not None and table.is_wide else None
        elif table is not None and table.goes_on_with(rest):
            table.write(out, rest)
        else:
            num_head = _num_head(rest, has_head=has_head)
            table = _Table(rest[:num_head], rest[num_head:], has_sections=not has_head)
            table.write(out, rest[num_head:], *caption)


def _regions(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows between empty ones; a head with the rows that it names below an empty one."""
    groups = itertools.groupby(rows, key=lambda row: any(row.cells))
    held = list[Row]()
    for region in (list(group) for has_words, group in groups if has_words):
        if held and not _heads(held, region):
            yield held
            held = []
        held += region
        if len(held) > _MAX_HEAD_ROWS:
            yield held
            held = []
    if held:
        yield held


def _heads(rows: list[Row], below: list[Row]) -> bool:
    """Whether rows, but for their titles, are no more than the head of those below."""
    head = _without_titles(rows, has_head=False)[1]
    reach, first = _reach(head), _columns([*head, *below])[:1]
    is_full = 2 * max(len(row.columns()) for row in below[:_SAMPLE_ROWS]) > len(reach)
    if len(reach) < _MIN_HEADS or not is_full or not set(_columns(below)) <= reach.union(first):
        return False
    is_set_off = _is_strong(head[-1]) and not head[-1].from_left and not _is_strong(below[0])
    has_no_head = is_set_off or not _num_head(below, has_head=False)
    return has_no_head and _num_head([*head, *below], has_head=False) == len(head)


def _without_titles(region: list[Row], *, has_head: bool) -> tuple[list[Row], list[Row]]:
    """The rows above a table, of one cell or a few at the left (a report's date); and the table."""
    width = max(len(row.columns()) for row in region)
    if has_head and width == 1:
        return [], region
    first = min(row.columns()[0] for row in region)
    for place, row in enumerate(region):
        if _begins_table(row, region[place + 1 : place + 2], width, first):
            place_of_head = place + _rows_above_head(region[place:], width)
            return region[:place_of_head], region[place_of_head:]
    return region, []


def _begins_table(row: Row, below: Sequence[Row], width: int, first: int) -> bool:
    """Whether a row is none of the titles above a table.

    Args:
        below: The next row, if there is one.
        width: Cells of the longest row.
        first: The first column.
    """
    columns = row.columns()
    if len(columns) == 1:  # the name of the second of two columns
        is_name = width == 2 and columns[0] > first
        return is_name and any(_VALUE.fullmatch(one.at(columns[0])) for one in below)
    if len(columns) < width and _is_pairs(row):
        return False
    is_left = columns == list(range(first, first + len(columns))) and not row.from_left
    is_upper = _is_strong(row) and not any(one.at(first) for one in below)
    return is_upper or not is_left or 2 * len(columns) >= width


def _rows_above_head(rows: Sequence[Row], width: int) -> int:
    """How many rows stand above one that is set off or declared as the head, and are none."""
    for place, row in enumerate(rows[1:_MAX_HEAD_ROWS], 1):
        is_full = 2 * len(row.columns()) > width and (row.is_head or _is_strong(row))
        if is_full and place + 1 < len(rows) and _may_be_head(rows, place):
            return 0 if _num_head(rows, has_head=False) else place
    return 0


def _is_pairs(row: Row) -> bool:
    """Whether a row has keys, that end in a colon, and their values."""
    are_keys = [row.cells[column].rstrip(" -").endswith(":") for column in row.columns()]
    return are_keys == [True, False] * (len(are_keys) // 2)


def _num_head(rows: Sequence[Row], *, has_head: bool) -> int:
    """How many rows are the head of a table without titles."""
    if not rows or (len(rows) == 1 and not has_head):
        return 0
    declared = sum(1 for _ in itertools.takewhile(lambda row: row.is_head, rows))
    if 0 < declared < len(rows):
        return declared
    strong, most = 0, min(len(rows), 2 * _MAX_HEAD_ROWS)
    while strong < most and _is_strong(rows[strong]) and _may_be_head(rows, strong):
        strong += 1
        if strong < most and _names_all(rows, strong):
            break
    if 0 < strong < most:
        return strong if strong > 1 else _with_more_rows(rows)
    if has_head:
        return 1 if any(row.at(_columns(rows)[0]) for row in rows[1:2]) else _with_more_rows(rows)
    is_head = _may_be_head(rows, 0) and (len(_columns(rows)) > 2 or _heads_pairs(rows))
    return _with_more_rows(rows) if is_head else 0


def _names_all(rows: Sequence[Row], num_head: int) -> bool:
    """Whether a head names each column, and the row below it is none: it is shorter, or longer."""
    names, below, columns = rows[num_head - 1], rows[num_head], _columns(rows)
    if _VALUE.fullmatch(below.at(columns[0])):
        return True
    is_named = all(any(row.at(n) for row in rows[:num_head]) for n in columns)
    is_merged = names.from_left or names.from_above or below.from_above
    may_name = all(0 < len(below.at(n)) <= _MAX_LABEL_CHARS for n in columns)
    return is_named and not is_merged and not may_name


def _heads_pairs(rows: Sequence[Row]) -> bool:
    """Whether the first of rows of two cells is a head, and not a key with its value."""
    keys = [(row, row.columns()[0]) for row in rows]
    are_named = sum(
        row.cells[key].endswith(":") or (key in row.strong and not _is_strong(row))
        for row, key in keys
    )
    cells = [row.at(_columns(rows)[-1]) for row in rows]
    others = [cell for cell in cells[1:] if cell not in {"", cells[0]}]
    has_values = all(_VALUE.fullmatch(cell) or _UNIT.fullmatch(cell) for cell in others)
    return 2 * are_named <= len(rows) and has_values and not _VALUE.fullmatch(cells[0])


def _with_more_rows(rows: Sequence[Row]) -> int:
    """How many rows are the head, of which the first one is."""
    further = range(1, min(_MAX_HEAD_ROWS, len(rows) - 1))
    return 1 + sum(1 for _ in itertools.takewhile(lambda n: _goes_on_head(rows, n), further))


def _goes_on_head(rows: Sequence[Row], place: int) -> bool:
    row, above = rows[place], rows[place - 1]
    texts = [row.cells[column] for column in row.columns() if column not in row.from_above]
    if not texts or any(column in row.from_above for column in row.columns()):
        return bool(row.from_above)
    if all(_UNIT.fullmatch(text) for text in texts):
        return True
    if len(texts) < 2:
        return False
    is_labelled, values = bool(row.at(above.columns()[0])), _value_columns(rows[place + 1 :])
    has_words = all(row.at(column) for column in values) and len(values) > is_labelled
    may_go_on = has_words or (bool(above.from_left) and not is_labelled)
    return may_go_on and _may_be_head(rows, place)


def _may_be_head(rows: Sequence[Row], place: int) -> bool:
    """Whether each cell may name its column: it is words, or `_may_name` says so."""
    row, above = rows[place], rows[place - 1] if place else Row(0, [])
    numbers = [column for column in row.columns()[1:] if _VALUE.fullmatch(row.at(column))]
    has_label = bool(row.at(_columns(rows)[0]))
    if _counts_up(list(map(row.at, numbers))) and (_is_strong(row) or not has_label):
        return not any(
            _counts_up(list(map(one.at, numbers))) for one in rows[place + 1 : place + 2]
        )
    # A head may be repeated below.
    rest = [r for r in rows[place + 1 : place + _SAMPLE_ROWS] if numbers and r.cells != row.cells]
    return all(
        _may_name(
            row.at(column),
            [one.at(column) for one in rest],
            has_corner=has_label,
            is_alone=len(numbers) == 1,
            has_name=bool(above.at(column) and not above.from_left),
        )
        for column in numbers
    )


def _counts_up(texts: Sequence[str]) -> bool:
    """Whether numbers are those of days or weeks, in order; a next month may begin at 1."""
    if len(texts) < _MIN_HEADS or not all(text.isdecimal() and len(text) < 4 for text in texts):
        return False
    pairs = itertools.pairwise(map(int, texts))
    return all(number == before + 1 or number == 1 < before for before, number in pairs)


def _may_name(
    text: str, below: Sequence[str], *, has_corner: bool, is_alone: bool, has_name: bool
) -> bool:
    """Whether a number may name the column of cells below it.

    A year, a date, a time or a range may stand over numbers of which few are such. A number with
    words ("2-Year-Old Group", "30 Sept.") may stand next to an empty corner, or over numbers
    without words, unless the column has a name: then the words are the unit of its first number.
    """
    has_numbers = any(re.search(r"\d", cell) for cell in below)
    if not has_corner and (_WORD.search(text) or not has_numbers):
        return True
    over_numbers = has_numbers and not any(map(_WORD_OR_UNIT.search, below))
    if _WORD.search(text) and over_numbers and not has_name:
        return True
    further = below[_MAX_HEAD_ROWS:] if len(below) > 2 * _MAX_HEAD_ROWS else below
    such = sum(map(bool, map(_NUMBER_AS_NAME.fullmatch, further)))
    may_name = bool(_NUMBER_AS_NAME.fullmatch(text)) and (has_numbers or not is_alone)
    return may_name and _FEW * such <= sum(map(bool, further))


def _value_columns(rows: Sequence[Row]) -> set[int]:
    """The columns beyond the first in which most rows have values."""
    found = set[int]()
    for column in _columns(rows)[1:]:
        cells = [row.at(column) for row in rows[:_SAMPLE_ROWS]]
        held = [bool(_VALUE.fullmatch(one)) for one in cells if one and not _UNIT.fullmatch(one)]
        if 2 * sum(held) > len(held):
            found.add(column)
    return found


def _columns(rows: Sequence[Row]) -> list[int]:
    return sorted({column for row in rows[:_SAMPLE_ROWS] for column in row.columns()})


def _reach(rows: Iterable[Row]) -> set[int]:
    """The columns with a text, all those of a merged cell."""
    return {column for row in rows for column, cell in enumerate(row.cells) if cell}


def _is_strong(row: Row) -> bool:
    """Whether a row is set off: each of its cells but a table's corner."""
    columns = row.columns()
    return len(columns) > 1 and all(column in row.strong for column in columns)


class _Table:
    """A table whose head is known.

    Args:
        body: The rows below, by which it is known whether others go on with it.
        has_sections: Whether a row of one cell may name the rows below it.
    """

    def __init__(self, head: Sequence[Row], body: Sequence[Row], *, has_sections: bool) -> None:
        self._names = _names(head)
        self._head = [row.cells for row in head]
        self._columns = _columns([*head, *body])
        self._reach = _reach([*head, *body[:_SAMPLE_ROWS]])
        self.is_wide = len(self._columns) > 2
        firsts = [self._columns[0] in row.strong for row in body if len(row.columns()) > 1]
        self._has_strong_labels = 2 * sum(firsts) > len(firsts)
        self._has_groups = bool(head) and _has_groups(body[:_SAMPLE_ROWS], self._columns)
        self._has_sections = has_sections and len(self._columns) > 1
        self._values = _value_columns(body)
        counts = sorted(count for row in body[:_SAMPLE_ROWS] if (count := len(row.columns())) > 1)
        self._is_dense = bool(counts) and 2 * counts[len(counts) // 2] > len(self._columns) > 2

    def goes_on_with(self, rows: Sequence[Row]) -> bool:
        """Whether rows below an empty one belong to the table: they hold what its columns do."""
        first, columns = rows[0], rows[0].columns()
        is_set_off = _is_strong(first) and (
            2 * len(columns) <= len(self._columns) or _may_be_head(rows, 0)
        )
        has_head = len(rows) > 1 and (first.is_head or is_set_off)
        if has_head or not self._names or not set(columns) <= self._reach:
            return False
        values = [column for column in columns if column in self._values]
        if self._values:
            return bool(values) and all(_VALUE.fullmatch(first.cells[c]) for c in values)
        has_other_head = any(not _VALUE.fullmatch(first.at(c)) for c in _value_columns(rows[1:]))
        return 2 * len(columns) > len(self._columns) and not has_other_head

    def write(self, out: BlockList, rows: Sequence[Row], caption: str = "", at: int = 0) -> None:
        """Adds rows; the caption of those below a row that names them is its text."""
        held = list[Row]()
        last = max((n for n, row in enumerate(rows) if len(row.columns()) > 1), default=-1)
        for place, row in enumerate(rows):
            if self._is_apart(row, is_below=place > last):
                self._add(out, held, caption, at)
                held, caption, at = [], row.cells[row.columns()[0]], row.line
            elif row.cells not in self._head:
                held.append(row)
        self._add(out, held, caption, at)

    def _add(self, out: BlockList, rows: Sequence[Row], caption: str, at: int) -> None:
        is_caption = bool(rows) and len(caption) <= _MAX_CAPTION_CHARS
        if caption and not is_caption:
            out.paragraph(caption, at)
        out.table(self._names, self._written(rows), caption if is_caption else "", at)

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
            return len(text) > _MAX_LABEL_CHARS or not text[0].isalnum()
        is_set_off = columns[0] in row.strong and not self._has_strong_labels
        is_name = text.endswith(":") or self._is_dense or is_set_off
        is_value = _VALUE.fullmatch(text) and not _LONG_WORD.search(text)
        return columns[0] == self._columns[0] and is_name and not is_value


def _has_groups(rows: Sequence[Row], columns: Sequence[int]) -> bool:
    """Whether a label in the first column is that of rows without one below it, too."""
    if len(columns) < _MIN_HEADS or not rows or not rows[0].at(columns[0]):
        return False
    labels = [row.at(columns[0]) for row in rows if row.at(columns[0])]
    others = [bool(row.at(columns[1])) for row in rows if not row.at(columns[0])]
    are_labels = not any(_VALUE.fullmatch(text) and len(text) > 3 for text in labels)
    are_many = 1 < len(labels) == len(set(labels)) <= len(others)
    return are_labels and are_many and _FEW * sum(others) >= (_FEW - 1) * len(others)


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
    if not is_list or any(_VALUE.fullmatch(row.at(column)) for row in named):
        return rows
    found, path = list[Row](), dict[int, str]()
    for row in rows:
        cells, label = list(row.cells), row.at(column)
        if label and column not in row.from_above and not _TOTAL.match(label):
            level = bisect_right(levels, row.indent)
            path = {its: text for its, text in path.items() if its < level and text != label}
            cells[column] = ", ".join([*path.values(), label])
            path[level] = label[:_MAX_LABEL_CHARS]
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
        is_key = text.endswith(":") or is_set_off or len(columns) == 2
        if after and is_key and len(text) <= _MAX_LABEL_CHARS and any(map(str.isalpha, text)):
            parts.append(f"{text.rstrip(': ')}: {row.cells[after[0]]}")
            place += 2
        else:
            parts.append(text)
            place += 1
    return parts
