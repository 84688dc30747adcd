"""Where lines end that may be a table without rules: those near each other, of several pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from qa_service.retrieval.formats.pdf_columns import gap, is_value
from qa_service.retrieval.formats.pdf_lines import Piece, is_mark

MIN_ROWS = 3
"""Lines with several cells of a table without rules."""
_MAX_RUN = 500
"""Lines of a table on one page."""
_GAP_IN_TABLE = 3.0
"""Of a line's size; a wider one ends a table without rules."""
_GAP_IN_WIDE_TABLE, _MANY_CELLS = 6.0, 4
"""The same between lines that have this number of pieces, or more."""
_MAX_ALONE = 2
"""Lines of one piece in a row, but for those that begin where cells of wide rows do."""
_MIN_CELLS = 2
"""Of wide rows, which begin at one place; words far apart in a justified text do not."""
_BELOW = 1.0
"""Points; lines of a cell begin so near to one another."""
_WRAPPED = 1.35
"""Of a font's size; lines of one cell are no farther apart."""


def end_of_run(lines: Sequence[list[Piece]], start: int) -> int:
    """Where lines end that begin here and have several pieces, all but a few.

    A line that names the values below it, where there were values before, begins another table.
    """
    end, alone, lefts = start, 0, Counter[int]()
    for number in range(start, min(len(lines), start + _MAX_RUN)):
        line = lines[number]
        if number > start and gap(lines[number - 1], line) > _most_gap(
            lines[max(start, end - 1)], line
        ):
            break
        if len(line) > 1:
            end, alone = number + 1, 0
            if len(line) >= _MANY_CELLS:
                lefts.update(round(piece.box.left) for piece in line[1:])
        elif number == start:
            break
        elif max(map(lefts.__getitem__, _near(line[0].box.left))) < _MIN_CELLS:
            alone += 1
            if alone > _MAX_ALONE:
                break
    has_values = False
    for place in range(start, end - 1):
        if has_values and _names_values(lines[place], lines[place + 1]):
            return place
        has_values |= any(map(is_value, lines[place]))
    while start < end < len(lines) and _wraps(lines[end - 1], lines[end]):
        end += 1
    return end


def _most_gap(above: list[Piece], line: list[Piece]) -> float:
    """How far two lines of a table may be apart, of their size."""
    fewer, more = sorted((len(above), len(line)))
    is_row = fewer >= _MANY_CELLS and 3 * fewer >= 2 * more
    return _GAP_IN_WIDE_TABLE if is_row else _GAP_IN_TABLE


def _near(left: float) -> range:
    return range(round(left) - 1, round(left) + 2)


def _names_values(line: list[Piece], below: list[Piece]) -> bool:
    """Whether a line names the values of the line below it, all of its pieces but the label."""
    label, *values = below
    if len(line) < MIN_ROWS or len(values) != len(line) or line[0].box.left < label.box.right:
        return False
    are_above = all(
        name.box.left < value.box.right and value.box.left < name.box.right
        for name, value in zip(line, values, strict=True)
    )
    return are_above and all(map(is_value, values)) and not any(map(is_value, line))


def _wraps(above: list[Piece], line: list[Piece]) -> bool:
    """Whether a line but goes on with a cell of the line above, not with its first."""
    first, rest = above[0].words, [piece.words for piece in above[1:]]
    begin = [first[1:] if is_mark(first[0].text) else [], *rest] if rest else [first]
    lefts = [words[0].box.left for words in begin if words]
    is_below = any(abs(left - line[0].box.left) < _BELOW for left in lefts)
    return len(line) == 1 and is_below and gap(above, line) < _WRAPPED
