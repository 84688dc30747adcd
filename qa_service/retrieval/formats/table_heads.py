"""Which rows of a table are its head, and what its cells are: names, values or units.

A head is what the format declares, or what is set off, or words (and years, dates, ranges) over
columns of numbers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from qa_service.retrieval.formats.cells import Row

MAX_HEAD_ROWS = 4
MIN_HEADS = 3
"""Fewer cells in a row may be a key and its value."""
SAMPLE_ROWS = 50
"""Rows below a head that are looked at to see whether its cells name what they hold."""
FEW = 4
"""One cell or row in four, or fewer, are an exception."""
_MAX_NAME_CHARS = 200
MAX_LABEL_CHARS = 60
"""Longer texts are no keys, nor names of the rows below them."""

VALUE = re.compile(
    r"[^\w\s]{0,3}\s?(?-i:[A-Z]{3}(?: |(?=\d+[.,]\d)))?"
    r"\d(?![^\W\d_]{3}|\d?\)\s).{0,30}|(?:[$€£]\s?)?[-–—.*]{1,5}|[x✓✔]|n/?a",  # noqa: RUF001, dashes
    re.IGNORECASE,
)
"""A number with its signs and unit, a date, or what stands for none; no name ("3Com", "Day 1")."""
_NUMBER_AS_NAME = re.compile(
    r"(?:19|20)\d\d(?!\d|[.,]\d).{0,25}|[$€£]?[\d,.]+\s?[-–]\s?[$€£]?[\d,.]+"  # noqa: RUF001, dashes
    r"|\d\d?([./-])\d\d?\1\d{2,4}|\d\d?:\d\d(?:\W+\d\d?:\d\d)?(?:\s?[ap]m)?",
    re.IGNORECASE,
)
"""A year ("2019 Budget"), a range, a date or a time, which may name a column."""
_TIME = re.compile(r"\d\d?:\d\d")
_NUMBER = re.compile(r"\d[\d.]*|\b(?:[ivx]{1,5}|[IVX]{1,5}|[A-Za-z])(?=[.)])")
_TIME_OF_DAY = re.compile(r"\d\d?[:.]\d\d\s?[ap]\.?m?\b.{0,30}", re.IGNORECASE)
_CODE = re.compile(r"\d{1,3}[A-Z]")
"""Of a class or a ward ("5B")."""
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]{3}")
_WORD_OR_UNIT = re.compile(r"[^\W\d_]{3}|\d\s?[^\W\d_]{2}")
_UNIT = re.compile(r"[(\[].{1,20}[)\]]|[%‰€$£¥]")


def num_head(rows: Sequence[Row], *, has_head: bool) -> int:
    """How many rows are the head of a table without titles."""
    if not rows or (len(rows) == 1 and not has_head):
        return 0
    keyed = [any(row.at(n).endswith(":") for n in row.columns()) for row in rows]
    if keyed[0] and 2 * sum(keyed) > len(rows) > 1 and not (has_head or rows[0].is_head):
        return 0  # a form
    first = itertools.takewhile(lambda row: row.is_head or is_strong(row), rows[:MAX_HEAD_ROWS])
    declared = max((count for count, row in enumerate(first, 1) if row.is_head), default=0)
    declared += sum(1 for _ in itertools.takewhile(lambda row: row.is_head, rows[declared:]))
    if 0 < declared < len(rows):
        return declared
    if (set_off := _num_set_off(rows)) is not None:
        return set_off
    if has_head:
        is_labelled = any(row.at(columns_of(rows)[0]) for row in rows[1:2])
        return 1 if is_labelled else _with_more_rows(rows)
    is_head = may_be_head(rows, 0) and (len(columns_of(rows)) > 2 or _heads_pairs(rows))
    return _with_more_rows(rows) if is_head else 0


def _num_set_off(rows: Sequence[Row]) -> int | None:
    """How many rows are a head that is set off; None if that does not say."""
    strong, most = 0, min(len(rows), MAX_HEAD_ROWS + 1)
    while strong < most and is_strong(rows[strong]) and may_be_head(rows, strong):
        if strong and _is_section(rows[strong], rows[strong - 1]):
            break
        strong += 1
        if strong < most and _names_all(rows, strong):
            break
    if 0 < strong < most:
        others = list(map(is_strong, rows[strong : strong + SAMPLE_ROWS]))
        is_usual = len(others) >= MIN_HEADS and 2 * sum(others) > len(others)
        recurring = (n for n in range(strong) if _recurs(rows[n], rows[n + 1 :]))
        if is_usual and (first_value := next(recurring, strong)) < strong:
            return first_value
        if not is_usual or not may_be_head(rows, strong):
            return strong + _has_units(rows, strong) if strong > 1 else _with_more_rows(rows)
    return None


def _recurs(row: Row, below: Sequence[Row]) -> bool:
    """Whether a cell of a row, not its label, is a value below; a head may be repeated whole."""
    columns = row.columns()[1:]
    shared = (
        sum(row.cells[n] == one.at(n) for n in columns if n not in one.from_above) for one in below
    )
    return any(0 < number <= len(columns) / 2 for number in shared)


def _names_all(rows: Sequence[Row], count: int) -> bool:
    """Whether the first rows name each column, and the next does not: it lacks some, or is long."""
    names, below, columns = rows[count - 1], rows[count], columns_of(rows)
    if VALUE.fullmatch(below.at(columns[0])):
        return True
    is_named = all(any(row.at(n) for row in rows[:count]) for n in columns)
    down = (names.from_above | below.from_above) - _down_the_rows(rows, count)
    is_merged = down or names.from_left - below.from_left
    may_name = all(0 < len(below.at(n)) <= MAX_LABEL_CHARS for n in columns)
    return is_named and not is_merged and not may_name


def _heads_pairs(rows: Sequence[Row]) -> bool:
    """Whether the first of rows of two cells is a head, and not a key with its value."""
    keys = [(row, row.columns()[0]) for row in rows]
    are_named = sum(
        row.cells[key].endswith(":") or (key in row.strong and not is_strong(row))
        for row, key in keys
    )
    columns = columns_of(rows)
    firsts, lasts = ([row.at(column) for row in rows] for column in (columns[0], columns[-1]))
    has_head = _names_values(lasts) or (len({"", *firsts}) > 2 and _names_values(firsts))
    return 2 * are_named <= len(rows) and has_head


def _names_values(cells: Sequence[str]) -> bool:
    """Whether the first of a column's cells is a name, and all others are values."""
    others = [cell for cell in cells[1:] if cell not in {"", cells[0]}]
    has_values = all(VALUE.fullmatch(cell) or _UNIT.fullmatch(cell) for cell in others)
    return has_values and not VALUE.fullmatch(cells[0])


def words_and_numbers(rows: list[Row]) -> list[Row]:
    """Two rows of which one has numbers and the other words: that of the names first; else none.

    Words name the numbers above them, but sentences and what years or ranges are of do not.
    """
    columns = rows[0].columns()
    if len(rows) != 2 or len(columns) < 2 or rows[1].columns() != columns:
        return []
    numbers, words = ([row.cells[column] for column in columns] for row in rows)
    are_words = all(map(_WORD.search, words)) and not any(map(VALUE.fullmatch, words))
    if not are_words or not all(map(VALUE.fullmatch, numbers)):
        return []
    are_names = len({*words}) == len(words) and not any(map(_NUMBER_AS_NAME.fullmatch, numbers))
    are_names &= all(len(text) <= MAX_LABEL_CHARS and text[-1] != "." for text in words)
    return rows[::-1] if are_names else rows


def _has_units(rows: Sequence[Row], place: int) -> bool:
    """Whether a row without a label has words over each column of values."""
    row, values = rows[place], value_columns(rows[place + 1 : place + SAMPLE_ROWS])
    are_words = all(row.at(n) and not VALUE.fullmatch(row.at(n)) for n in values)
    return are_words and bool(values) and not row.at(columns_of(rows)[0])


def _with_more_rows(rows: Sequence[Row]) -> int:
    """How many rows are the head, of which the first one is."""
    further = range(1, min(MAX_HEAD_ROWS, len(rows) - 1))
    return 1 + sum(1 for _ in itertools.takewhile(lambda n: _goes_on_head(rows, n), further))


def _goes_on_head(rows: Sequence[Row], place: int) -> bool:
    row, above = rows[place], rows[place - 1]
    if _is_section(row, above):
        return False
    from_above = row.from_above - _down_the_rows(rows, place)
    texts = [row.cells[column] for column in row.columns() if column not in row.from_above]
    if not texts or any(column in from_above for column in row.columns()):
        return bool(from_above)
    if all(_UNIT.fullmatch(text) for text in texts):
        return True
    if _is_below_names(row, above) or len(row.at(above.columns()[0])) > MAX_LABEL_CHARS:
        return False
    below = rows[place + 1 : place + SAMPLE_ROWS]
    if len(texts) == 1 and any(len(one.columns()) == 1 for one in below):
        return False  # it names the rows below, as others do
    is_labelled, values = bool(row.at(above.columns()[0])), value_columns(below)
    has_words = all(row.at(column) for column in values) and len(values) > is_labelled
    may_go_on = has_words or (bool(above.from_left) and not is_labelled)
    may_go_on |= bool(above.from_left) and _alone_is_full(rows, place)
    return may_go_on and may_be_head(rows, place)


def _alone_is_full(rows: Sequence[Row], place: int) -> bool:
    """Whether one row has a name for each column, that above it none for the first."""
    columns = columns_of(rows)
    is_full = [all(map(row.at, columns)) for row in rows[:SAMPLE_ROWS]]
    return is_full[place] and sum(is_full) == 1 and not rows[place - 1].at(columns[0])


def _down_the_rows(rows: Sequence[Row], place: int) -> set[int]:
    """The columns where a merged cell goes over further rows than a head has."""
    further = [row.from_above for row in rows[place : MAX_HEAD_ROWS + 1]]
    return set(further[0]).intersection(*further)


def _is_section(row: Row, above: Row) -> bool:
    """Whether merged cells go over columns that have names: those further down say more."""
    merged = row.from_left - row.from_above
    return bool(merged) and all(above.at(n) and n not in above.from_left for n in merged)


def _is_below_names(row: Row, above: Row) -> bool:
    """Whether the row above a row names its columns, so that it is none of the head."""
    columns, names = row.columns(), above.columns()
    is_over_all = len(columns) < len(names) <= len(columns) + len(row.from_left)
    if len(columns) < MIN_HEADS and is_over_all:
        return True
    if len(columns) == 1:
        return columns[0] in row.strong and bool(above.at(columns[0]))
    return is_strong(above) and not is_strong(row) and row.from_left >= above.from_left


def may_be_head(rows: Sequence[Row], place: int) -> bool:
    """Whether each cell may name its column: it is words, or `_may_name` says so."""
    row, above = rows[place], rows[place - 1] if place else Row(0, [])
    if _goes_on([one.at(columns_of(rows)[0]) for one in rows[place : place + MIN_HEADS]]):
        return False
    parted = {n for one in rows[place + 1 : place + MIN_HEADS] for n in one.columns()}
    numbers = [
        column
        for column in row.columns()[1:]
        if VALUE.fullmatch(row.at(column))
        and column + 1 not in row.from_left & parted
        and not (place == 0 and _is_name_over_nothing(rows, column))
    ]
    if not numbers:
        return all(len(row.at(column)) <= _MAX_NAME_CHARS for column in row.columns()[1:])
    has_label = bool(row.at(columns_of(rows)[0]))
    are_times = all(_TIME.fullmatch(row.at(column)) for column in numbers)
    is_apart = is_strong(row) or are_times or not has_label
    if _counts_up(list(map(row.at, numbers))) and is_apart:
        below = [list(filter(None, map(one.at, numbers))) for one in rows[place + 1 : place + 2]]
        return not any(map(_counts_up, below))
    # A head may be repeated below.
    rest = [one for one in rows[place + 1 : place + SAMPLE_ROWS] if one.cells != row.cells]
    has_words = len(numbers) + 1 < len(row.columns())
    if has_words and len(numbers) >= MIN_HEADS and all(_CODE.fullmatch(row.at(n)) for n in numbers):
        return not any(_LETTER.search(one.at(n)) for one in rest for n in numbers)
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


def _is_name_over_nothing(rows: Sequence[Row], column: int) -> bool:
    """Whether a number with words ("5 year trend") that is set off has no cell below it."""
    has_words = is_strong(rows[0]) and bool(_WORD.search(rows[0].at(column)))
    return has_words and not any(row.at(column) for row in rows[1:SAMPLE_ROWS])


def _goes_on(labels: Sequence[str]) -> bool:
    """Whether labels are alike but for their numbers: times, dates, codes, "Week 1"."""
    shapes = {_NUMBER.sub("0", label) for label in labels}
    are_alike = len(set(labels)) == MIN_HEADS and len(shapes) == 1 and "0" in shapes.pop()
    return are_alike or (len(labels) == MIN_HEADS and all(map(_TIME_OF_DAY.fullmatch, labels)))


def _counts_up(texts: Sequence[str]) -> bool:
    """Whether numbers are those of days or weeks, in order; a next month may begin at 1.

    So are times of day that are no cells' own: they go on by the same step.
    """
    if len(texts) < MIN_HEADS:
        return False
    if all(map(_TIME.fullmatch, texts)):
        minutes = [60 * int(text[:-3]) + int(text[-2:]) for text in texts]
        steps = {after - before for before, after in itertools.pairwise(minutes)}
        return len(steps) == 1 and steps.pop() > 0
    if not all(text.isdecimal() and len(text) < 4 for text in texts):
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
    further = below[MAX_HEAD_ROWS:] if len(below) > 2 * MAX_HEAD_ROWS else below
    such = sum(map(bool, map(_NUMBER_AS_NAME.fullmatch, further)))
    may_name = bool(_NUMBER_AS_NAME.fullmatch(text)) and (has_numbers or not is_alone)
    return may_name and FEW * such <= sum(map(bool, further))


def value_columns(rows: Sequence[Row]) -> set[int]:
    """The columns beyond the first in which most rows have values."""
    found = set[int]()
    for column in columns_of(rows)[1:]:
        cells = [row.at(column) for row in rows[:SAMPLE_ROWS]]
        held = [bool(VALUE.fullmatch(one)) for one in cells if one and not _UNIT.fullmatch(one)]
        if 2 * sum(held) > len(held):
            found.add(column)
    return found


def columns_of(rows: Sequence[Row]) -> list[int]:
    return sorted({column for row in rows[:SAMPLE_ROWS] for column in row.columns()})


def reach_of(rows: Iterable[Row]) -> set[int]:
    """The columns with a text, all those of a merged cell."""
    return {column for row in rows for column, cell in enumerate(row.cells) if cell}


def is_strong(row: Row) -> bool:
    """Whether a row is set off: each of its cells but a table's corner."""
    columns = row.columns()
    return len(columns) > 1 and all(column in row.strong for column in columns)
