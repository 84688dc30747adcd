"""What PDFium sees on a page of a PDF: words with their places, and ruled lines.

Places are in points from the upper left corner of the page as it is shown, y downwards. PDFium's
own order of characters, in which the page is painted, is kept as `Word.order`.

    https://pdfium.googlesource.com/pdfium/+/refs/heads/main/public/fpdf_text.h
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median_low
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from qa_service.retrieval.formats.bounded import library

if TYPE_CHECKING:
    import pypdfium2

HYPHEN = "\ufffe"
"""Stands for a hyphen at a line's end that divides a word, as PDFium finds it."""
_PDFIUM_HYPHENS = frozenset({"\x02", HYPHEN, "\xad"})
_LIGATURES = {
    "\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl",
    "\ufb05": "st", "\ufb06": "st",
}  # fmt: skip
_CUT_LIGATURES = {"h": ("Th",), "i": ("fi", "ffi"), "l": ("fl", "ffl"), "t": ("ft",), "f": ("ff",)}
"""What a letter stands for that has the width of two or three: of the ligature that is drawn, the
file names only the last letter."""
_LIGATURE_RATIO, _LONG_LIGATURE_RATIO = 1.6, 2.6
_LIGATURE_EXCESS, _LETTER_SPACING = 15, 5
"""In hundredths of a font's height: how much wider a ligature is, and letters set apart are."""
_BOLD = re.compile(r"bold|black|heavy|demi", re.IGNORECASE)
"""In a font's name; what PDFium says of its weight is a guess from the width of its stems."""
_MAX_FONT_NAME_BYTES = 128
_MAX_RULES = 20_000
"""Drawings have more lines than tables have rules."""
_SLANT = 2.0
"""Points; a line that rises more is neither horizontal nor vertical, and a shorter one no rule."""
_WHITE = 250
_MAX_FILLED = 64
"""Of a colour; a box is looked for in the last ones."""
_RECTANGLE_SEGMENTS = 5
"""A path with more may be several rules, and what is between them is not filled."""
_SHADE = 1.0
"""In points, how far a box of a colour may go over the one that it is in."""
_WORD_GAP = 0.6
"""Of its height; a character farther from the one before it begins a word."""
_ASCENT, _DESCENT = 0.75, 0.25
"""Of a font's size: the height of its capitals, and how far its letters go below the line."""
_SHIFT = 0.1
_FORM_DEPTH = 4


_TextPage = Any
"""PDFium's `FPDF_TEXTPAGE`."""


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


def around(boxes: list[Box]) -> Box:
    return Box(
        min(box.left for box in boxes),
        min(box.top for box in boxes),
        max(box.right for box in boxes),
        max(box.bottom for box in boxes),
    )


@dataclass(slots=True)
class Word:
    """Characters of one font without white space.

    Attributes:
        box: From its font's descent to the height of its capitals, whatever its letters.
        order: Its place in the order in which the page is painted.
        goes_on: Whether it belongs to the word before it, from which only its font differs.
    """

    text: str
    box: Box
    order: int
    is_bold: bool = False
    goes_on: bool = False


@dataclass(slots=True)
class Page:
    """What is on a page.

    Attributes:
        turned: Words that run in another direction than most, such as a drawing's; for each
            direction.
        rules: Horizontal and vertical lines, as boxes without height or width.
    """

    words: list[Word]
    turned: list[list[Word]]
    rules: list[Box]


class _Glyph(NamedTuple):
    text: str
    box: Box
    place: int
    width: int
    """In hundredths of its height."""
    is_after_space: bool
    is_shared: bool
    """Whether the character before has the same box: a ligature that PDFium takes apart."""


class PageReader:
    def __init__(self) -> None:
        self._raw = library("pypdfium2.raw", "pypdfium2", "PDF")
        self._widths: dict[tuple[str, str], dict[int, int]] = {}
        """How often a font has a letter in a width, in hundredths of its height."""

    def read(self, page: pypdfium2.PdfPage) -> Page:
        """Reads what is on a page, in the direction in which most of it is written."""
        text_page = page.get_textpage()
        text = text_page.raw  # which is closed with the page of text
        turn = page.get_rotation() // 90
        by_turn: dict[int, list[Word]] = {turn: []}
        glyphs = list(self._glyphs(text, turn, range(self._raw.FPDFText_CountChars(text))))
        by_turn |= self._words(text, glyphs, turn)
        main = max(by_turn, key=lambda turn: len(by_turn[turn]))
        turned = [words for turn, words in sorted(by_turn.items()) if turn != main and words]
        return Page(by_turn[main], turned, _rules(self._raw, page, main))

    def _words(self, text: _TextPage, glyphs: list[_Glyph], turn: int) -> dict[int, list[Word]]:
        """The words of glyphs, by how the page must be turned to read them."""
        words, aslant = list[Word](), dict[int, list[int]]()
        found = list[tuple[list[_Glyph], str]]()
        for part in _cut(glyphs):
            font, its_turn = self._font(text, part[0].place), self._turn(text, part[0].place)
            if its_turn != turn:
                aslant.setdefault(its_turn, []).extend(glyph.place for glyph in part)
                continue
            found.append((part, font))
            for glyph in part:
                widths = self._widths.setdefault((font, glyph.text), {})
                widths[glyph.width] = widths.get(glyph.width, 0) + 1
        for part, font in found:
            goes_on = bool(words) and not part[0].is_after_space
            word = Word(self._spelled(part, font), self._box(text, part, turn), part[0].place)
            word.is_bold, word.goes_on = _BOLD.search(font) is not None, goes_on
            words.append(word)
        by_turn = {turn: words}
        for other, indices in aslant.items():
            by_turn |= self._words(text, list(self._glyphs(text, other, indices)), other)
        return by_turn

    def _turn(self, text: _TextPage, index: int) -> int:
        """By how many quarters the page must be turned for a character to stand upright."""
        clockwise: float = self._raw.FPDFText_GetCharAngle(text, index)
        return -round(clockwise / (math.pi / 2)) % 4

    def _box(self, text: _TextPage, glyphs: list[_Glyph], turn: int) -> Box:
        raw, index = self._raw, glyphs[0].place
        box = around([glyph.box for glyph in glyphs])
        matrix, x, y = raw.FS_MATRIX(), ctypes.c_double(), ctypes.c_double()
        has_matrix = raw.FPDFText_GetMatrix(text, index, matrix)
        if not (has_matrix and raw.FPDFText_GetCharOrigin(text, index, x, y)):
            return box
        size = raw.FPDFText_GetFontSize(text, index) * math.hypot(matrix.c, matrix.d)
        base = _turned(x.value, y.value, x.value, y.value, turn).bottom
        return Box(box.left, base - _ASCENT * size, box.right, base + _DESCENT * size)

    def _glyphs(self, text: _TextPage, turn: int, indices: Iterable[int]) -> Iterator[_Glyph]:
        raw, rect = self._raw, self._raw.FS_RECTF()
        at = ctypes.byref(rect)
        before, is_after_space, last = Box(0, 0, 0, 0), True, -1
        for index in indices:
            is_after_space |= index != last + 1
            last = index
            code = raw.FPDFText_GetUnicode(text, index)
            char = "?" if 0xD800 <= code < 0xE000 else chr(code)  # half of a pair
            if char.isspace() or char == "\0":
                is_after_space = True
            elif raw.FPDFText_GetLooseCharBox(text, index, at):
                box = _turned(rect.left, rect.bottom, rect.right, rect.top, turn)
                shown = HYPHEN if char in _PDFIUM_HYPHENS else _LIGATURES.get(char, char)
                is_after_space |= _stands_apart(before, box)
                width = round(100 * box.width / max(1.0, box.height))
                yield _Glyph(shown, box, index, width, is_after_space, box == before)
                before, is_after_space = box, False

    def _font(self, text: _TextPage, index: int) -> str:
        name = ctypes.create_string_buffer(_MAX_FONT_NAME_BYTES)
        self._raw.FPDFText_GetFontInfo(text, index, name, len(name), None)
        return name.value.decode("utf-8", "replace")

    def _excess(self, glyph: _Glyph, font: str) -> int:
        """How much wider a glyph is than most with its letter."""
        widths = self._widths[font, glyph.text]
        if len(widths) == 1:
            return 0
        return glyph.width - max(widths, key=lambda width: (widths[width], -width))

    def _spelled(self, glyphs: list[_Glyph], font: str) -> str:
        """A word, with all letters of ligatures of which the file names only the last.

        Such a letter is wider than it usually is, while the ones around it are not: of a word that
        is spaced out most are wider.
        """
        text = "".join(glyph.text for glyph in glyphs)
        may_be = [glyph for glyph in glyphs if glyph.text in _CUT_LIGATURES and font]
        if not any(self._excess(glyph, font) >= _LIGATURE_EXCESS for glyph in may_be):
            return text
        if median_low(self._excess(glyph, font) for glyph in glyphs) > _LETTER_SPACING:
            return text
        parts = list[str]()
        for place, glyph in enumerate(glyphs):
            names = () if glyph.text == "h" and place else _CUT_LIGATURES.get(glyph.text, ())
            is_shared = any(its.is_shared for its in glyphs[place : place + 2])
            ratio = glyph.width / max(1, glyph.width - self._excess(glyph, font))
            if not names or is_shared or ratio < _LIGATURE_RATIO:
                parts.append(glyph.text)
            else:
                parts.append(names[-1] if ratio > _LONG_LIGATURE_RATIO else names[0])
        return "".join(parts)


def _cut(glyphs: Iterable[_Glyph]) -> Iterator[list[_Glyph]]:
    """Yields the glyphs of each word, of one font's size each."""
    word = list[_Glyph]()
    for glyph in glyphs:
        if word and (glyph.is_after_space or _differs(word[-1].box, glyph.box)):
            yield word
            word = []
        word.append(glyph)
    if word:
        yield word


def _turned(left: float, bottom: float, right: float, top: float, turn: int) -> Box:
    """A box of PDF's coordinates on the page as it is shown, turned clockwise by quarters."""
    if turn == 1:
        return Box(bottom, left, top, right)
    if turn == 2:
        return Box(-right, bottom, -left, top)
    if turn == 3:
        return Box(-top, -right, -bottom, -left)
    return Box(left, -top, right, -bottom)


def _stands_apart(before: Box, box: Box) -> bool:
    """Whether a character begins a word after another: far from it, or on another line."""
    height = min(before.height, box.height)
    gap = box.left - before.right
    is_on_line = min(before.bottom, box.bottom) - max(before.top, box.top) > height / 2
    return not is_on_line or gap > _WORD_GAP * height or gap < -2 * height


def _differs(before: Box, box: Box) -> bool:
    """Whether a character is of another size than the one before it, or raised."""
    return max(abs(before.top - box.top), abs(before.bottom - box.bottom)) > _SHIFT * box.height


def _rules(raw: ModuleType, page: pypdfium2.PdfPage, turn: int) -> list[Box]:
    """The lines on a page, those in forms that it draws too, and the sides of what is filled.

    What is filled is not seen on paper of its colour, nor in a box of its colour: Word draws a
    paragraph's shading in its cell's.
    """
    found, num_left_out = list[Box](), 0
    boxes = dict[tuple[int, ...], deque[Box]]()  # of each colour the last ones that are in no other
    for path in page.get_objects([raw.FPDF_PAGEOBJ_PATH], max_depth=_FORM_DEPTH):
        if len(found) + num_left_out >= _MAX_RULES:
            break
        fill, is_stroked = ctypes.c_int(), ctypes.c_int()
        raw.FPDFPath_GetDrawMode(path, fill, is_stroked)
        if is_stroked.value:
            found += _lines(raw, path, turn)
        elif fill.value:
            parts = [ctypes.c_uint() for _ in range(4)]
            raw.FPDFPageObj_GetFillColor(path, *parts)
            colour = tuple(part.value for part in parts)
            if min(colour[:3]) >= _WHITE or not (lines := _lines(raw, path, turn)):
                continue
            box, filled = around(lines), boxes.setdefault(colour, deque(maxlen=_MAX_FILLED))
            if any(_holds(other, box) for other in filled):
                num_left_out += len(lines)
                continue
            found += lines
            if raw.FPDFPath_CountSegments(path) <= _RECTANGLE_SEGMENTS:
                filled.append(box)
    return found


def _lines(raw: ModuleType, path: pypdfium2.PdfObject, turn: int) -> list[Box]:
    """A path's lines that are horizontal or vertical."""
    matrix = path.get_matrix()
    container = path.container
    while container is not None:
        matrix = matrix.multiply(container.get_matrix())
        container = container.container
    found, first, last = list[Box](), None, None
    for index in range(min(_MAX_RULES, raw.FPDFPath_CountSegments(path))):
        segment = raw.FPDFPath_GetPathSegment(path, index)
        x, y = ctypes.c_float(), ctypes.c_float()
        raw.FPDFPathSegment_GetPoint(segment, x, y)
        point = matrix.on_point(x.value, y.value)
        kind = raw.FPDFPathSegment_GetType(segment)
        if kind == raw.FPDF_SEGMENT_MOVETO:
            first = point
        elif kind == raw.FPDF_SEGMENT_LINETO and last:
            found += _line(last, point, turn)
        if raw.FPDFPathSegment_GetClose(segment) and first:
            found += _line(point, first, turn)
        last = point
    return found


def _line(start: tuple[float, float], end: tuple[float, float], turn: int) -> list[Box]:
    (x1, y1), (x2, y2) = start, end
    if min(abs(x1 - x2), abs(y1 - y2)) < _SLANT < max(abs(x1 - x2), abs(y1 - y2)):
        sides = min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)
        return [_turned(*sides, turn)]
    return []


def _holds(box: Box, other: Box) -> bool:
    """Whether a box is around another one, and wider."""
    is_around = (
        box.left - _SHADE <= other.left
        and other.right <= box.right + _SHADE
        and box.top - _SHADE <= other.top
        and other.bottom <= box.bottom + _SHADE
    )
    return is_around and other.width < box.width
