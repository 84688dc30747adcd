"""What PDFium sees on a page of a PDF: words with their places, and ruled lines.

Places are in points from the upper left corner of the page as it is shown, y downwards. PDFium's
own order of characters, in which the page is painted, is kept as `Word.order`. A page has thousands
of characters, so what is asked of each is asked of all at once, and judged in arrays.

    https://pdfium.googlesource.com/pdfium/+/refs/heads/main/public/fpdf_text.h
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from qa_service.retrieval.formats.bounded import library
from qa_service.retrieval.formats.pdf_boxes import Box, turned
from qa_service.retrieval.formats.pdf_calls import plain, results
from qa_service.retrieval.formats.pdf_ligatures import LetterWidths
from qa_service.retrieval.formats.pdf_rules import rules_on
from qa_service.retrieval.formats.pdf_signs import as_drawn
from qa_service.retrieval.formats.pdf_tags import Tag, TaggedTable, Tags, read_tags

if TYPE_CHECKING:
    import pypdfium2

HYPHEN = "\ufffe"
"""Stands for a hyphen at a line's end that divides a word, as PDFium finds it."""
_PDFIUM_HYPHENS = [0x02, 0xAD, ord(HYPHEN)]
_HYPHENS = [0x2010, 0x2011]
"""Of Unicode, but for the one that is typed."""
_IS_SPACE = np.array([code == 0 or chr(code).isspace() for code in range(0x3002)])
"""Of code points; none above is one."""
_LINE_BREAKS = [ord("\n"), ord("\r")]
_BOLD = re.compile(r"bold|black|heavy|demi", re.IGNORECASE)
"""In a font's name; what PDFium says of its weight is a guess from the width of its stems."""
_MAX_FONT_NAME_BYTES = 128
_WORD_GAP = 0.6
"""Of its height; a character farther from the one before it begins a word."""
_MIN_DOTS = 4
"""That lead to a number; they are no part of a word that they touch."""
_TOUCHING = 0.05
"""Of its height; a character no farther from the one before it is of the same word."""
_ASCENT, _DESCENT = 0.75, 0.25
"""Of a font's size: the height of its capitals, and how far its letters go below the line."""
_SHIFT = 0.1
_MAX_SLANT = 0.2
"""Of a quarter; a text that is turned by more, or less, is aslant."""

_Array = npt.NDArray[Any]
_Name = ctypes.Array[ctypes.c_char]
_TextPage = Any
"""PDFium's `FPDF_TEXTPAGE`."""


class Word(msgspec.Struct):
    """Characters of one font without white space.

    Attributes:
        box: From its font's descent to the height of its capitals, whatever its letters.
        order: Its place in the order in which the page is painted.
        goes_on: Whether it belongs to the word before it, from which only its font differs.
        is_aslant: Whether its line runs neither along a side of the page nor across.
        tag: What it is a part of, as the file says.
    """

    text: str
    box: Box
    order: int
    is_bold: bool = False
    goes_on: bool = False
    is_aslant: bool = False
    tag: Tag | None = None


class Turned(NamedTuple):
    """Words that run in another direction than most of a page.

    Attributes:
        words: With their places on the page when it is turned so that they stand upright.
        quarters: By how many it must be turned from there, clockwise, to stand as most words do.
    """

    words: list[Word]
    quarters: int


@dataclass(slots=True)
class Page:
    """What is on a page.

    Attributes:
        turned: Words that run in another direction than most, such as a drawing's or the names of
            narrow columns; for each direction.
        rules: Horizontal and vertical lines, as boxes without height or width.
        tagged: The tables that the file names.
    """

    words: list[Word]
    turned: list[Turned]
    rules: list[Box]
    tagged: list[TaggedTable]


class _Look(NamedTuple):
    """How a text is drawn.

    Attributes:
        turn: By how many quarters the page must be turned for it to stand upright.
        size: Of its font, in points; NaN if PDFium does not know it.
        tag: What it is a part of, as the file says.
    """

    font: str
    is_bold: bool
    turn: int
    size: float
    is_aslant: bool
    tag: Tag | None


class _Characters(NamedTuple):
    """Characters of a page that are seen, in the order in which they are painted.

    Attributes:
        places: Their numbers among all of PDFium's: int [characters].
        codes: Their code points: int [characters].
        sides: In PDF's coordinates: left, top, right and bottom, float64 [characters, 4].
        is_apart: Whether white space stands before: bool [characters].
        is_broken: Whether a line break does, which PDFium also puts between texts that touch:
            bool [characters].
    """

    places: _Array
    codes: _Array
    sides: _Array
    is_apart: _Array
    is_broken: _Array

    def those(self, which: _Array) -> _Characters:
        """Some of them; where others were between two, these are apart."""
        places = self.places[which]
        were_between = np.diff(np.flatnonzero(which), prepend=-2) > 1
        is_apart = self.is_apart[which] | were_between
        is_broken = self.is_broken[which]
        return _Characters(places, self.codes[which], self.sides[which], is_apart, is_broken)


class _Boxes(NamedTuple):
    """Characters' boxes, as `Box` has one: float64 [characters] each."""

    left: _Array
    top: _Array
    right: _Array
    bottom: _Array

    @property
    def height(self) -> _Array:
        return self.bottom - self.top


class PageReader:
    """Reads the words on the pages of one PDF."""

    def __init__(self) -> None:
        self._package = library("pypdfium2", "pypdfium2", "PDF")
        self._raw = self._package.raw
        self._boxes_of = results(self._raw, "FPDFText_GetLooseCharBox", ctypes.c_float, 1, 4)
        self._origins_of = results(self._raw, "FPDFText_GetCharOrigin", ctypes.c_double, 2)
        self._get_code = plain(self._raw, "FPDFText_GetUnicode", ctypes.c_uint)
        self._get_object = plain(self._raw, "FPDFText_GetTextObject", ctypes.c_void_p)
        self._get_mark = plain(self._raw, "FPDFPageObj_GetMarkedContentID")
        self._get_font = plain(self._raw, "FPDFText_GetFontInfo")
        self._get_angle = plain(self._raw, "FPDFText_GetCharAngle", ctypes.c_float)
        self._get_matrix = plain(self._raw, "FPDFText_GetMatrix")
        self._get_size = plain(self._raw, "FPDFText_GetFontSize", ctypes.c_double)
        self._widths = LetterWidths()
        self._tags = Tags({}, [])
        """Those of the page that is read."""

    def read(self, page: pypdfium2.PdfPage) -> Page:
        """Reads what is on a page, in the direction in which most of it is written."""
        text_page = page.get_textpage()
        text = text_page.raw  # which is closed with the page of text
        turn = page.get_rotation() // 90
        by_turn: dict[int, list[Word]] = {turn: []}
        self._tags = read_tags(self._raw, page)
        waiting = [(turn, self._characters(text))]
        while waiting:
            turn, characters = waiting.pop()
            if characters.places.size:
                words, others = self._words(text, characters, turn)
                by_turn.setdefault(turn, []).extend(words)
                waiting += others
        main = max(by_turn, key=lambda turn: len(by_turn[turn]))
        aside = [
            Turned(words, (main - turn) % 4)
            for turn, words in sorted(by_turn.items())
            if turn != main and words
        ]
        boxes = [word.box for word in by_turn[main]]
        return Page(
            by_turn[main], aside, rules_on(self._package, page, main, boxes), self._tags.tables
        )

    def _characters(self, text: _TextPage) -> _Characters:
        number = max(0, self._raw.FPDFText_CountChars(text))
        codes = self._codes(text, number)
        codes[(codes >= 0xD800) & (codes < 0xE000)] = ord("?")  # half of a pair
        codes[np.isin(codes, _PDFIUM_HYPHENS)] = ord(HYPHEN)
        codes[np.isin(codes, _HYPHENS)] = ord("-")
        is_blank = _IS_SPACE.take(codes, mode="clip")
        is_break = np.isin(codes, _LINE_BREAKS)
        places = np.flatnonzero(~is_blank)
        has_box, sides = self._boxes_of.of(text, places.tolist())
        places, sides = places[has_box], sides[has_box]
        is_hyphen = np.isin(codes[places], [ord("-"), ord(HYPHEN)])
        is_again = is_hyphen[1:] & is_hyphen[:-1] & (np.diff(sides, axis=0) == 0).all(axis=1)
        is_first = np.append(True, ~is_again)[: places.size]
        places, sides = places[is_first], sides[is_first]
        is_broken = np.diff(np.cumsum(is_break)[places], prepend=-1) > 0
        is_apart = np.diff(np.cumsum(is_blank & ~is_break)[places], prepend=-1) > 0
        return _Characters(places, codes[places], sides, is_apart, is_broken)

    def _codes(self, text: _TextPage, number: int) -> _Array:
        """The code points of a page's characters, int64: at once, if its text has one of each."""
        raw, written = self._raw, np.zeros(number + 1, np.uint16)
        place = ctypes.cast(written.ctypes.data, ctypes.POINTER(ctypes.c_ushort))
        is_whole = raw.FPDFText_GetTextIndexFromCharIndex(text, number - 1) == number - 1
        if is_whole and raw.FPDFText_GetText(text, 0, number, place) == number + 1:
            return written[:number].astype(np.int64)
        found = map(self._get_code, repeat(text), range(number))
        return np.fromiter(found, np.int64, number)

    def _words(
        self, text: _TextPage, characters: _Characters, turn: int
    ) -> tuple[list[Word], list[tuple[int, _Characters]]]:
        """The words that are read with the page so turned, and what is read otherwise."""
        left, top, right, bottom = characters.sides.T
        box = _Boxes(*turned(left, bottom, right, top, turn))
        is_apart = characters.is_apart | _stand_apart(box)
        is_apart |= _lead(characters.codes, is_apart)
        is_apart |= characters.is_broken & ~_touch(box)
        begins = is_apart | _differ(box)
        looks = self._looks(text, characters.places[begins].tolist())
        if others := {look.turn for look in looks} - {turn}:
            turns = np.array([look.turn for look in looks])[np.cumsum(begins) - 1]
            return [], [(one, characters.those(turns == one)) for one in [*others, turn]]
        firsts = np.flatnonzero(begins)
        places = characters.places[firsts]
        boxes = self._boxes(text, places.tolist(), box, firsts, looks)
        widths = np.rint(100 * (box.right - box.left) / np.maximum(1.0, box.height)).astype(
            np.int64
        )
        is_shared = np.append(False, (np.diff(characters.sides, axis=0) == 0).all(axis=1))
        fonts = [look.font for look in looks]
        spelled = self._widths.spelled(characters.codes, widths, is_shared, firsts, fonts)
        spelled = list(map(as_drawn, spelled, fonts))
        goes_on = [False, *(~is_apart[firsts[1:]]).tolist()]
        are_bold, are_aslant = zip(*[(look.is_bold, look.is_aslant) for look in looks], strict=True)
        boxed = map(Box._make, boxes)
        tags = [look.tag for look in looks]
        words = map(Word, spelled, boxed, places.tolist(), are_bold, goes_on, are_aslant, tags)
        return list(words), []

    def _looks(self, text: _TextPage, places: list[int]) -> list[_Look]:
        """How the texts that have these characters are drawn."""
        found, last = list[_Look](), None
        matrix, name = self._raw.FS_MATRIX(), ctypes.create_string_buffer(_MAX_FONT_NAME_BYTES)
        objects = map(self._get_object, repeat(text), places)
        for place, drawn in zip(places, objects, strict=True):
            is_known = drawn is not None and drawn == last
            found.append(found[-1] if is_known else self._look(text, place, drawn, matrix, name))
            last = drawn
        return found

    def _look(
        self,
        text: _TextPage,
        place: int,
        drawn: int | None,
        matrix: ctypes.Structure,
        name: _Name,
    ) -> _Look:
        name[0] = b"\0"
        self._get_font(text, place, name, _MAX_FONT_NAME_BYTES, None)
        font = name.value.decode("utf-8", "replace")
        quarters = self._get_angle(text, place) / (math.pi / 2)  # clockwise
        turn, is_aslant = -round(quarters) % 4, abs(quarters - round(quarters)) > _MAX_SLANT
        size = math.nan
        if self._get_matrix(text, place, ctypes.byref(matrix)):
            size = self._get_size(text, place) * math.hypot(matrix.c, matrix.d)
        mark = self._get_mark(ctypes.c_void_p(drawn)) if drawn and self._tags.of_marks else -1
        return _Look(font, _is_bold(font), turn, size, is_aslant, self._tags.of_marks.get(mark))

    def _boxes(
        self,
        text: _TextPage,
        places: list[int],
        box: _Boxes,
        firsts: _Array,
        looks: list[_Look],
    ) -> Iterator[tuple[float, ...]]:
        """The sides of words: of their characters, and of their font from where their line is."""
        has_origin, origins = self._origins_of.of(text, places)
        sizes = np.where(has_origin, [look.size for look in looks], math.nan)
        x, y = origins.T
        base = turned(x, y, x, y, looks[0].turn)[3]
        top, bottom = base - _ASCENT * sizes, base + _DESCENT * sizes
        sides = (
            np.minimum.reduceat(box.left, firsts),
            np.where(np.isnan(top), np.minimum.reduceat(box.top, firsts), top),
            np.maximum.reduceat(box.right, firsts),
            np.where(np.isnan(top), np.maximum.reduceat(box.bottom, firsts), bottom),
        )
        return zip(*(side.tolist() for side in sides), strict=True)


@lru_cache(maxsize=1024)
def _is_bold(font: str) -> bool:
    return _BOLD.search(font) is not None


def _stand_apart(box: _Boxes) -> _Array:
    """Whether each character is far from the one before it, or on another line."""
    before, after = _Boxes(*(side[:-1] for side in box)), _Boxes(*(side[1:] for side in box))
    height = np.minimum(before.height, after.height)
    gap = after.left - before.right
    shared = np.minimum(before.bottom, after.bottom) - np.maximum(before.top, after.top)
    apart = (shared <= height / 2) | (gap > _WORD_GAP * height) | (gap < -2 * height)
    return np.append(True, apart)


def _lead(codes: _Array, is_apart: _Array) -> _Array:
    """Whether each character is the first of many dots, or the first behind them.

    In a sentence a few dots may stand between words that they touch.
    """
    is_dot = codes == ord(".")
    edges = np.flatnonzero(np.diff(is_dot, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    is_long = ends - starts >= np.where(is_apart[starts], _MIN_DOTS, 2 * _MIN_DOTS)
    found = np.zeros(codes.size + 1, bool)
    found[starts[is_long]] = found[ends[is_long]] = True
    return found[:-1]


def _touch(box: _Boxes) -> _Array:
    """Whether each character begins where the one before it ends."""
    gap: _Array = np.append(np.inf, box.left[1:] - box.right[:-1])
    touches: _Array = np.abs(gap) < _TOUCHING * box.height
    return touches


def _differ(box: _Boxes) -> _Array:
    """Whether each character is of another size than the one before it, or raised."""
    shifts = np.maximum(np.abs(np.diff(box.top)), np.abs(np.diff(box.bottom)))
    return np.append(True, shifts > _SHIFT * box.height[1:])
