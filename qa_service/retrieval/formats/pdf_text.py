"""A page's lines as paragraphs, and what of them is no text of the document.

A line's end is a paragraph's end if the next word would have fitted on the line, or if the gap, the
font or a mark says so. A paragraph that a page, a column or a note divides is joined again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from math import inf
from statistics import median

from qa_service.retrieval.formats.pdf_columns import is_value
from qa_service.retrieval.formats.pdf_lines import NUMBERED, Piece, has_bullet, is_unspaced
from qa_service.retrieval.formats.pdf_page import HYPHEN
from qa_service.retrieval.formats.pdf_tags import Tag

_ENDS = re.compile(r"[.!?:;。！？：；][\"'”’)\]」]*$")  # noqa: RUF001, quotes
_PAGE_NUMBER = re.compile(
    r"\W*(?:page\s+)?(?:\d{1,4}|[ivxl]{1,6})(?:\s*(?:of|/)\s*\d{1,4})?\W*", re.I
)
_DIGITS = re.compile(r"\d+|\b[ivxl]+\b")
_ITEM = re.compile(rf"{NUMBERED.pattern}(?:\s|(?<=\d.)(?=[^\W\d_]))")
"""How an item begins; a number may stand close to a word."""
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")
_MARGIN_LINES = 3
"""Lines at a page's upper and lower end that may be its running head or foot."""
_MARGIN_GAP = 2.5
"""Of a font's size; lines of a running head are no farther apart."""
_SAME_PLACE = 6.0
"""Points; a running head is about as high on each page."""
_OTHER_SIZE = 0.15
"""Of a font's size; what differs more is other text, such as a note's."""
_LARGE = 1.2
"""Times the size of most lines; a larger line is a heading, unless most pages have it."""
_CAPTION = re.compile(r"(?:table|fig(?:ure|\.)) [a-z]?\d", re.I)
_NAMES, _ROWS = 4, 6
"""Pieces of a line, at a minimum, that are columns' names; and lines that are looked at below."""
_PARAGRAPH_GAP = 1.25
"""Of the distance of the lines above and below; a wider one ends a paragraph."""
_USUAL, _TOUCHING = 1.2, 0.8
_SPACE = 0.25
"""Of a font's size."""
_RAGGED = 0.1
"""Of a column's width; lines of a paragraph are that much shorter, at most, than they need be."""
_INDENT = 0.8
_BELOW = 4.0
"""Points; about so near to one another items of a list begin, as numbers may end at one place."""
_FULL = 5.0
"""Of a font's size; a line that ends so near to the column's end may go on in another column."""
_ROOM = 0.3
"""Of a column's width; a paragraph goes as far but for this, however short its lines are."""
_GOES_ON = re.compile(r"(?:[,&/-]|\b(?:and|or|of|the|for|to|in|by|with|a|an|at|on))$")
_OPENING = "([{\"'„“‘«‚&+-–—/"  # noqa: RUF001, quotes and dashes
"""What a text may go on with after a line's end, other than letters."""
_NAME_WORDS = 3
_MAX_HEADING_CHARS = 150
_MAX_HEADING_LINES = 3
_MAX_BOLD_WORDS = 14
"""Of a heading that is no larger than the text; more are a sentence that is set off."""
_HEADING_SIZE = 1.12
_LETTER = re.compile(r"[A-Z][.)]")
_DRAWN = " "
"""Stands for a mark that is no text."""
_SECTION = re.compile(r"(?:\d{1,2}\.(?:\d{1,2}\.?)*|[A-Z]\.) ")
"""Its number or letter, before its heading."""


@dataclass(slots=True)
class Text:
    """A paragraph, an item or a heading.

    Attributes:
        left: Where its first line begins.
        page: That it begins on, from 1.
        mark: Of an item, as `Block.mark` has it; empty for others.
        is_full: Whether its last line goes to the column's end.
        tag: What the file says that it is.
    """

    lines: list[str]
    left: float
    size: float
    is_bold: bool
    page: int
    is_full: bool
    mark: str = ""
    tag: Tag | None = None


# Running heads


def without_margins(
    pages: Sequence[list[list[Piece]]],
) -> tuple[list[list[list[Piece]]], list[str]]:
    """Pages of lines without running heads, feet and page numbers; and the first of each head."""
    usual = median([line[0].size for lines in pages for line in lines] or [0.0])
    ends = [lines[:_MARGIN_LINES] + lines[-_MARGIN_LINES:] for lines in pages]
    texts = Counter(text for lines in ends for text in {*map(text_of, lines)})
    often = {text for text, count in texts.items() if count > max(2, len(pages) / 2)}
    sides = [(lines, lines[::-1]) for lines in (pages if len(pages) > 1 else ())]
    margins = [[_margin(side, usual, often) for side in both] for both in sides]
    everywhere = Counter(_look(line) for lines in pages for line in lines)
    at_end = Counter(_look(line) for both in margins for line in chain(*both))
    found = Counter(key for both in margins for key in {*chain(*map(_keys, chain(*both)))})
    enough = min(3, max(2, len(pages) // 2))
    names = {id(line) for lines in pages for line in _names_in(lines)}
    numbers, running = set[int](), set[int]()
    for side, end in zip(chain(*sides), chain(*margins), strict=True):
        # Without a gap before the text, what is nearer to it than a line of it is of it too.
        may_be, is_apart = True, _is_apart(side, len(end))
        for line in end:
            if _PAGE_NUMBER.fullmatch(text := text_of(line)):
                numbers.add(id(line))
                continue
            is_often = any(found[key] >= enough for key in _keys(line))
            may_be &= is_often or is_apart
            # A line of each record of a list may stand there, and what a table has again.
            is_again = everywhere[look := _look(line)] >= 2 * at_end[look] or id(line) in names
            if is_often and may_be and not is_again and not _CAPTION.match(text):
                running.add(id(line))
    heads = dict[str, str]()
    for line in (one for lines in pages for one in lines if id(one) in running):
        heads.setdefault(_keys(line)[0][0], text_of(line))
    kept = [[line for line in lines if id(line) not in numbers | running] for lines in pages]
    return kept, list(heads.values())


def _margin(lines: list[list[Piece]], usual: float, often: set[str]) -> list[list[Piece]]:
    """The lines at a page's end that may be its running head: small, and near together.

    Args:
        often: Lines that most pages have at their ends, of any size.
    """
    found = list[list[Piece]]()
    for number, line in enumerate(lines[:_MARGIN_LINES]):
        is_large = line[0].size > _LARGE * usual and text_of(line) not in often
        if _is_apart(lines, number) or is_large:
            break
        found.append(line)
    return found


def _is_apart(lines: list[list[Piece]], number: int) -> bool:
    """Whether there is a gap before a line, unless it is the first."""
    near = lines[number - 1 : number + 1] if number else []
    return len(near) > 1 and abs(_distance(*near)) > _MARGIN_GAP


def _names_in(lines: list[list[Piece]]) -> Iterator[list[Piece]]:
    """The first lines of a page that name the columns of a table below them."""
    for number, line in enumerate(lines[:_MARGIN_LINES], 1):
        below = lines[number : number + _ROWS]
        num_rows = sum(len(one) >= _NAMES - 1 for one in below)
        if len(line) >= _NAMES and 2 * num_rows > len(below):
            yield line


def _look(line: list[Piece]) -> tuple[str, str, int]:
    """What is the same in lines of the same words, but for numbers in these."""
    first, last = line[0].words[0].text, line[0].words[-1].text
    return _DIGITS.sub("", first) or first, _DIGITS.sub("", last) or last, len(line[0].words)


def _keys(line: list[Piece]) -> list[tuple[str, int]]:
    """A line's words without its numbers, with its height in steps, of which two are near."""
    words = _DIGITS.sub("", text_of(line)).strip(" |-–—.")  # noqa: RUF001, dashes
    step = line[0].box.middle / _SAME_PLACE
    return [(words, int(step)), (words, int(step + 0.5) + 100_000)] if words else []


def text_of(line: Sequence[Piece]) -> str:
    return " ".join(piece.text for piece in line)


# Paragraphs


def paragraphs(
    lines: Sequence[list[Piece]], page: int, counter: Counting, right: float = 0.0
) -> list[Text]:
    """A column's lines as paragraphs and items.

    Args:
        right: How far the column goes.
    """
    if not lines:
        return []
    edge, start = max(line[-1].box.right for line in lines), min(line[0].box.left for line in lines)
    edge = max(edge, right - _ROOM * (right - start))
    found = list[Text]()
    distances = [_distance(above, line) for above, line in pairwise(lines)]
    texts = list(map(text_of, lines))
    for place, line in enumerate(lines):
        above = lines[place - 1] if place else None
        near = [*distances[max(0, place - 2) : place - 1], *distances[place : place + 1]]
        usual = min((one for one in near if one > _TOUCHING), default=_USUAL)
        item = found[-1].left if found and found[-1].mark else inf
        hangs, is_within = line[0].box.left > item + 1, line[0].box.left > item - 1
        ends = above is None or _ends(above, line, inf if hangs else edge, usual)
        text, mark = texts[place], ""
        rest = text.partition(" ")[2]
        label = _label(line, above)
        if rest and has_bullet(line[0]):
            mark = "-"
        elif numbered := _ITEM.match(text):
            left, number = line[0].box.left, numbered["number"]
            mark = counter.mark(number, left, is_apart=ends or is_within)
            mark = mark or (f"{number}." if label else "")
            rest = text[numbered.end() :]
        elif label and rest and not all(piece.is_bold for piece in line):
            mark = label if label[:1].isalnum() else "-"
            rest = text if label == _DRAWN else rest
        if mark or ends:
            bold = all(piece.is_bold for piece in line)
            left, words, tag = line[0].box.left, [rest if mark else text], line[-1].tag
            size = line[0].size
            found.append(Text(words, left, size, bold, page, is_full=False, mark=mark, tag=tag))
        else:
            last = found[-1]
            last.lines.append(text)
            last.is_bold &= all(piece.is_bold for piece in line)
        found[-1].is_full = edge - line[-1].box.right < _FULL * line[-1].size
    return found


def _label(line: list[Piece], above: list[Piece] | None) -> str:
    """What the file says to be an item's mark, at a line's beginning; "" if there is none.

    A mark that is drawn is none of the page's words. A page's first item may be the rest of one.
    """
    words = takewhile(lambda word: word.tag and word.tag.kind == "Lbl", line[0].words)
    if label := "".join(word.text for word in words):
        return label
    tag, before = line[0].tag, above[-1].words[-1].tag if above else None
    is_item = tag is not None and tag.kind == "LI" and before is not None and tag != before
    first = line[0].words[0].text
    if not is_item or (first.isalpha() and first.islower()):
        return ""
    return first if _LETTER.fullmatch(first) else _DRAWN


class Counting:
    """Tells items' numbers from numbers that a line begins with by chance: they go on."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, int | None], str] = {}
        """The number that comes next, for its kind and where its list begins, or None anywhere."""

    def mark(self, number: str, left: float, *, is_apart: bool) -> str:
        """The mark of an item with this number; "" if it is none.

        Args:
            left: Where its line begins.
        """
        is_plain = number.isdecimal() and number[0] != "0"
        if number.isdecimal():
            number = str(int(number))
            following = {"decimal": str(int(number) + 1)}
        else:
            kind = "capital" if number.isupper() else "letter"
            following = {kind: chr(ord(number[0]) + 1)} if len(number) == 1 else {}
            if number in _ROMAN[:-1]:
                following["roman"] = _ROMAN[_ROMAN.index(number) + 1]
        at = round(left / _BELOW)
        near = ((kind, place) for kind in following for place in (at - 1, at, at + 1))
        is_below = any(self._next.get(key) == number for key in near)
        is_next = any(self._next.get((kind, None)) == number for kind in following)
        if not (is_below or is_next or number in {"1", "a", "i", "A"}):
            return ""
        if not (is_plain or is_apart or is_below):
            return ""
        for kind, its in following.items():
            self._next[kind, None] = self._next[kind, at] = its
        return f"{number}."


def _distance(above: list[Piece], line: list[Piece]) -> float:
    return (line[0].box.middle - above[0].box.middle) / max(line[0].size, 1)


def _are_apart(tag: Tag, after: Tag) -> bool | None:
    """Whether a paragraph ends between two tags; None if they do not say.

    Programs that guess the tags of a text begin a paragraph at a line's capital.
    """
    if tag == after:
        return False if tag.is_heading else None
    return True if tag.is_heading or after.is_heading or after.kind == "Lbl" else None


def _ends(above: list[Piece], line: list[Piece], edge: float, usual: float) -> bool:
    """Whether a paragraph ends between two lines, of which the first may go to an edge."""
    size, first, last = line[0].size, line[0].words[0], above[-1].words[-1]
    if first.tag and last.tag and (is_apart := _are_apart(last.tag, first.tag)) is not None:
        return is_apart
    are_entries = all(len(one) > 1 and is_value(one[-1]) for one in (above, line))
    if above[-1].is_led or are_entries or abs(size - above[0].size) > _OTHER_SIZE * size:
        return True
    if not 0 < _distance(above, line) <= _PARAGRAPH_GAP * usual or line[0].is_raised(first):
        return True
    before = text_of(above)
    if before.endswith(HYPHEN):
        return False
    if above[-1].words[-1].is_bold != first.is_bold and above[0].words[0].is_bold != first.is_bold:
        return True
    room = edge - above[-1].box.right
    needed = (size if is_unspaced(first.text) else first.box.width) + 2 * _SPACE * size
    would_fit = inf > room > max(needed, _RAGGED * (edge - line[0].box.left))
    is_other = not first.text[:1].isalpha() and first.text[0] not in _OPENING
    is_new = first.text[:1].isupper() or bool(_ENDS.search(before))
    is_new = is_new or ((is_other or is_unspaced(first.text)) and not _GOES_ON.search(before))
    may_indent = edge < inf or before.endswith(":")
    is_indented = may_indent and line[0].box.left - above[0].box.left > _INDENT * size
    return is_new and (would_fit or (is_indented and bool(_ENDS.search(before))))


# The document


def body_size(texts: Sequence[Text]) -> float:
    """The size of most of a document's text."""
    sizes = Counter[float]()
    for text in texts:
        sizes[round(2 * text.size) / 2] += sum(map(len, text.lines))
    return sizes.most_common(1)[0][0] if sizes else 0.0


def is_heading(text: Text, body: float) -> bool:
    """Whether a paragraph looks like a heading: short, and larger than the text or bold.

    With a section's number, a bold line may be an item too, and end as a sentence does.
    """
    words = " ".join(text.lines)
    if len(words) > _MAX_HEADING_CHARS or not any(map(str.isalpha, words)):
        return False
    if text.tag and text.tag.is_heading:
        return True
    is_short = len(text.lines) == 1 and len(words.split()) <= _MAX_BOLD_WORDS
    is_bold = text.is_bold and is_short and text.size > 0.95 * body
    is_numbered = is_bold and bool(_SECTION.match(f"{text.mark} {words}".lstrip()))
    if (text.mark and not is_numbered) or len(text.lines) > _MAX_HEADING_LINES:
        return False
    if words[-1] in ",;" or (words[-1] == "." and not is_numbered):
        return False
    return text.size > _HEADING_SIZE * body or is_bold


def goes_on(text: Text, after: Text) -> bool:
    """Whether a paragraph at a column's end goes on in one at the next column's beginning."""
    if after.mark or abs(text.size - after.size) > _OTHER_SIZE * text.size:
        return False
    last, first = text.lines[-1], after.lines[0]
    if last.endswith(HYPHEN):
        return True
    is_open = not _ENDS.search(last) and text.is_bold == after.is_bold
    is_line = text.is_full and last[-1].islower() and len(first.split()) > _NAME_WORDS
    return is_open and (first[:1].islower() or (is_line and not first[:1].isupper()))
