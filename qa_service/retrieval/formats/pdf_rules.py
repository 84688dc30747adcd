"""Ruled lines of a page of a PDF, as PDFium draws them."""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import itemgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

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
_PAGE = 0.9
"""Of a page's sides; what is as long and as high is its paper, or the frame around all of it."""
_FRAME = 4.5
"""Points; a rule that comes so near to a page's frame is one of its table."""
_FORM_DEPTH = 4
_AT_WORD = 1.0
"""Points; so near to its first word a marked line begins."""
_SPACE = 0.5
"""Of a word's height; it may end with a space."""
_LINE = 1.5
"""Of a word's height; that of a marked line is smaller."""


class _Area(NamedTuple):
    """What is filled, and those of its sides that are rules."""

    box: Box
    lines: list[Box]


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
    words, size = sorted(words), page.get_size()
    if (turn - page.get_rotation() // 90) % 2:
        size = size[::-1]
    boxes = dict[tuple[int, ...], deque[Box]]()  # of each colour the last ones that are in no other
    areas = dict[tuple[int, ...], list[_Area]]()
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
            num_left_out += len(lines)
            box, filled = around(lines), boxes.setdefault(colour, deque(maxlen=_MAX_FILLED))
            if _is_marker(box, words) or any(_holds(other, box) for other in filled):
                continue
            is_plain = raw.FPDFPath_CountSegments(path) <= _RECTANGLE_SEGMENTS
            if is_plain:
                filled.append(box)
            if not (is_plain and _is_long(box, size, all)):
                areas.setdefault(colour, []).append(_Area(box, lines))
    for one in areas.values():
        found += _sides(one)
    return _without_frame(found, size)


def _sides(areas: list[_Area]) -> Iterator[Box]:
    """The sides of what is filled with one colour; of a cell's parts they are the cell's.

    Word fills a cell's margins and its lines one by one: above, left, right, below, each line.
    """
    kept, start = list[_Area](), 0
    while start < len(areas):
        end = _end_of_cell(areas, start)
        parts = [box for box, _ in areas[start:end]]
        if len(parts) > 1:
            left, _, right, low = kept[-1].box if kept else parts[1]
            if kept and _are_same(
                (left, low, right), (parts[0].left, parts[0].top, parts[1].right)
            ):
                parts.append(kept.pop().box)
            cell = around(parts)
            level = [cell._replace(bottom=cell.top), cell._replace(top=cell.bottom)]
            upright = [cell._replace(right=cell.left), cell._replace(left=cell.right)]
            kept.append(_Area(cell, level + upright))
        else:
            kept.append(areas[start])
        start = end
    return chain.from_iterable(lines for _, lines in kept)


def _end_of_cell(areas: list[_Area], start: int) -> int:
    """Where the parts of a cell end that begin with its left margin; the next place if none do."""
    if len(areas) < start + 3:
        return start + 1
    left, right, below = (area.box for area in areas[start : start + 3])
    is_pair = _are_same(left[1::2], right[1::2]) and left.right + _SHADE < right.left
    has_below = _are_same(below[:3], (left.left, left.bottom, right.right))
    end = first_line = start + 2 + has_below
    while is_pair and end < len(areas):
        line = areas[end].box
        is_between = _are_same(line[::2], (left.right, right.left))
        if not (is_between and left.top - _SHADE <= line.top <= left.bottom):
            break
        end += 1
    return end if end > first_line else start + 1


def _are_same(places: Sequence[float], others: Sequence[float]) -> bool:
    return all(abs(one - other) <= _SHADE for one, other in zip(places, others, strict=True))


def _is_long(box: Box, size: Sequence[float], both: Callable[[Iterable[bool]], bool]) -> bool:
    return both(side > _PAGE * of for side, of in zip((box.width, box.height), size, strict=True))


def _without_frame(rules: list[Box], size: Sequence[float]) -> list[Box]:
    """Rules without those of a frame around the page, to which no other comes."""
    long = [rule for rule in rules if _is_long(rule, size, any)]
    if not long or not _is_long(box := around(long), size, all):
        return rules
    frame, met = set[Box](), False
    for rule in rules:
        near = [abs(one - side) < _FRAME for one, side in zip(rule, box, strict=True)]
        if near[1] or near[3] if rule.width > rule.height else near[0] or near[2]:
            frame.add(rule)
        met = met or (any(near) and rule not in frame)
    return rules if met else [rule for rule in rules if rule not in frame]


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
