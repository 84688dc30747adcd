"""The order in which the columns of a page are read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import ne

from qa_service.retrieval.formats.pdf_lines import NUMBER, Piece, lines_of

_MIN_LINES = 3
"""The minimum of lines of a column."""
_LIST_LINES = 6
"""The same of a column with words and numbers apart from them, such as a menu with prices."""
_PROSE_WORDS = 3.5
"""Words in a line of prose in a column, in the mean; cells of tables have fewer."""
_TEXT_WORDS = 4.5
"""The same of short parts whose lines are painted in turns."""
_NUMBERS_SHARE = 0.3
_PAINTED_APART = 3
"""Lines for each time that the painter goes from one part to the other, at a minimum."""
_LEVEL, _WIDE, _SAME_ROWS = 2.0, 1.3, 0.8
_ONE_COLUMN = 0.8
"""Lines for each piece of one column, at a minimum."""
_EDGE = 3.0
"""Points; lines of a column begin no farther from one another."""
_MAX_GUTTERS = 16
"""So many are tried: those that fewest pieces cross."""
_MAX_DEPTH = 6


def in_columns(pieces: Sequence[Piece], depth: int = 0) -> list[list[Piece]]:
    """Cuts a page into regions of one column, in the order in which they are read.

    A recursive cut, after G. Nagy and S. Seth, *Hierarchical representation of optically scanned
    documents* (ICPR 1984), with one difference: a piece that crosses a gutter, such as a running
    head or a wide table, does not hide it, but divides the page into bands above and below.
    """
    best, most = list[list[list[Piece]]](), 0
    for crossing, gutter in _gutters(pieces) if depth < _MAX_DEPTH else ():
        if len(pieces) - crossing <= most:
            break
        bands = _bands(pieces, gutter)
        in_two = sum(len(part) for band in bands if len(band) == 2 for part in band)
        if in_two > most:
            best, most = bands, in_two
    if not best:
        return [list(pieces)]
    return [region for band in best for part in band for region in in_columns(part, depth + 1)]


def _gutters(pieces: Sequence[Piece]) -> list[tuple[int, float]]:
    """Where a gutter may be, just left of a piece, after how many pieces cross it: the fewest."""
    lefts = sorted(piece.box.left for piece in pieces)
    rights = sorted(piece.box.right for piece in pieces)
    found = list[tuple[int, float]]()
    for edge in sorted({round(left / _EDGE) for left in lefts}):
        gutter = (edge - 0.5) * _EDGE
        left, right = bisect_right(rights, gutter), len(lefts) - bisect_left(lefts, gutter)
        crossing = len(pieces) - left - right
        if min(left, right) >= _MIN_LINES and 2 * crossing < len(pieces):
            found.append((crossing, gutter))
    return sorted(found)[:_MAX_GUTTERS]


def _bands(pieces: Sequence[Piece], gutter: float) -> list[list[list[Piece]]]:
    """The bands of a page, of one part or two, if there is a gutter just left of here."""
    crossing, others = list[Piece](), list[Piece]()
    for piece in pieces:
        box = piece.box
        (crossing if box.left < gutter < box.right else others).append(piece)
    crossing.sort(key=lambda piece: piece.box.middle)
    levels = [piece.box.middle for piece in crossing]
    between: list[list[Piece]] = [[] for _ in range(len(levels) + 1)]
    for piece in others:
        between[bisect_left(levels, piece.box.middle)].append(piece)
    bands, whole = list[list[list[Piece]]](), list[Piece]()
    for number, part in enumerate(between):
        left = [piece for piece in part if piece.box.right <= gutter]
        right = [piece for piece in part if piece.box.left >= gutter]
        if _are_columns(left, right):
            bands += [[whole]] if whole else []
            bands.append([left, right])
            whole = []
        else:
            whole += part
        if number < len(crossing):
            whole.append(crossing[number])
    return [*bands, [whole]] if whole else bands


def _are_columns(left: list[Piece], right: list[Piece]) -> bool:
    """Whether two parts are read one after the other, rather than across as a table is."""
    most_lines = min(len(left), len(right))
    if most_lines < _MIN_LINES:
        return False
    painted = sorted([(piece.order, 0) for piece in left] + [(piece.order, 1) for piece in right])
    sides = [side for _, side in painted]
    turns = sum(map(ne, sides, sides[1:]))
    both = left, right
    num_prose = sum(map(_is_prose, both))
    if num_prose < 2 and _PAINTED_APART * turns > most_lines:
        return False
    lines = min(len(lines_of(left)), len(lines_of(right)))
    if lines < _MIN_LINES:
        return False
    is_painted_apart = _PAINTED_APART * turns <= lines
    if is_painted_apart or num_prose < 2:
        are_texts = num_prose > 0 or (_is_list(left) and _is_list(right))
        is_long = lines >= _LIST_LINES and _begins_with_words(left) and _begins_with_words(right)
        return is_painted_apart and (are_texts or (is_long and not _are_level(left, right)))
    # A table's cells: paragraphs of both parts begin at the same heights.
    starts, others = sorted((_starts(left), _starts(right)), key=len)
    others = [one for one in others if starts[0] - _LEVEL < one < starts[-1] + _LEVEL]
    if len(starts) < _MIN_LINES:
        is_painted_in_rows = turns >= _SAME_ROWS * lines
        return not is_painted_in_rows or all(_has_words(part, _TEXT_WORDS) for part in both)
    return _SAME_ROWS * len(others) > _num_level(starts, others)


def _begins_with_words(part: list[Piece]) -> bool:
    lines = lines_of(part)
    return 2 * sum(NUMBER.fullmatch(line[0].text) is not None for line in lines) < len(lines)


def _are_level(left: list[Piece], right: list[Piece]) -> bool:
    """Whether lines of both parts stand at the same heights, as the cells of a table's rows do."""
    lines, others = sorted((_heights(left), _heights(right)), key=len)
    return _num_level(lines, others) >= _SAME_ROWS * len(lines)


def _num_level(heights: Iterable[float], others: Sequence[float]) -> int:
    """How many heights are among others."""
    return sum(any(abs(one - other) < _LEVEL for other in others) for one in heights)


def _heights(part: list[Piece]) -> list[float]:
    return [line[0].box.middle for line in lines_of(part)]


def _starts(part: list[Piece]) -> list[float]:
    """The heights of lines that a gap sets apart from the one above."""
    lines = [line[0] for line in lines_of(part)]
    gaps = [below.box.middle - above.box.middle for above, below in pairwise(lines)]
    wide = _WIDE * min(gaps, default=0.0)
    return [lines[0].box.middle] + [
        line.box.middle for line, gap in zip(lines[1:], gaps, strict=True) if gap > wide
    ]


def _is_prose(part: list[Piece]) -> bool:
    return _has_words(part, _PROSE_WORDS) and not _has_numbers(part)


def _has_words(part: list[Piece], number: float) -> bool:
    """Whether a part's pieces have a number of words in the mean."""
    return sum(len(piece.words) for piece in part) >= number * len(part)


def _is_list(part: list[Piece]) -> bool:
    """Whether a part has words, in one column."""
    return not _has_numbers(part) and _ONE_COLUMN * len(part) <= len(lines_of(part))


def _has_numbers(part: list[Piece]) -> bool:
    numbers = sum(NUMBER.fullmatch(piece.text) is not None for piece in part)
    return numbers > _NUMBERS_SHARE * len(part)
