"""Words of a page as pieces of lines: what stands together, without a wide gap in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from unicodedata import category

from qa_service.retrieval.blocks import scripted
from qa_service.retrieval.formats.pdf_page import Box, Word, around

CELL_GAP = 0.9
"""Of a font's size; what is farther apart may be in another column. Justified text has less."""
_NUMBER_GAP = 0.45
"""The same between two numbers."""
NUMBER = re.compile(r"[^A-Za-z]*\d[^A-Za-z]*|[-–—]|\([A-Z]\)")  # noqa: RUF001, dashes
"""A number with its signs, or what stands for none in a table."""
_SAME_LINE = 0.5
"""Of the lower of two boxes; what shares more of its height is on a line."""
_LEADER = re.compile(r"[.·…_]+")
_MIN_LEADERS = 3
NUMBERED = re.compile(r"\(?(?P<number>\d{1,3}|[a-z]|[ivx]{1,4})[.)]")
"""A number or letter before an item."""
_RAISED_SIZE, _RAISED_BY = 0.85, 0.12
_NOTE_MARK = re.compile(r"\d{1,3}(?:[,-]\d{1,3})*|[a-z]|[*†‡§]+")
_BASE = re.compile(r"(?:.*\W)?(?:\d{1,2}|[\w.]*\))")
_UNIT = re.compile(r"(?:.*[\W\d])?[a-zµ]{1,2}", re.IGNORECASE)


@dataclass(slots=True)
class Piece:
    """Words on one line without a wide gap between them.

    Attributes:
        words: From left to right; none of what is no text, such as a table.
        size: Of most of its text, in points.
    """

    words: list[Word]
    box: Box
    size: float

    @property
    def is_bold(self) -> bool:
        return all(word.is_bold for word in self.words)

    @property
    def order(self) -> int:
        """When it is painted."""
        return self.words[0].order if self.words else 0

    def is_raised(self, word: Word) -> bool:
        """Whether one of its words is small and above its line: a note's mark, or a power."""
        is_small = word.box.height < _RAISED_SIZE * self.size
        return is_small and word.box.bottom < self.box.bottom - _RAISED_BY * self.size

    @property
    def text(self) -> str:
        """Its words with a space between them; of raised marks, powers alone."""
        shown = ""
        for word in self.words:
            is_raised = self.is_raised(word)
            if is_raised and shown:
                shown += _raised(shown, word.text)
            elif is_raised:
                shown = f"{word.text} "
            else:
                shown += word.text if word.goes_on or shown[-1:] in {"", " "} else f" {word.text}"
        return shown.rstrip()


def _raised(before: str, mark: str) -> str:
    """A raised mark: a power or a part of a word as a person writes it, nothing of a note's."""
    is_note = _NOTE_MARK.fullmatch(mark) and not (
        (mark.isdecimal() and _BASE.fullmatch(before))
        or (mark in {"2", "3"} and _UNIT.fullmatch(before))
    )
    return "" if is_note else scripted("sup", before, mark)


Placed = TypeVar("Placed", Word, Piece)


def pieces_of(words: Iterable[Word]) -> list[Piece]:
    """Cuts lines into pieces at wide gaps, and where dots lead to a number."""
    found = list[Piece]()
    for line in lines_of(list(words)):
        piece, leaders = list[Word](), 0
        for word in line:
            if _LEADER.fullmatch(word.text) and (leaders or not word.goes_on):
                leaders += len(word.text)
                continue
            is_led = leaders >= _MIN_LEADERS
            if piece and is_led and len(piece[-1].text) > 1:
                piece[-1].text = piece[-1].text.rstrip(".")
            if piece and (is_led or _is_apart(piece, word)):
                found.append(_piece(piece))
                piece = []
            leaders = 0
            piece.append(word)
        if piece:
            found.append(_piece(piece))
    return found


def is_bullet(text: str) -> bool:
    """Whether a word is a mark before an item: a sign, or one that only its font knows."""
    if len(text) != 1:
        return False
    return text in "•‣·*-–—" or (category(text) in {"So", "Co"} and text not in "©®°")  # noqa: RUF001, dashes


def cut_at(piece: Piece, gap: float) -> list[Piece]:
    """Cuts a piece where words are farther apart than this share of its size."""
    parts = list[list[Word]]()
    for word in piece.words:
        if not parts or word.box.left - parts[-1][-1].box.right > gap * piece.size:
            parts.append([])
        parts[-1].append(word)
    return [_piece(part) for part in parts]


def _is_apart(piece: list[Word], word: Word) -> bool:
    last = piece[-1]
    gap = word.box.left - last.box.right
    are_numbers = NUMBER.fullmatch(last.text) and NUMBER.fullmatch(word.text)
    allowed = (_NUMBER_GAP if are_numbers else CELL_GAP) * max(last.box.height, word.box.height)
    is_mark = len(piece) == 1 and (is_bullet(last.text) or NUMBERED.fullmatch(last.text))
    return not word.goes_on and gap > (3 * allowed if is_mark else allowed)


def _piece(words: list[Word]) -> Piece:
    sizes = Counter[float]()
    for word in words:
        sizes[word.box.height] += len(word.text)
    size = max(sizes, key=lambda size: (sizes[size], size))
    box = around([word.box for word in words if word.box.height >= _RAISED_SIZE * size])
    return Piece(words, box._replace(left=words[0].box.left, right=words[-1].box.right), size)


def lines_of(placed: Sequence[Placed]) -> list[list[Placed]]:
    """Groups what stands at one height, from top to bottom, each from left to right."""
    lines = list[tuple[Box, list[Placed]]]()
    for one in sorted(placed, key=lambda one: (one.box.middle, one.box.left)):
        for box, line in reversed(lines[-3:]):
            shared = min(box.bottom, one.box.bottom) - max(box.top, one.box.top)
            if shared > _SAME_LINE * min(box.height, one.box.height):
                line.append(one)
                break
        else:
            lines.append((one.box, [one]))
    return [sorted(line, key=lambda one: one.box.left) for _, line in lines]
