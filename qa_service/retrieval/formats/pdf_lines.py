"""Words of a page as pieces of lines."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from statistics import median_low
from typing import TypeVar
from unicodedata import category

import msgspec
from msgspec.structs import replace

from qa_service.retrieval.documents import scripted
from qa_service.retrieval.formats.pdf_boxes import Box, around
from qa_service.retrieval.formats.pdf_page import Word
from qa_service.retrieval.formats.pdf_tags import Tag

CELL_GAP = 0.9
"""Of a font's size; what is farther apart may be in another column. Justified text has less."""
_NUMBER_GAP = 0.45
"""The same between two numbers."""
NUMBER = re.compile(r"[^A-Za-z]*\d[^A-Za-z]*|[-–—]|\([A-Z]\)")  # noqa: RUF001, dashes
"""A number with its signs, or what stands for none in a table."""
_SAME_LINE = 0.5
"""Of the lower of two boxes; what shares more of its height is on a line."""
_LEADERS = ".·…_"
_LEADER = re.compile(f"[{_LEADERS}]+")
_MIN_LEADERS = 3
NUMBERED = re.compile(r"[(（]?(?P<number>\d{1,3}|[A-Za-z]|[ivx]{1,4})[.)．）]")  # noqa: RUF001, wide signs
"""A number or letter before an item."""
_UNSPACED = "[\u0e00-\u0e7f\u3000-\u9fff\uf900-\ufaff\uff00-\uffef]"
"""Letters and signs of scripts without spaces: Thai, Japanese, Chinese."""
_BREAK = re.compile(rf"(?<={_UNSPACED})\n(?={_UNSPACED})")
_SPACED_LETTERS, _WIDER = 4, 1.4
"""Letters of a word that is spaced out, at a minimum; and how much wider a gap between words is."""
_RAISED_SIZE, _RAISED_BY = 0.85, 0.12
_NOTE_MARK = re.compile(r"\d{1,3}(?:[,-]\d{1,3})*|[a-z]|[*†‡§]+")
_BASE = re.compile(r"(?:.*[\Wx])?(?:\d{1,2}|[\w.]*\))|.*\N{MINUS SIGN}")
_UNIT = re.compile(r"(?:.*[\W\d])?[a-zµ]{1,2}", re.IGNORECASE)
_EDGE = 3.0
"""Points; a name may go on so far past the rule below it."""
_BELOW = 0.6
"""Of a font's size; a rule below a name is so near to its lower end."""
_LEFT, _TOP = attrgetter("box.left"), attrgetter("top")


class Piece(msgspec.Struct):
    """Words on one line without a wide gap between them.

    Attributes:
        words: From left to right; none of what is no text, such as a table.
        size: Of most of its text, in points.
        text: Its words with a space between them; of raised marks, powers alone.
        is_led: Whether dots lead to it.
        rule: Close below it, if there is one.
    """

    words: list[Word]
    box: Box
    size: float
    text: str = ""
    is_led: bool = False
    rule: Box | None = None

    @property
    def is_bold(self) -> bool:
        return all(word.is_bold for word in self.words)

    @property
    def order(self) -> int:
        """When it is painted."""
        return self.words[0].order if self.words else 0

    @property
    def tag(self) -> Tag | None:
        return self.words[0].tag if self.words else None

    def is_raised(self, word: Word) -> bool:
        """Whether one of its words is small and above its line: a note's mark, or a power."""
        is_small = word.box.height < _RAISED_SIZE * self.size
        return is_small and word.box.bottom < self.box.bottom - _RAISED_BY * self.size


Placed = TypeVar("Placed", Word, Piece)


def pieces_of(words: Iterable[Word]) -> list[Piece]:
    """Cuts lines into pieces at wide gaps, and where dots lead to a number."""
    found = list[Piece]()
    for line in lines_of(list(words)):
        piece, leaders, was_led = list[Word](), 0, False
        for word in _with_joined_letters(line):
            text = word.text
            if text[:1] in _LEADERS and _LEADER.fullmatch(text) and (leaders or not word.goes_on):
                leaders += len(text)
                continue
            is_led = leaders >= _MIN_LEADERS
            if piece and is_led and len(piece[-1].text) > 1:
                piece[-1].text = piece[-1].text.rstrip(".")
            if piece and (is_led or _is_apart(piece, word)):
                found.append(_piece(piece, is_led=was_led))
                piece, was_led = [], is_led
            leaders = 0
            piece.append(word)
        if piece:
            found.append(_piece(piece, is_led=was_led))
    return found


def with_rules(lines: Iterable[list[Piece]], rules: Iterable[Box]) -> list[list[Piece]]:
    """Lines whose pieces have the rule that is close below them, and below no other one.

    A piece that stands over several rules is cut between them.
    """
    level = sorted((rule for rule in rules if rule.width > rule.height), key=_TOP)
    tops, found = [rule.top for rule in level], list[list[Piece]]()
    for line in lines:
        bottom, near = line[0].box.bottom, _BELOW * line[0].size
        below = level[bisect_left(tops, bottom - near) : bisect_right(tops, bottom + near)]
        parts = [part for piece in line for part in _cut_over(piece, below)] if below else line
        for rule in below:
            over = [
                part for part in parts if rule.left < part.box.right and part.box.left < rule.right
            ]
            if len(over) == 1 and _holds(rule, over[0].box):
                over[0].rule = rule
        found.append(parts)
    return found


def _cut_over(piece: Piece, rules: Iterable[Box]) -> list[Piece]:
    """A piece, or its parts if each of them stands over a rule of its own."""
    found = {rule[::2]: [word for word in piece.words if _holds(rule, word.box)] for rule in rules}
    parts = [part for _, part in sorted(found.items()) if part]
    words = [word for part in parts for word in part]
    is_whole = list(map(id, words)) == list(map(id, piece.words))
    return list(map(_piece, parts)) if is_whole and len(parts) > 1 else [piece]


def _holds(rule: Box, box: Box) -> bool:
    return rule.left - _EDGE < box.left and box.right < rule.right + _EDGE


def _with_joined_letters(line: list[Word]) -> list[Word]:
    """A line whose words that are spaced out, a letter or two each, are put together."""
    if [len(word.text) for word in line].count(1) < _SPACED_LETTERS:
        return line
    found, run = list[Word](), list[Word]()
    for word in line:
        is_short = len(word.text) <= 2 and word.text.isalpha()
        if run and not (is_short and _is_near(run[-1], word)):
            found += _joined(run)
            run = []
        (run if is_short else found).append(word)
    return found + _joined(run)


def _is_near(before: Word, word: Word) -> bool:
    return word.box.left - before.box.right < CELL_GAP * word.box.height


def _joined(letters: list[Word]) -> list[Word]:
    """The words of spaced letters, between which gaps are wider; "A B C D" are none."""
    texts = [letter.text for letter in letters]
    num_single = sum(len(text) == 1 for text in texts)
    if num_single < max(_SPACED_LETTERS, 0.75 * len(texts)) or texts == sorted(texts):
        return letters
    gaps = [after.box.left - before.box.right for before, after in pairwise(letters)]
    usual, found = median_low(gaps), [replace(letters[0])]
    for letter, gap in zip(letters[1:], gaps, strict=True):
        last = found[-1]
        if gap > _WIDER * usual:
            found.append(replace(letter))
        else:
            last.text, last.box = last.text + letter.text, around([last.box, letter.box])
    return found


def is_unspaced(text: str) -> bool:
    """Whether a line may end within a text, since its script has no spaces."""
    return re.match(_UNSPACED, text) is not None


def joined(lines: Iterable[str]) -> str:
    """Lines as one."""
    text = "\n".join(lines)
    return (text if text.isascii() else _BREAK.sub("", text)).replace("\n", " ")


def is_bullet(text: str) -> bool:
    """Whether a word is a mark before an item: a sign, or one that only its font knows."""
    if len(text) != 1:
        return False
    return text in "•‣·*∗-–—" or (category(text) in {"So", "Co"} and text not in "©®°")  # noqa: RUF001, dashes


def has_bullet(piece: Piece) -> bool:
    """Whether a piece begins with a bullet, or with Word's for inner lists: an `o` set apart."""
    first, *rest = piece.words
    if first.text == "o" and rest:
        return rest[0].box.left - first.box.right > _NUMBER_GAP * piece.size
    return is_bullet(first.text)


def is_mark(text: str) -> bool:
    """Whether a text is but the mark before an item."""
    return is_bullet(text) or text == "o" or bool(NUMBERED.fullmatch(text))


def cut_at(piece: Piece, gap: float) -> list[Piece]:
    """Cuts a piece where words are farther apart than this share of its size."""
    parts = list[list[Word]]()
    for word in piece.words:
        if not parts or word.box.left - parts[-1][-1].box.right > gap * piece.size:
            parts.append([])
        parts[-1].append(word)
    return [_piece(part) for part in parts] if len(parts) > 1 else [piece]


def _is_apart(piece: list[Word], word: Word) -> bool:
    last = piece[-1]
    (_, top, right, bottom), (left, its_top, _, its_bottom) = last.box, word.box
    gap, size = left - right, max(bottom - top, its_bottom - its_top)
    if last.tag and word.tag and last.tag != word.tag and last.tag.kind != "Lbl":
        return True
    if word.goes_on or gap <= _NUMBER_GAP * size or _is_amount(last.text, word.text):
        return False
    are_numbers = NUMBER.fullmatch(last.text) and NUMBER.fullmatch(word.text)
    is_item = len(piece) == 1 and is_mark(last.text)
    return gap > (3 if is_item else 1) * (_NUMBER_GAP if are_numbers else CELL_GAP) * size


def _is_amount(sign: str, text: str) -> bool:
    """Whether a number goes on with a currency's sign at the left of its column."""
    return sign in {"$", "€", "£"} and bool(NUMBER.fullmatch(text))


def _piece(words: list[Word], *, is_led: bool = False) -> Piece:
    if len(words) == 1:
        (word,) = words
        return Piece(words, word.box, word.box.height, word.text, is_led)
    lefts, tops, rights, bottoms = zip(*[word.box for word in words], strict=True)
    top, bottom = min(tops), max(bottoms)
    size = bottom - top
    if max(tops) > top or min(bottoms) < bottom:
        sizes = dict[float, int]()
        for word in words:
            height = word.box.height
            sizes[height] = sizes.get(height, 0) + len(word.text)
        size = max(sizes, key=lambda height: (sizes[height], height))
        box = around([word.box for word in words if word.box.height >= _RAISED_SIZE * size])
        top, bottom = box.top, box.bottom
    piece = Piece(words, Box(lefts[0], top, rights[-1], bottom), size, is_led=is_led)
    piece.text = _text(piece)
    return piece


def _text(piece: Piece) -> str:
    small = _RAISED_SIZE * piece.size
    if min([word.box.bottom - word.box.top for word in piece.words]) >= small:
        parts = [word.text if word.goes_on else f" {word.text}" for word in piece.words]
        return "".join(parts).lstrip()
    shown = ""
    for word in piece.words:
        is_raised, mark = piece.is_raised(word), word.text
        if is_raised and shown:
            is_note = _NOTE_MARK.fullmatch(mark) and not (
                (mark.isdecimal() and _BASE.fullmatch(shown))
                or (mark in {"2", "3"} and _UNIT.fullmatch(shown))
            )
            shown += "" if is_note else scripted("sup", shown, mark)
        elif is_raised:
            shown = f"{word.text} "
        else:
            shown += word.text if word.goes_on or shown[-1:] in {"", " "} else f" {word.text}"
    return shown.rstrip()


def lines_of(placed: Sequence[Placed]) -> list[list[Placed]]:
    """Groups what stands at one height, from top to bottom, each from left to right."""
    lines = list[tuple[float, float, list[Placed]]]()
    boxes = [one.box for one in placed]
    keys = [((top + bottom) / 2, left) for left, top, _, bottom in boxes]
    for number in sorted(range(len(keys)), key=keys.__getitem__):
        _, top, _, bottom = boxes[number]
        for its_top, its_bottom, line in lines[:-4:-1]:
            lower = its_bottom if its_bottom < bottom else bottom
            shared = lower - (its_top if its_top > top else top)
            if shared > _SAME_LINE * (bottom - top) or shared > _SAME_LINE * (its_bottom - its_top):
                line.append(placed[number])
                break
        else:
            lines.append((top, bottom, [placed[number]]))
    return [sorted(line, key=_LEFT) for _, _, line in lines]
