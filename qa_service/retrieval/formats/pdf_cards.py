"""Keys side by side with their values below them, as invoices and forms have them.

Each value begins below its key, and bold type sets all keys off from all values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from qa_service.retrieval.formats.cells import Grid
from qa_service.retrieval.formats.pdf_columns import cell_of, gap
from qa_service.retrieval.formats.pdf_lines import NUMBER, Piece, has_bullet

_BELOW = 1.0
"""Points; a value begins so near to where its key does."""
_NEAR, _WRAPPED = 2.0, 1.5
"""Of a font's size; values are no farther below their keys, and a value's lines from each other."""
_KEY_WORDS = 5
"""Words of a key, at most."""
_WORD = re.compile(r"[^\W\d_]{2}")


def card_at(lines: Sequence[list[Piece]], start: int) -> tuple[Grid, int] | None:
    """The keys in a line with their values, and where the lines of these end; None if it has none.

    Args:
        lines: Of which the keys' line is one.
        start: Its place.
    """
    keys, *below = lines[start : start + 2]
    if not below or len(keys) != len(below[0]) or not _are_keys(keys, below[0]):
        return None
    values = [[piece] for piece in below[0]]
    end = start + 2
    while end < len(lines) and _goes_on(values, lines[end]):
        end += 1
    grid = Grid()
    grid.add_row([cell_of([[key]]) for key in keys], is_head=True)
    grid.add_row([cell_of([value]) for value in values])
    return grid, end


def _are_keys(keys: list[Piece], values: list[Piece]) -> bool:
    """Whether each piece of a line is the key of the one below it."""
    pairs = list(zip(keys, values, strict=True))
    are_names = all(map(_is_name, keys)) and not any(map(has_bullet, values))
    are_below = all(abs(key.box.left - value.box.left) < _BELOW for key, value in pairs)
    styles = {(key.is_bold, value.is_bold) for key, value in pairs}
    are_apart = styles in ({(True, False)}, {(False, True)})
    return len(keys) > 1 and are_names and are_below and are_apart and gap(keys, values) < _NEAR


def _is_name(piece: Piece) -> bool:
    has_words = _WORD.search(piece.text) and not NUMBER.fullmatch(piece.text)
    return bool(has_words) and len(piece.words) <= _KEY_WORDS and not has_bullet(piece)


def _goes_on(values: list[list[Piece]], line: list[Piece]) -> bool:
    """Whether a line goes on with values; then it is added to them."""
    met = [
        (value, piece)
        for piece in line
        for value in values
        if abs(value[0].box.left - piece.box.left) < _BELOW
        and piece.is_bold == value[-1].is_bold
        and gap(value[-1:], [piece]) < _WRAPPED
    ]
    if len(met) < len(line):
        return False
    for value, piece in met:
        value.append(piece)
    return True
