"""Cuts a document into passages.

    text     |-- heading --|----------------------|--- heading --|---------|- item -|- item -|-----|
    passages               |=========|                           |=======================|
                                  |===============|              .             |=========|=========|

A passage is whole sentences, items and rows of about `passage_tokens`, of one section, without its
heading: that goes before it when it is searched and read. Rows of a table, and a command's options
in code, are a passage of a sixth of that: so a row is found by itself, and a reader does not take
the value of another. A longer row is cut between cells; its first cells are the last heading of
each further part. A passage ends at the end of a list, a table or code rather than in it. Between
two sentences the second passage repeats the one before it, if that is short; between two items, the
sentence that introduces the list is the last of its headings, and then the terms of its items. What
is left of a section joins the passage before it if it is less than a third of one, and no row.

A sentence ends at `.`, `!` or `?` before white space, at their full-width forms, before an empty
line, and before a list's item or a table's row. Not at the full stop of an abbreviation, an
initial or a list's number. One of more tokens than it may have is cut between words. Tokens are
estimated: any model may read the passages.
"""

from __future__ import annotations

# ruff: noqa: RUF001, the signs of other scripts are meant
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from qa_service.headings import SEPARATOR
from qa_service.retrieval.documents import Block, Document, Kind, Mark, Passage, shortened
from qa_service.wire.sections import PIECES

PASSAGE_TOKENS = 150  # about a paragraph of SQuAD, on which readers are trained
_MAX_LEAD_CHARS = 160
"""A longer sentence does not go before the items that it introduces."""
_MAX_LABEL_CHARS = 120
"""Of a long row, at whose further parts its first cells stand as the last heading."""
_PROSE = frozenset({Kind.PARAGRAPH, Kind.HEADING})
_TABLE = frozenset({Kind.CAPTION, Kind.ROW})
_CARRIED = 3
"""A passage repeats a sentence of at most a third of its length."""
_ROWS_SHARE = 6
"""Rows of a table are together up to a sixth of a passage's length."""
_BREAK = re.compile(
    r"(?P<paragraph>\n[ \t\r]*\n)"
    r"|(?P<item>\n(?=[ \t]{0,12}(?:[-*+•|]|\d{1,3}[.)])[ \t]))"
    r"|(?P<stop>(?:(?<=[^\s.!?…])|(?<=[^\s.!?…]\s))[.!?…]{1,8}[\"'”’»)\]*_]{0,4}(?=\s))"
    r"|(?P<wide>[。！？][”’」』）]{0,4})"
)
_ABBREVIATIONS = frozenset({
    "al", "approx", "bzw", "ca", "cf", "co", "corp", "dept", "dr", "e.g", "ed", "eds", "fig",
    "figs", "gen", "gov", "hr", "i.e", "inc", "jr", "lt", "ltd", "m.e", "mme", "mr", "mrs", "ms",
    "mt", "nr", "no", "p", "pp", "prof", "rep", "rev", "sen", "sr", "st", "u.a", "usw", "vgl",
    "vol", "vs", "z.b",
})  # fmt: skip
_CELL_END = re.compile("; ")
_OPTION = re.compile(
    r"^[ \t]{0,12}-(?![rwxsStT-]{9}|[\d.]+[ \t]+-?\d)-?\w"  # no file's rights, no numbers
    r"(?:.*?[ \t]{2}[\w(\[]|[^\n\\]*\n[ \t]{9,}\w)",
    re.MULTILINE,
)
_WITH_FURTHER_LINES = re.compile(r"(?P<indent>[ \t]*)[^\n]*(?:\n+(?P=indent)[ \t][^\n]*)*")
_MIN_OPTIONS, _MIN_OPTIONS_SHARE = 4, 1 / 3  # of a list: their number, their share of the code
_WORD_CHARS = 12  # before a full stop are looked at; abbreviations are shorter
MAX_CHARS_PER_TOKEN = 8
"""A sentence is also cut at this number of characters per token: white space is no token."""


class _Section(NamedTuple):
    heading: str
    blocks: list[Block]


class _Piece(NamedTuple):
    """A sentence, an item, a row, or lines of code: what no passage ends in.

    Attributes:
        lead: The sentence before the list that this is in, and items' terms; or a table's caption.
        begins: How many tokens the paragraph, list, table or code has that begins with it; or 0.
    """

    start: int
    end: int
    tokens: int
    line: int
    kind: Kind
    is_prose: bool
    lead: str
    begins: int
    page: int
    part: str


def cut(document: Document, passage_tokens: int = PASSAGE_TOKENS) -> Iterator[Passage]:
    """Yields a document's passages in its order; together they hold all but headings.

    A passage has about `passage_tokens`; none has more than 4/3 of it, nor 11 times as many
    characters.
    """
    for section in _sections(document):
        cutter = _Cutter(section.heading, passage_tokens)
        for piece in _pieces(document.text, section.blocks, passage_tokens):
            yield from cutter.add(piece)
        yield from cutter.end()


def _sections(document: Document) -> Iterator[_Section]:
    """The parts between headings; a document of headings alone is one part with them."""
    blocks = document.blocks or (Block(Kind.PARAGRAPH, document.text, end=len(document.text)),)
    if all(block.kind is Kind.HEADING for block in blocks):
        yield _Section("", list(blocks))
        return
    path, inside = dict[int, str](), list[Block]()
    for block in blocks:
        if block.kind is not Kind.HEADING:
            inside.append(block)
            continue
        yield _Section(_joined(path.values()), inside)
        path = {level: text for level, text in path.items() if level < block.level}
        path[block.level] = shortened(block.text)
        inside = []
    yield _Section(_joined(path.values()), inside)


def _joined(path: Iterable[str]) -> str:
    return shortened(SEPARATOR.join(path))


def _pieces(text: str, blocks: Sequence[Block], passage_tokens: int) -> Iterator[_Piece]:
    lead = title = ""
    for group in _groups(blocks):
        is_prose = group[0].kind in _PROSE and not group[0].level
        introduced_by = "" if is_prose else lead
        if group[0].kind in _TABLE:
            title = title if group[0].goes_on else ""
            introduced_by = title or introduced_by
        pieces, names = list[_Piece](), dict[int, str]()
        for block in group:
            inner = block.level - (block.kind is Kind.ITEM)
            names = {level: name for level, name in names.items() if level <= inner}
            its_lead = _within(introduced_by, *names.values())
            pieces += _pieces_of(text, block, is_prose, its_lead, passage_tokens)
            names[inner + 1] = _name(block)
            if block.kind is Kind.CAPTION:
                caption = _lead("", text[block.start : block.end])
                title = title if block.goes_on else caption
                introduced_by = _within(title, caption)
        size = sum(piece.tokens for piece in pieces)
        yield from (piece._replace(begins=0 if n else size) for n, piece in enumerate(pieces))
        if is_prose and pieces:
            lead = _lead(lead, text[pieces[-1].start : pieces[-1].end])
        elif lead.endswith(":"):
            lead = f"{lead} "  # the next sentence counts for the next list


def _lead(before: str, sentence: str) -> str:
    """The sentence that introduces a list: the last, or one before it that ends with a colon."""
    if before.endswith(":") and not sentence.endswith(":"):
        return before
    return sentence if len(sentence) <= _MAX_LEAD_CHARS and "\n" not in sentence else ""


def _within(*leads: str) -> str:
    """What stands before a passage, from the outside in; the last of it alone if that is long."""
    given = [*dict.fromkeys(filter(None, leads))]
    whole = SEPARATOR.join(given)
    return whole if len(whole) <= _MAX_LEAD_CHARS else given[-1]


def _name(item: Block) -> str:
    """What an item has before its first colon, if that is short: a term that the rest explains."""
    name, colon, _ = item.text.partition(": ")
    return name if item.kind is Kind.ITEM and colon and len(name) <= _MAX_LABEL_CHARS else ""


def _groups(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Paragraphs one by one; together a list's items, a table's rows, code that follows code."""
    group = list[Block]()
    for block in blocks:
        if group and not _goes_on(group[-1], block):
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _goes_on(before: Block, block: Block) -> bool:
    if before.kind is Kind.CAPTION:
        return True
    if before.level and block.level:
        return not (block.is_first and block.level == 1)
    return block.kind is before.kind and block.kind not in _PROSE and not block.is_first


def _pieces_of(
    text: str, block: Block, is_prose: bool, lead: str, max_tokens: int
) -> Iterator[_Piece]:
    place, line, its_lead = block.start, block.line, lead
    kind, cut_up = block.kind, _CUT_BY.get(block.kind, sentences)
    if kind is Kind.CODE and _lists_options(text, block):
        kind, cut_up = Kind.ROW, options
    for start, end, tokens in cut_up(text, block.start, block.end, max_tokens):
        if block.line:
            line += text.count("\n", place, start)
        place = start
        if block.kind is Kind.ROW and start > block.start:
            row = text[block.start : start]
            label = row[: _MAX_LABEL_CHARS + 1].rpartition("; ")[0] or row[:_MAX_LABEL_CHARS]
            its_lead = SEPARATOR.join(filter(None, (lead, label)))
        elif block.kind is Kind.ITEM and start > block.start:
            its_lead = _within(lead, _name(block))
        yield _Piece(start, end, tokens, line, kind, is_prose, its_lead, 0, block.page, block.part)


class _Cutter:
    """Collects a section's pieces; keeps the last passage open for a short remainder."""

    def __init__(self, heading: str, passage_tokens: int) -> None:
        self._heading = heading
        self._limit = passage_tokens
        self._max_chars = passage_tokens * MAX_CHARS_PER_TOKEN
        self._held: list[_Piece] = []
        self._tokens = 0
        self._repeated = 0
        """How many of the held pieces the passage before has too: 0 or 1."""
        self._before: Passage | None = None
        """The passage before, not yet given out."""

    def add(self, piece: _Piece) -> Iterator[Passage]:
        """Takes the next piece; yields a passage that ended before it."""
        if len(self._held) > self._repeated and self._ends_before(piece):
            if self._before:
                yield self._before
            self._before = self._passage()
            last = self._held[-1]
            is_sentence = last.is_prose or last.kind is piece.kind is Kind.PARAGRAPH
            is_repeated = is_sentence and _CARRIED * last.tokens <= self._limit
            self._held = [last] if is_repeated else []
            self._tokens = sum(held.tokens for held in self._held)
            self._repeated = len(self._held)
        if self._repeated and self._is_too_much(piece):
            self._held, self._tokens, self._repeated = [], 0, 0
        self._held.append(piece)
        self._tokens += piece.tokens

    def end(self) -> Iterator[Passage]:
        """The section ends: gives out what there is."""
        new = self._held[self._repeated :]
        if self._before and new and new[0].kind not in _TABLE:
            end, tokens = new[-1].end, sum(piece.tokens for piece in new)
            if 3 * tokens < self._limit and 3 * (end - self._before.end) < self._max_chars:
                marks = (*self._before.marks, *_marks(new))
                self._before = msgspec.structs.replace(self._before, end=end, marks=marks)
                new = []
        if self._before:
            yield self._before
        if new:
            yield self._passage()

    def _ends_before(self, piece: _Piece) -> bool:
        """Whether the passage ends here: it is full, or what begins here fits only in the next."""
        if self._is_too_much(piece):
            return True
        if not piece.begins:
            return False
        is_after_list = piece.is_prose and not self._held[-1].is_prose
        if is_after_list and 2 * self._tokens >= self._limit:
            return True
        fits_only_there = self._tokens + piece.begins > self._limit >= piece.begins
        return fits_only_there and (3 - piece.is_prose) * self._tokens >= self._limit

    def _is_too_much(self, piece: _Piece) -> bool:
        """Whether a piece makes the passage too long: in tokens, or in white space."""
        if piece.end - self._held[0].start > self._max_chars:
            return True
        is_row = piece.kind is self._held[-1].kind is Kind.ROW
        limit = self._limit // _ROWS_SHARE if is_row else self._limit
        return self._tokens + piece.tokens > limit

    def _passage(self) -> Passage:
        first, last = self._held[0], self._held[-1]
        heading = _joined(filter(None, (self._heading, first.lead)))
        marks = tuple(_marks(self._held))
        return Passage(first.start, last.end, heading, first.line, marks)


def _marks(pieces: Iterable[_Piece]) -> Iterator[Mark]:
    before = ""
    for piece in pieces:
        place = f"{piece.part}, row {piece.line}" if piece.part and piece.line else piece.part
        if place != before:
            yield Mark(piece.start, piece.page, place)
        before = place


# Each yields the parts' starts, ends and tokens: about how many a model's tokenizer makes of them.


def sentences(text: str, start: int, end: int, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """Sentences without the white space around them; together they hold all else."""
    for found in (*_BREAK.finditer(text, start, end), None):
        is_stop = found is not None and found.lastgroup == "stop"
        if found and is_stop and not _ends_sentence(text, found.start(), found.end()):
            continue
        after = found.end() if found else end
        if stripped := text[start:after].strip():
            begin = text.index(stripped[0], start)
            yield from parts(text, begin, begin + len(stripped), max_tokens)
        start = after


def _ends_sentence(text: str, stop: int, after: int) -> bool:
    """Whether a sentence ends at a sign that stands before white space."""
    if text[stop] != ".":
        return True
    following = text[after : after + 2].lstrip()
    if following[:1].islower():
        return False
    if after > stop + 1:  # a quotation or a bracket ends with it
        return True
    words = text[max(0, stop - _WORD_CHARS) : stop].split()
    word = words[-1].lstrip("(\"'“‘[") if words and not text[stop - 1].isspace() else ""
    is_initial = len(word) == 1 and word.isupper()
    is_item = word.isdecimal() and len(word) <= 2 and not text.endswith(f" {word}", 0, stop)
    return not (is_initial or is_item or word.lower() in _ABBREVIATIONS)


def lines(text: str, start: int, end: int, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """Lines without empty ones, and the parts of those that are too long."""
    while start < end:
        found = text.find("\n", start, end)
        line_end = end if found < 0 else found
        if not text[start:line_end].isspace() and start < line_end:
            yield from parts(text, start, line_end, max_tokens)
        start = line_end + 1


def options(text: str, start: int, end: int, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """A command's options, each with what is said of it, and the lines around them."""
    place = start
    for begin, after in _options_in(text, start, end):
        yield from lines(text, place, begin, max_tokens)
        yield from parts(text, begin, after, max_tokens)
        place = after
    yield from lines(text, place, end, max_tokens)


def _options_in(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where options begin, and where the lines end that are indented more."""
    begins = [found.start() for found in _OPTION.finditer(text, start, end)]
    for begin, after in itertools.pairwise([*begins, end]):
        if found := _WITH_FURTHER_LINES.match(text, begin, after):
            yield begin, begin + len(found[0].rstrip())


def _lists_options(text: str, code: Block) -> bool:
    """Whether it is what a command prints of its use, rather than a program that has it too."""
    found = [*_options_in(text, code.start, code.end)]
    size = sum(after - begin for begin, after in found)
    return len(found) >= _MIN_OPTIONS and size >= _MIN_OPTIONS_SHARE * (code.end - code.start)


def cells(text: str, start: int, end: int, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """A table's row; of one that is too long, some cells each."""
    begin, place, tokens = start, start, 0
    for cell_end in (*(found.end() for found in _CELL_END.finditer(text, start, end)), end):
        size = len(PIECES.findall(text, place, cell_end))
        if tokens and tokens + size > max_tokens:
            yield from parts(text, begin, place - len("; "), max_tokens)
            begin, tokens = place, 0
        place, tokens = cell_end, tokens + size
    yield from parts(text, begin, end, max_tokens)


def parts(text: str, start: int, end: int, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """All of it, or pieces between words if it is too long."""
    max_chars = max_tokens * MAX_CHARS_PER_TOKEN
    if end - start <= max_chars:
        tokens = len(PIECES.findall(text, start, end))
        if tokens <= max_tokens:
            yield start, end, tokens
            return
    tokens = word_start = tokens_before = 0
    for piece in PIECES.finditer(text, start, end):
        place = piece.start()
        if text[place - 1 : place].isspace():
            word_start, tokens_before = place, tokens
        if tokens == max_tokens or piece.end() - start > max_chars:
            cut, kept = (word_start, tokens_before) if word_start > start else (place, tokens)
            yield start, start + len(text[start:cut].rstrip()), kept
            start, tokens = cut, tokens - kept
        tokens += 1
    yield start, end, tokens


_CUT_BY = {Kind.CODE: lines, Kind.ROW: cells, Kind.ITEM: parts}
