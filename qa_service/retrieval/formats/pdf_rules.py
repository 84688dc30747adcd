"""Ruled lines of a page of a PDF, as PDFium draws them."""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from qa_service.retrieval.formats.pdf_boxes import Box, around, turned
from qa_service.retrieval.formats.pdf_calls import plain

if TYPE_CHECKING:
    import pypdfium2

_Object = Any
"""PDFium's `FPDF_PAGEOBJECT`."""
_MAX_RULES = 20_000
"""Drawings have more lines than tables have rules."""
MIN_RULE = 8.0
"""Points; what is shorter is a part of a drawing."""
_SLANT = 2.0
"""Points; a line that rises more is neither horizontal nor vertical."""
_WHITE = 250
_MAX_FILLED = 64
"""Of a colour; a box is looked for in the last ones."""
_RECTANGLE_SEGMENTS = 5
"""A path with more may be several rules, and what is between them is not filled."""
_SHADE = 1.0
"""In points, how far a box of a colour may go over the one that it is in."""
_FORM_DEPTH = 4
_AT_WORD = 1.0
"""Points; so near to its first word a marked line begins."""
_SPACE = 0.5
"""Of a word's height; it may end with a space."""
_LINE = 1.5
"""Of a word's height; that of a marked line is smaller."""


def rules_on(
    package: ModuleType, page: pypdfium2.PdfPage, turn: int, words: Sequence[Box]
) -> list[Box]:
    """The lines on a page, those in forms that it draws too, and the sides of what is filled.

    What is filled is not seen on paper of its colour, nor in a box of its colour: Word draws a
    paragraph's shading in its cell's. What is filled around words of a line is a marker's.

    Args:
        words: Where the page's words are.
    """
    raw, found, num_left_out = package.raw, list[Box](), 0
    words = sorted(words)
    boxes = dict[tuple[int, ...], deque[Box]]()  # of each colour the last ones that are in no other
    fill, is_stroked = ctypes.c_int(), ctypes.c_int()
    for path, matrix in _paths(package, page, None):
        if len(found) + num_left_out >= _MAX_RULES:
            break
        raw.FPDFPath_GetDrawMode(path, fill, is_stroked)
        if is_stroked.value:
            found += _lines(raw, path, matrix, turn)
        elif fill.value:
            parts = [ctypes.c_uint() for _ in range(4)]
            raw.FPDFPageObj_GetFillColor(path, *parts)
            colour = tuple(part.value for part in parts)
            if min(colour[:3]) >= _WHITE or not (lines := _lines(raw, path, matrix, turn)):
                continue
            box, filled = around(lines), boxes.setdefault(colour, deque(maxlen=_MAX_FILLED))
            if _is_marker(box, words) or any(_holds(other, box) for other in filled):
                num_left_out += len(lines)
                continue
            found += lines
            if raw.FPDFPath_CountSegments(path) <= _RECTANGLE_SEGMENTS:
                filled.append(box)
    return found


def _paths(
    package: ModuleType,
    page: pypdfium2.PdfPage,
    form: _Object,
    outer: pypdfium2.PdfMatrix | None = None,
    depth: int = 1,
) -> Iterator[tuple[_Object, pypdfium2.PdfMatrix]]:
    """The paths of a page, those of its forms too, with how their places become the page's.

    What is smaller than a rule is left out. The package's own iterator makes an object of each
    text.
    """
    raw, its = package.raw, package.raw.FS_MATRIX()
    sides = [ctypes.c_float() for _ in range(4)]
    places = [ctypes.byref(side) for side in sides]
    get_kind, get_bounds = plain(raw, "FPDFPageObj_GetType"), plain(raw, "FPDFPageObj_GetBounds")
    holder, its_name = (form, "FPDFFormObj") if form else (page.raw, "FPDFPage")
    get = plain(raw, f"{its_name}_GetObject", raw.FPDF_PAGEOBJECT)
    for one in map(get, repeat(holder), range(getattr(raw, f"{its_name}_CountObjects")(holder))):
        kind = get_kind(one)
        if kind not in {raw.FPDF_PAGEOBJ_PATH, raw.FPDF_PAGEOBJ_FORM}:
            continue
        if get_bounds(one, *places):
            bounds = [side.value for side in sides]
            if _is_small(*(outer.on_rect(*bounds) if outer else bounds)):
                continue
        raw.FPDFPageObj_GetMatrix(one, its)
        matrix = package.PdfMatrix.from_raw(its)
        matrix = matrix.multiply(outer) if outer else matrix
        if kind == raw.FPDF_PAGEOBJ_PATH:
            yield one, matrix
        elif depth < _FORM_DEPTH:
            yield from _paths(package, page, one, matrix, depth + 1)


def _is_small(left: float, bottom: float, right: float, top: float) -> bool:
    return max(right - left, top - bottom) < MIN_RULE


def _lines(raw: ModuleType, path: _Object, matrix: pypdfium2.PdfMatrix, turn: int) -> list[Box]:
    """A path's lines that are horizontal or vertical."""
    found, first, last = list[Box](), None, None
    get = plain(raw, "FPDFPath_GetPathSegment", raw.FPDF_PATHSEGMENT)
    number = min(_MAX_RULES, raw.FPDFPath_CountSegments(path))
    segments = list(map(get, repeat(path), range(number)))
    kinds = list(map(plain(raw, "FPDFPathSegment_GetType"), segments))
    closes = map(plain(raw, "FPDFPathSegment_GetClose"), segments)
    get_point = plain(raw, "FPDFPathSegment_GetPoint")
    x, y = ctypes.c_float(), ctypes.c_float()
    to_x, to_y = ctypes.byref(x), ctypes.byref(y)
    curve, line, move = raw.FPDF_SEGMENT_BEZIERTO, raw.FPDF_SEGMENT_LINETO, raw.FPDF_SEGMENT_MOVETO
    for segment, kind, after, is_closed in zip(
        segments, kinds, [*kinds[1:], curve], closes, strict=False
    ):
        if kind == curve and after != line and not is_closed:
            continue  # a point that no line begins or ends at
        get_point(segment, to_x, to_y)
        point = matrix.on_point(x.value, y.value)
        if kind == move:
            first = point
        elif kind == line and last:
            found += _line(last, point, turn)
        if is_closed and first:
            found += _line(point, first, turn)
        last = point
    return found


def _line(start: tuple[float, float], end: tuple[float, float], turn: int) -> list[Box]:
    (x1, y1), (x2, y2) = start, end
    width, height = abs(x1 - x2), abs(y1 - y2)
    if min(width, height) < _SLANT and max(width, height) >= MIN_RULE:
        return [Box(*turned(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2), turn))]
    return []


def _is_marker(box: Box, words: Sequence[Box]) -> bool:
    """Whether a box is as high and as long as words of a line, which it marks.

    Args:
        words: Sorted.
    """
    first = bisect_left(words, box.left - _AT_WORD, key=itemgetter(0))
    last = bisect_left(words, box.right, key=itemgetter(0))
    inner = [word for word in words[first:last] if box.top < word.middle < box.bottom]
    return bool(inner) and (
        inner[0].left - box.left < _AT_WORD
        and abs(box.right - max(word.right for word in inner)) < _SPACE * inner[0].height
        and box.height < _LINE * inner[0].height
    )


def _holds(box: Box, other: Box) -> bool:
    """Whether a box is around another one, and wider."""
    is_around = (
        box.left - _SHADE <= other.left
        and other.right <= box.right + _SHADE
        and box.top - _SHADE <= other.top
        and other.bottom <= box.bottom + _SHADE
    )
    return is_around and other.width < box.width
