"""Tables of lines whose pieces stand below one another in columns, without ruled lines.

The lines with most pieces say where columns are. Lines above that have one piece, or fewer than
there are columns, name them; a name that stands over the middle of several columns is for each.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from qa_service.retrieval.formats.cells import Cell, Grid
from qa_service.retrieval.formats.pdf_boxes import Box, around
from qa_service.retrieval.formats.pdf_cards import card_at
from qa_service.retrieval.formats.pdf_columns import (
    HEAD_GAP,
    Columns,
    cell_of,
    columns_in,
    fitted,
    gap,
    is_value,
    span_of,
    stand_in,
)
from qa_service.retrieval.formats.pdf_lines import NUMBERED, Piece, cut_at, is_mark
from qa_service.retrieval.formats.pdf_runs import MIN_ROWS, end_of_run

_FITTING = 0.7
"""Of its pieces; so many stand in one column each."""
_AMOUNT = re.compile(r"[$€£]?\d")
_MAX_HEAD_LINES = 8
_GAP_IN_HEAD = 2.0
_TITLE_SIZE = 1.15
"""Of the table's font; a larger line above it is its title."""
_TITLES = 2
"""Lines of a page, at most, above a table that goes on from the page before."""
_NAME_WORDS = 6
"""Words of a name that goes over several columns, at most."""
_APART = 1.3
"""Times the distance of lines in a row; rows of texts that are set apart are so far apart."""
_HALF = 0.8
"""Of a font's size; a label between two lines of its group is so near to both."""
_OFF_MIDDLE = 0.25
"""Of a column's width; a name over several columns stands so near to their middle."""
_WRAPPED = 1.35
"""Of a font's size; lines of one cell are no farther apart."""
_CLAUSE = re.compile(r"\d{1,2}(?:\.\d{1,2})+\.?")
"""The number of a clause."""
_OPEN = re.compile(r"(?:[,&]|\b(?:and|or|of))$")
"""How a label ends that goes on in the next line."""
_WORD = re.compile(r"[^\W\d_]{2}")
_NUMBERS = re.compile(r"\d+(?:\s?[ap]\.?m?\b\.?)?", re.IGNORECASE)
"""Of a label; times with their halves of the day."""

_Spread = dict[int, tuple[int, int]]


class Table(NamedTuple):
    """A table, and where it stands.

    Attributes:
        page: Its number, from 1.
        is_tagged: Whether the file names it.
        columns: Of a table without rules.
    """

    box: Box
    grid: Grid
    page: int = 0
    is_tagged: bool = False
    columns: Sequence[tuple[float, float]] = ()


def split_tables(
    lines: Sequence[list[Piece]], before: Sequence[tuple[float, float]] = ()
) -> list[list[list[Piece]] | Table]:
    """A region's lines, with a table in the place of those that stand in columns.

    Args:
        before: The columns of a table at the end of the page before, which may go on here.
    """
    found = list[list[list[Piece]] | Table]()
    text, start = list[list[Piece]](), 0
    while start < len(lines):
        end = end_of_run(lines, start)
        near = before if start <= _TITLES else ()
        table = _aligned_table(lines[start:end], text, near) if end - start >= MIN_ROWS else None
        if table is None and (card := card_at(lines, start)):
            grid, end = card
            table = Table(around([one.box for line in lines[start:end] for one in line]), grid)
        if table:
            found += [text, table] if text else [table]
            text, start = [], end
        else:
            text.append(lines[start])
            start += 1
    return [*found, text] if text else found


def _aligned_table(
    lines: Sequence[list[Piece]],
    above: list[list[Piece]],
    before: Sequence[tuple[float, float]],
) -> Table | None:
    """A table of lines whose pieces stand below one another; None if they do not.

    Args:
        above: Lines above these, from which those that name columns are taken, and to which titles
            are given.
        before: The columns of a table that may go on here.
    """
    full = [line for line in lines if len(line) > 1]
    columns = columns_in(full)
    if len(before) > len(columns) and stand_in(full, before):
        columns = list(before)
    if len(full) < MIN_ROWS or len(columns) < 2 or _are_items(full, columns):
        return None
    spans = [(piece, span_of(columns, piece.box)) for line in full for piece in line]
    fitting = sum(first == last for _, (first, last) in spans)
    if fitting < _FITTING * len(spans):
        return None
    size = full[-1][0].size
    titles = list(itertools.takewhile(lambda line: _is_title(line, columns, size), lines))
    if len(titles) + MIN_ROWS > len(lines):
        return None
    above += titles
    lines = list(lines[len(titles) :])
    for _ in range(_MAX_HEAD_LINES):
        if not above or not (names := _names(above[-1], lines[0], columns)):
            break
        above.pop()
        lines.insert(0, names)
    whole = [fitted(line, columns) for line in lines]
    num_head = _num_head(whole, columns)
    if _are_keys(whole, columns):
        num_head, whole = 1, [whole[0], [piece for line in whole[1:] for piece in line]]
    grid = Grid()
    spread = _ruled_over(whole[:num_head], columns)
    for row in _head_rows(whole[:num_head], columns, spread):
        grid.add_row(_cells(row, columns, _spreads(row, columns, spread)), is_head=True)
    for row in _rows(_with_labels(whole[num_head:], columns), columns):
        grid.add_row(_cells(row, columns, [span_of(columns, piece.box) for piece in row]))
    box = around([piece.box for line in lines for piece in line])
    return Table(box, grid, columns=columns)


def _are_items(lines: Sequence[list[Piece]], columns: Columns) -> bool:
    """Whether lines are but texts with marks before them: items, or clauses with their numbers.

    All are, or most are and go over columns, which words far apart in another line make.
    """
    items = list(filter(_is_item, lines))
    spans = (span_of(columns, line[-1].box) for line in items)
    return len(items) == len(lines) or 2 * sum(one < last for one, last in spans) > len(lines)


def _is_item(line: list[Piece]) -> bool:
    marks = [is_mark(piece.text) or _CLAUSE.fullmatch(piece.text) for piece in line[:-1]]
    return all(marks) and bool(_WORD.search(line[-1].text))


def _names(line: list[Piece], below: list[Piece], columns: Columns) -> list[Piece]:
    """The names of columns that a line above a table holds; none if it holds none."""
    if gap(line, below) > _GAP_IN_HEAD:
        return []
    names = [name for piece in line for name in cut_at(piece, HEAD_GAP)]
    spans = [span_of(columns, name.box) for name in names]
    is_apart = all(one[1] < after[0] for one, after in pairwise(spans))
    is_narrow = all(first == last for first, last in spans) or len(names) > 1
    return names if is_apart and is_narrow and not _is_sentence(line) else []


def _is_value(piece: Piece) -> bool:
    """Whether a piece is a number, or has one to which dots lead."""
    return is_value(piece) or (piece.is_led and any(map(str.isdigit, piece.text)))


def _is_sentence(line: list[Piece]) -> bool:
    """Whether a line is alone, and too long for a column's name."""
    return len(line) == 1 and len(line[0].words) > _NAME_WORDS


def _is_title(line: list[Piece], columns: Columns, size: float) -> bool:
    """Whether a line is alone, large, or goes over columns in words that name none."""
    if len(line) == 1 or line[0].size > _TITLE_SIZE * size:
        return True
    long = [span_of(columns, piece.box) for piece in line if len(piece.words) > _NAME_WORDS]
    return any(first < last for first, last in long)


def _num_head(lines: Sequence[list[Piece]], columns: Columns) -> int:
    """How many lines name the columns of numbers below them; 0 if there are no numbers."""
    plain = [not any(map(_is_value, line)) for line in lines]
    if all(plain[: _MAX_HEAD_LINES + 1]):
        return 0
    num = plain.index(False)
    if any(map(_is_sentence, lines[1:num])):
        return 0  # a text below a row whose values have words
    while num > 1 and _are_names_and_amounts(lines[num - 2], lines[num - 1], columns):
        num -= 1
    sections = [len(line) == 1 and span_of(columns, line[0].box)[0] == 0 for line in lines]
    while num and sections[num - 1] and any(sections[num:]):
        num -= 1
    return num


def _are_keys(lines: Sequence[list[Piece]], columns: Columns) -> bool:
    """Whether the first line has keys side by side, and those below the lines of their values."""
    ends = [[piece.text.endswith(":") for piece in line] for line in lines]
    is_first = ends[0] == [True] * len(columns) and not any(map(any, ends[1:]))
    return is_first and not any(is_value(piece) for line in lines for piece in line)


def _are_names_and_amounts(names: list[Piece], line: list[Piece], columns: Columns) -> bool:
    """Whether a label with amounts ("$9 or less") is below names of all columns but the first."""
    is_corner = [span_of(columns, name.box) for name in names] == [
        (column, column) for column in range(1, len(columns))
    ]
    is_row = is_corner and len(line) == len(columns) and span_of(columns, line[0].box)[0] == 0
    return is_row and all(_AMOUNT.match(piece.text) for piece in line[1:])


def _ruled_over(lines: Iterable[list[Piece]], columns: Columns) -> _Spread:
    """The columns of names below which a rule goes over several; by the id of each.

    One that goes through other names is not seen.
    """
    found, pieces = _Spread(), list(itertools.chain.from_iterable(lines))
    for piece in pieces:
        left, top, right, bottom = piece.rule or piece.box
        over = [n for n, sides in enumerate(columns) if left < sum(sides) / 2 < right]
        is_hidden = any(
            one.box.top < top and bottom < one.box.bottom and left < one.box.left < right
            for one in pieces
            if one is not piece
        )
        if piece.rule and 1 < len(over) < len(columns) and not is_hidden:
            found[id(piece)] = over[0], over[-1]
    return found


def _head_rows(
    lines: Sequence[list[Piece]], columns: Columns, spread: _Spread
) -> list[list[Piece]]:
    """A head's lines as rows: a name over several lines is one, one over several columns apart."""
    rows = list[list[Piece]]()
    for line in lines:
        is_near = bool(rows) and gap(rows[-1][-1:], line) < _WRAPPED
        is_like = is_near and abs(rows[-1][0].size - line[0].size) < 1
        if is_like and all(first == last for first, last in _spreads(rows[-1], columns, spread)):
            rows[-1] += line
        else:
            rows.append(list(line))
    return rows


def _spreads(row: list[Piece], columns: Columns, spread: _Spread) -> list[tuple[int, int]]:
    """The columns that each name of a row is for: those that it stands over the middle of.

    Args:
        spread: What rules say of it; if they do of one, others are for their own columns.
    """
    own = [spread.get(id(piece)) or span_of(columns, piece.box) for piece in row]
    if 2 * len(row) > len(columns) or spread:
        return own
    found, free = list[tuple[int, int]](), 1
    pitch = (columns[-1][1] - columns[0][0]) / len(columns)
    for number, piece in enumerate(row):
        first, last = own[number]
        end = own[number + 1][0] if number + 1 < len(own) else len(columns)
        middle = (piece.box.left + piece.box.right) / 2
        fitting = [
            (right - left, left, right)
            for left in range(min(free, first), first + 1)
            for right in range(last, max(end, last + 1))
            if abs((columns[left][0] + columns[right][1]) / 2 - middle) < _OFF_MIDDLE * pitch
        ]
        if fitting and first > 0:
            _, first, last = max(fitting)
        found.append((first, last))
        free = last + 1
    return found


def _with_labels(lines: list[list[Piece]], columns: Columns) -> list[list[Piece]]:
    """Lines of which each has the label that stands halfway down the lines of its group."""
    firsts = [span_of(columns, line[0].box)[0] for line in lines]
    gaps = [gap(above, line) for above, line in pairwise(lines)]
    found, start, dropped = list(lines), 0, set[int]()
    for number in range(1, len(lines) - 1):
        if len(lines[number]) > 1 or firsts[number] or max(gaps[number - 1 : number + 1]) > _HALF:
            continue
        above = list(itertools.takewhile(firsts.__getitem__, range(number - 1, start - 1, -1)))
        below = range(number + 1, number + 1 + len(above))
        if not all(firsts[number + 1 : below.stop]) or below.stop > len(lines):
            return lines
        (label,) = lines[number]
        for place in (*above, *below):
            box = lines[place][0].box
            at = label.box._replace(top=box.top, bottom=box.bottom)
            found[place] = [replace(label, box=at), *lines[place]]
        start = below.stop
        dropped.add(number)
    return [line for number, line in enumerate(found) if number not in dropped]


def _rows(lines: Sequence[list[Piece]], columns: Columns) -> list[list[Piece]]:
    """Lines as rows: one that only goes on with the cells of the row above belongs to it."""
    rows = list[list[Piece]]()
    has_leaders = any(piece.is_led for line in lines for piece in line)  # a line for each entry
    tight = 0.0 if has_leaders else _tight_gap(lines, columns)
    for above, line in zip([None, *lines], lines, strict=False):
        is_text = not any(map(is_value, line))
        apart = gap(above, line) if above else inf
        is_lower = line[0].text[:1].islower()
        column = span_of(columns, line[0].box)[0]
        is_within = column > 0 or (len(line) == 1 and is_lower)
        is_item = (column == 0 or len(line) > 1) and bool(NUMBERED.fullmatch(line[0].words[0].text))
        is_item |= bool(rows) and column == 0 and _are_alike(rows[-1][0], line[0])
        is_alone = bool(rows) and len(rows[-1]) == 1
        is_label = is_alone and (is_lower or bool(_OPEN.search(rows[-1][0].text)))
        goes_on = apart < tight or (apart < _WRAPPED and (is_label or (is_text and is_within)))
        if goes_on and not is_item:
            rows[-1] += line
        else:
            rows.append(list(line))
    return rows


def _are_alike(label: Piece, other: Piece) -> bool:
    """Whether labels differ in their numbers alone, as times do."""
    shape = _NUMBERS.sub("0", other.text)
    return shape != other.text and _NUMBERS.sub("0", label.text) == shape


def _tight_gap(lines: Sequence[list[Piece]], columns: Columns) -> float:
    """Below which distance lines are of one row: of texts, if rows are set apart; else 0.

    Where most lines have all columns and one gap alone is wide, that is the head's.
    """
    gaps = sorted(gap(above, line) for above, line in pairwise(lines))
    if len(gaps) < 2 or any(is_value(piece) for line in lines for piece in line):
        return 0.0
    are_rows = 2 * sum(len(line) == len(columns) for line in lines) > len(lines) > MIN_ROWS
    if are_rows and gaps[-2] <= _APART * gaps[0]:
        return 0.0
    is_apart = gaps[0] < _WRAPPED and gaps[-1] > _APART * gaps[0]
    return (gaps[0] + _APART * gaps[0]) / 2 if is_apart else 0.0


def _cells(row: list[Piece], columns: Columns, spans: Iterable[tuple[int, int]]) -> list[Cell]:
    cells, ends = dict[int, list[Piece]](), dict[int, int]()
    for piece, (first, last) in zip(row, spans, strict=True):
        cells.setdefault(first, []).append(piece)
        ends[first] = max(ends.get(first, first), last)
    found, column = list[Cell](), 0
    while column < len(columns):
        after = min([one for one in cells if one > column] or [len(columns)])
        width = min(ends.get(column, column) - column + 1, after - column)
        found.append(cell_of([cells.get(column, [])], width))
        column += width
    return found
