"""The order in which a page's columns are read.

A recursive cut, after G. Nagy and S. Seth, *Hierarchical representation of optically scanned
documents* (ICPR 1984), with one difference: a piece that crosses a gutter, such as a running head
or a wide table, does not hide it, but divides the page into bands above and below.

    |======= head =======|      1
    |  left  |   right   |      2, 3
    |==== wide table ====|      4
    |  left  |   right   |      5, 6
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from qa_service.retrieval.formats.pdf_lines import NUMBER, Piece, lines_of

_MIN_LINES = 3
"""A column has so many lines at a minimum."""
_PROSE_WORDS = 3.5
"""Words in a line of prose in a column, in the mean; cells of tables have fewer."""
_NUMBERS_SHARE = 0.3
_PAINTED_APART = 3
"""Lines for each time that the painter goes from one part to the other, at a minimum."""
_LEVEL, _WIDE, _SAME_ROWS = 2.0, 1.3, 0.8
_ONE_COLUMN = 0.8
"""Lines for each piece of one column, at a minimum."""
_EDGE = 3.0
"""Points; lines of a column begin within so much of one another."""
_MAX_GUTTERS = 16
"""So many are tried: those that fewest pieces cross."""
_MAX_DEPTH = 6


def in_columns(pieces: Sequence[Piece], depth: int = 0) -> list[list[Piece]]:
    """Cuts a page into regions of one column, in the order in which they are read."""
    best, most = list[list[list[Piece]]](), 0
    for gutter in _gutters(pieces) if depth < _MAX_DEPTH else ():
        bands = _bands(pieces, gutter)
        in_two = sum(len(part) for band in bands if len(band) == 2 for part in band)
        if in_two > most:
            best, most = bands, in_two
    if not best:
        return [list(pieces)]
    return [region for band in best for part in band for region in in_columns(part, depth + 1)]


def _gutters(pieces: Sequence[Piece]) -> list[float]:
    """Where a gutter may be, just left of a piece: where fewest pieces cross it."""
    lefts = sorted(piece.box.left for piece in pieces)
    rights = sorted(piece.box.right for piece in pieces)
    found = list[tuple[int, float]]()
    for edge in sorted({round(left / _EDGE) for left in lefts}):
        gutter = (edge - 0.5) * _EDGE
        left, right = bisect_left(rights, gutter), len(lefts) - bisect_left(lefts, gutter)
        crossing = len(pieces) - left - right
        if min(left, right) >= _MIN_LINES and 2 * crossing < len(pieces):
            found.append((crossing, gutter))
    return [gutter for _, gutter in sorted(found)[:_MAX_GUTTERS]]


def _bands(pieces: Sequence[Piece], gutter: float) -> list[list[list[Piece]]]:
    """The bands of a page, of one part or two, if there is a gutter just left of here."""
    crossing = [piece for piece in pieces if piece.box.left < gutter < piece.box.right]
    crossing.sort(key=lambda piece: piece.box.middle)
    levels = [piece.box.middle for piece in crossing]
    between: list[list[Piece]] = [[] for _ in range(len(levels) + 1)]
    for piece in pieces:
        if not piece.box.left < gutter < piece.box.right:
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
    lines = min(len(lines_of(left)), len(lines_of(right)))
    if lines < _MIN_LINES:
        return False
    painted = sorted([(piece.order, 0) for piece in left] + [(piece.order, 1) for piece in right])
    turns = sum(one[1] != after[1] for one, after in pairwise(painted))
    is_painted_apart = _PAINTED_APART * turns <= lines
    num_prose = _is_prose(left) + _is_prose(right)
    if num_prose == 2:
        return is_painted_apart or not _have_rows(left, right)
    return is_painted_apart and (num_prose == 1 or (_is_list(left) and _is_list(right)))


def _have_rows(left: list[Piece], right: list[Piece]) -> bool:
    """Whether paragraphs of both parts begin at the same heights, as a table's cells do."""
    starts, others = sorted((_starts(left), _starts(right)), key=len)
    level = sum(any(abs(one - other) < _LEVEL for other in others) for one in starts)
    return len(starts) >= _MIN_LINES and _SAME_ROWS * len(others) <= level


def _starts(part: list[Piece]) -> list[float]:
    """The heights of lines that a gap sets apart from the one above."""
    lines = [line[0] for line in lines_of(part)]
    gaps = [below.box.middle - above.box.middle for above, below in pairwise(lines)]
    wide = _WIDE * min(gaps, default=0.0)
    return [lines[0].box.middle] + [
        line.box.middle for line, gap in zip(lines[1:], gaps, strict=True) if gap > wide
    ]


def _is_prose(part: list[Piece]) -> bool:
    words = sum(len(piece.words) for piece in part)
    return words >= _PROSE_WORDS * len(part) and not _has_numbers(part)


def _is_list(part: list[Piece]) -> bool:
    """Whether a part has words, in one column."""
    return not _has_numbers(part) and _ONE_COLUMN * len(part) <= len(lines_of(part))


def _has_numbers(part: list[Piece]) -> bool:
    numbers = sum(NUMBER.fullmatch(piece.text) is not None for piece in part)
    return numbers > _NUMBERS_SHARE * len(part)
