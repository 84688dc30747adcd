"""A table of a grid whose head is known: its columns' names, its sections and its rows.

- the names of several rows are joined ("Q1 Sales"),
- without a head, keys and their values (`Key: value`),
- a section's row: one cell over the rows that it names; it goes with each passage of them,
- a day in a head that others below go on with, as a section's row,
- labels that belong to rows below (`row_labels`).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence, Set

from qa_service.retrieval.documents import BlockList, row_text
from qa_service.retrieval.formats.cells import Row
from qa_service.retrieval.formats.grid_sections import Sections
from qa_service.retrieval.formats.row_labels import TIMES, TOTAL, grouped, has_groups, labelled
from qa_service.retrieval.formats.table_heads import (
    FEW,
    MAX_LABEL_CHARS,
    MIN_HEADS,
    SAMPLE_ROWS,
    VALUE,
    columns_of,
    is_strong,
    may_be_head,
    reach_of,
    value_columns,
)

_KEYED = re.compile(r"[^\W\d][^:]{1,30}:\s+\S")
_DIGIT, _NO_SIGN = re.compile(r"\d"), re.compile(r"[\d\s]+")
_DAY = re.compile(r"(?:day \d+|(?:mon|tues|wednes|thurs|fri|satur|sun)day\b).{0,30}", re.IGNORECASE)
_LONG_WORD = re.compile(r"[^\W\d_]{4}")
_CODED = re.compile(r"\([^()\s]{1,5}\) \S")
"""A code and what it stands for: the cell of a legend."""
MAX_CAPTION_CHARS = 200
"""Longer titles are paragraphs: a caption goes with each passage of the rows."""


class GridTable:
    """A table whose head is known.

    Args:
        body: The rows below, by which it is known whether others go on with it.
        has_sections: Whether a row of one cell may name the rows below it.
        is_form: Whether it has keys and their values.
        has_blanks: Whether it has keys, and empty cells for their values.
    """

    def __init__(
        self,
        head: Sequence[Row],
        body: Sequence[Row],
        *,
        has_sections: bool,
        is_form: bool = False,
        has_blanks: bool = False,
    ) -> None:
        self._names = _names(head)
        self._head = [row.cells for row in head]
        self._columns = columns_of([*head, *body])
        self._reach = reach_of([*head, *body[:SAMPLE_ROWS]])
        self.is_named, self.is_wide = any(self._names), len(self._columns) > 2
        firsts = [self._columns[0] in row.strong for row in body if len(row.columns()) > 1]
        labels = [row.at(self._columns[0]) for row in body if len(row.columns()) > 1]
        self._has_times = bool(labels) and all(map(TIMES.match, filter(None, labels)))
        self._has_strong_labels = 2 * sum(firsts) > len(firsts)
        self._has_groups = has_groups(body[:SAMPLE_ROWS], self._columns, has_head=bool(head))
        self._label = self._columns[int(self._has_groups)] if self._columns else 0
        self._has_sections = has_sections and len(self._columns) > 1
        self._has_pairs = not head and _has_pairs(body, self._columns)
        self._has_blanks = has_blanks
        self._values = value_columns(body)
        cells = [(n, row.cells[n]) for row in body[:SAMPLE_ROWS] for n in row.columns()]
        self._words = {n for n, text in cells if _is_word(text)} - self._values
        keys = {n for row in body for n in row.columns() if row.cells[n].endswith(":")}
        self._keys = keys.union(self._columns[:1]) if is_form else None
        counts = sorted(count for row in body[:SAMPLE_ROWS] if (count := len(row.columns())) > 1)
        self._is_wide_body = bool(counts)
        self._is_dense = bool(counts) and 2 * counts[len(counts) // 2] > len(self._columns) > 2
        self._first_day = self._without_day(body)

    def _without_day(self, body: Sequence[Row]) -> str:
        """A day in the place of a column's name, where others name the rows below them."""
        days = [n for n, name in enumerate(self._names) if _DAY.fullmatch(name)]
        apart = (row for row in body if self._is_apart(row, is_below=False))
        if len(days) != 1 or not any(_DAY.fullmatch(row.cells[row.columns()[0]]) for row in apart):
            return ""
        name, self._names[days[0]] = self._names[days[0]], ""
        return name

    def goes_on_with(self, rows: Sequence[Row]) -> bool:
        """Whether rows below an empty one belong to the table: they hold what its columns do."""
        first, columns = rows[0], rows[0].columns()
        is_set_off = is_strong(first) and (
            2 * len(columns) <= len(self._columns) or may_be_head(rows, 0)
        )
        has_head = len(rows) > 1 and (first.is_head or is_set_off)
        more = set(columns) - self._reach
        has_number = more == set(columns[-1:]) and VALUE.fullmatch(first.cells[columns[-1]])
        is_wide = len(columns) > FEW and has_number  # its column needs no name
        if has_head or not self._names or (more and not is_wide):
            return False
        if first.cells not in self._head and self._has_name_in(first):
            return False
        if self._is_dense and len(self._columns) > MIN_HEADS and self._are_pairs(rows):
            return False
        values = [column for column in columns if column in self._values]
        if values:
            return 2 * sum(bool(VALUE.fullmatch(first.cells[c])) for c in values) > len(values)
        has_other_head = any(not VALUE.fullmatch(first.at(c)) for c in value_columns(rows[1:]))
        return 2 * len(columns) > len(self._columns) and not has_other_head

    def _has_name_in(self, row: Row) -> bool:
        """Whether a cell of a row, not its label, is its column's name: another head."""
        return any(row.cells[n] in self._names[n : n + 1] for n in row.columns()[1:])

    def _are_pairs(self, rows: Sequence[Row]) -> bool:
        """Whether rows are keys and their values, none of them a total, below a wide table."""
        label, value = self._columns[:2]
        return all(
            row.columns() == [label, value]
            and VALUE.fullmatch(row.cells[value])
            and not TOTAL.match(row.cells[label])
            for row in rows
        )

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
        names = [] if goes_on else self._unwritten(rows)
        if self._first_day and not goes_on:
            if caption:
                out.paragraph(caption, at)
            caption, at = self._first_day, rows[0].line if rows else at
        last = max((n for n, row in enumerate(rows) if len(row.columns()) > 1), default=-1)
        apart = {n for n, row in enumerate(rows) if self._is_apart(row, is_below=n > last)}
        sections = Sections(caption, at, self._columns[0] if self._columns else 0)
        for place, row in enumerate(rows):
            if place not in apart and row.cells in self._head:
                continue
            above = sections.caption
            if place in apart:
                below = (rows[n] for n in range(place + 1, len(rows)) if n not in apart)
                sections.begin(row, itertools.islice(below, SAMPLE_ROWS))
            elif not sections.end(row):
                held.append(row)
                continue
            self._add(out, held, *above, goes_on=goes_on, names=names)
            held, names, goes_on = [row] if place not in apart else [], [], True
        self._add(out, held, *sections.caption, goes_on=goes_on, names=names)

    def _unwritten(self, rows: Sequence[Row]) -> list[str]:
        """The columns' names, if below all but the first one is empty: no row has them.

        Values, keys with theirs, and sentences are no names, but a line above the rows.
        """
        names = list(dict.fromkeys(filter(None, self._names)))
        used = {column for row in rows for column in row.columns()}
        is_empty = self._has_sections and used <= set(self._columns[:1])
        are_names = not any(VALUE.fullmatch(name) or _KEYED.match(name) for name in names)
        are_short = all(len(name) <= MAX_CAPTION_CHARS for name in names)
        return names if is_empty and are_names and are_short and len(names) > 1 else []

    def _add(
        self,
        out: BlockList,
        rows: Sequence[Row],
        caption: str,
        at: int,
        *,
        goes_on: bool,
        names: Sequence[str],
    ) -> None:
        is_title_or_section = bool(rows or names) or not goes_on
        if caption and not (is_title_or_section and len(caption) <= MAX_CAPTION_CHARS):
            out.paragraph(caption, at)
            caption = ""
        above = [(at, [*[""] * len(self._names), *names])] if names else []
        out.table(self._names, [*above, *self._written(rows)], caption, at, goes_on=goes_on)

    def _written(self, rows: Sequence[Row]) -> list[tuple[int, Sequence[str]]]:
        """Rows as a table has them; a cell over several columns is the first one's."""
        found = rows if self._keys is not None else labelled(rows, self._label)
        found = grouped(found, self._columns[0]) if self._has_groups else found
        return [(row.line, self._cells(row)) for row in found]

    def _cells(self, row: Row) -> list[str]:
        """A row's cells; keys and their values stand behind those that have names."""
        if not self._names:
            return paired(row, self._keys, has_pairs=self._has_pairs, has_blanks=self._has_blanks)
        columns = row.columns()
        is_pair = len(columns) == 2 and bool(VALUE.fullmatch(row.cells[columns[1]]))
        keys = [n for n, column in enumerate(columns)
                if (row.cells[column].endswith(":") or (is_pair and n == 0))
                and self._is_key(row.cells[column], column)]  # fmt: skip
        if not keys:
            return ["" if n in row.from_left else cell for n, cell in enumerate(row.cells)]
        parts = [self._named(row, column) for column in columns[: keys[0]]]
        for start, end in itertools.pairwise([*keys, len(columns)]):
            key, *values = (row.cells[column] for column in columns[start:end])
            if len(values) == 1:
                parts.append(f"{key.rstrip(': ')}: {values[0]}")
            else:
                parts += [key, *(self._named(row, one) for one in columns[start + 1 : end])]
        return [*[""] * len(self._names), *parts]

    def _named(self, row: Row, column: int) -> str:
        names = [name.rstrip(":") for name in self._names[column : column + 1]]
        return row_text(names, [row.cells[column]])

    def _is_key(self, text: str, column: int) -> bool:
        """Whether a cell, as a total, is the key of the next one, and no value of its column."""
        name, *of_next = self._names[column : column + 2] or [""]
        is_column = column == self._columns[0] or column in self._words or name in of_next
        return (
            bool(name)
            and not is_column
            and len(text) <= MAX_LABEL_CHARS
            and not VALUE.fullmatch(text)
        )

    def _is_apart(self, row: Row, *, is_below: bool) -> bool:
        """Whether a row names the rows below it, or is a note below the table."""
        columns = row.columns()
        if len(columns) != 1 or not self._has_sections:
            return False
        text = row.cells[columns[0]]
        if self._has_times and columns[0] == self._columns[0] and TIMES.match(text):
            return False
        if set(self._columns) <= row.from_left | set(columns):
            return True
        if is_below and (self._is_wide_body or not row.from_left):
            is_total = columns[0] in self._values and VALUE.fullmatch(text)
            return not is_total and (len(text) > MAX_LABEL_CHARS or not text[0].isalnum())
        is_set_off = columns[0] in row.strong and not self._has_strong_labels
        is_name = text.endswith(":") or self._is_dense or is_set_off
        is_value = VALUE.fullmatch(text) and not _LONG_WORD.search(text)
        is_no_cell = columns[0] == self._columns[0] or columns[0] in self._values
        return is_no_cell and is_name and not is_value


def _is_word(text: str) -> bool:
    return not (VALUE.fullmatch(text) or text.endswith(":") or TOTAL.match(text))


def _names(head: Sequence[Row]) -> list[str]:
    """The columns' names: of several rows, joined."""
    if not head:
        return []
    width = max(len(row.cells) for row in head)
    rows = [[row.at(column) for column in range(width)] for row in head]
    repeated = {name for name, times in Counter(filter(None, rows[-1])).items() if times > 1}
    corner = min(row.columns()[0] for row in head)
    first = corner + (rows[-1][corner] not in repeated)
    for texts in rows[:-1] if repeated else ():  # "Q1" stands over the first of its columns alone
        for column in range(first + 1, width):
            texts[column] = texts[column] or texts[column - 1]
    found = [" ".join(dict.fromkeys(filter(None, names))) for names in zip(*rows, strict=True)]
    merged = itertools.takewhile(
        lambda n: found[n] == found[corner] and all(n in row.from_left for row in head),
        range(corner + 1, width),
    )
    reach = 1 + sum(1 for _ in merged)
    if 2 * reach > width - corner and reach >= MIN_HEADS:  # a title, over the labels too
        found[corner + 1 : corner + reach] = [""] * (reach - 1)
    return found


def _has_pairs(rows: Sequence[Row], columns: Sequence[int]) -> bool:
    """Whether keys and their values stand by turns: words, and numbers with the same signs."""
    sample = rows[:SAMPLE_ROWS]
    if len(columns) < 4 or len(columns) % 2 or len(sample) < 2:
        return False
    keys, values = ([[row.at(n) for row in sample] for n in columns[i::2]] for i in (0, 1))
    are_filled = [[bool(cell) for cell in column] for column in values]
    if are_filled != [[bool(cell) for cell in column] for column in keys]:
        return False
    signs = [set(_NO_SIGN.sub("", "".join(column))) for column in values]
    are_alike = bool(set.intersection(*signs)) or not any(signs)
    has_numbers = all(_DIGIT.search(cell) for column in values for cell in column if cell)
    return are_alike and has_numbers and not any(_DIGIT.search(c) for one in keys for c in one)


def paired(
    row: Row, keys: Set[int] | None = None, *, has_pairs: bool = False, has_blanks: bool = False
) -> list[str]:
    """A row's cells where no head names them: a key is written before its value.

    Args:
        keys: The columns of a form's keys.
        has_pairs: Whether each second cell is the value of the one before.
        has_blanks: Whether a key before an empty cell has no value.
    """
    columns = row.columns()
    parts, place = list[str](), 0
    is_pair = len(columns) == 2 and not (row.is_head or are_keyed(row))
    is_pair &= not all(": " in row.cells[column] for column in columns)
    is_pair &= keys is None or (columns[0] in keys and not is_strong(row))
    is_pair &= not all(_CODED.match(row.cells[column]) for column in columns)
    while place < len(columns):
        column, *after = columns[place : place + 2]
        text = row.cells[column]
        is_blank = has_blanks and _is_before_blank(row, column)
        if is_blank or (after and _is_key(row.cells[after[0]], text)):
            after = []  # another key
        is_set_off = column in row.strong and row.strong.isdisjoint(after)
        is_key = text.endswith(":") or is_set_off or is_pair
        is_key |= has_pairs and len(columns) % 2 == 0
        if after and is_key and len(text) <= MAX_LABEL_CHARS and any(map(str.isalpha, text)):
            parts.append(f"{text.rstrip(': ')}: {row.cells[after[0]]}")
            place += 2
        else:
            parts.append(text)
            place += 1
    return parts


def have_values_by_turns(row: Row) -> bool:
    """Whether words and other cells, some of them numbers, are by turns: keys and their values."""
    texts = [row.cells[column] for column in row.columns()]
    has_number = any(map(VALUE.fullmatch, texts[1::2]))
    return len(texts) > 2 and len(texts) % 2 == 0 and has_number and not any(
        map(VALUE.fullmatch, texts[::2]))  # fmt: skip


def _is_key(text: str, before: str) -> bool:
    """Whether a text is a key without a value, or, next to a key, has one of its own."""
    return text.endswith(":") or (
        before.endswith(":") and bool(text[-1:] == "?" or _KEYED.match(text))
    )


def have_blanks(rows: Sequence[Row]) -> bool:
    """Whether most rows have words before empty cells alone, as a form has that is empty."""
    written = [row for row in rows if row.columns()]
    first = next((row for row in written if len(row.columns()) > 1), None)
    cells = (row.cells[column] for row in written for column in row.columns())
    return (
        first is not None
        and len(written) > 1
        and _is_blank(first)
        and 2 * sum(map(_is_blank, written)) > len(written)
        and not any(map(VALUE.fullmatch, cells))
    )


def _is_blank(row: Row) -> bool:
    return all(_is_before_blank(row, column) for column in row.columns())


def _is_before_blank(row: Row, column: int) -> bool:
    after = next((n for n in range(column + 1, len(row.cells)) if n not in row.from_left), None)
    return after is not None and not row.cells[after]


def are_keyed(row: Row) -> bool:
    """Whether each cell has a key and its value."""
    return all(_KEYED.match(row.cells[column]) for column in row.columns())
