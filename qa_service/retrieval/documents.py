"""What is read from a file: blocks, in order, of which a document is written; and faults.

A format's reader makes headings, paragraphs, items, rows and code of a file (`Block`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

import msgspec

MAX_DEPTH = 8
"""Lists nested deeper are written as if they were so deep."""

_INVISIBLE = re.compile("[\0\u00ad\u200b-\u200d\u2060\ufeff\ufffe\uffff]")
_SPACES = re.compile(r"[^\S\n]{2,}|[^\S\n ]")
_BOX = re.compile(r"[☐☑☒](?=\w)")
_LETTERS = re.compile(r"[^\W\d_]{2}")
_MAX_BOLD_WORDS = 14
_SECTION = re.compile(
    r"(\d{1,2}(?:\.\d{1,2}){1,4})\.?\s+(?=[^\W\d_a-z])"
    r"(?:(?![.:;?!]\s)[^\t\n]){2,80}(?<![\s.…]\d)(?<!\d\d)"
)
"""A section's heading whose number is typed: "4.6 Event"; no sentence, nor an entry with a page."""
_LINE_ENDS = re.compile(r" ?\n\s*")
_POWER = re.compile(r"[-+−–]?[\w.]{1,4}|[-+−–]?\d+(?:[.,]\d+)*")  # noqa: RUF001, minus signs
_NO_POWER = re.compile(r"st|nd|rd|th|tm|sm|r|o|a|e|er|re|ème|me|le|lle", re.IGNORECASE)
MAX_NAME_CHARS = 200
"""Longest title, heading or id; each passage carries them, so their length has a bound."""


class Kind(Enum):
    HEADING = auto()
    PARAGRAPH = auto()
    ITEM = auto()
    CAPTION = auto()
    ROW = auto()
    CODE = auto()


class Block(NamedTuple):
    """A part of a document that a reader sees as one.

    Attributes:
        line: Its first line in the file, from 1; 0 if the format has no lines.
        level: Of a heading, 1 for the highest; of others, how many lists are around it.
        mark: What stands before an item's text: "-", "1." or nothing.
        is_first: Whether a list or a table, or a further part of one, begins with it.
        page: That it begins on, or its slide, from 1; 0 if the format has neither.
        part: What a person calls that, or the sheet that it is in: "page 3", "sheet Prices".
        goes_on: Whether it belongs to a table that has begun before.
        start: Where it stands in its document's text, once that is written: `text[start:end]`.
    """

    kind: Kind
    text: str
    line: int = 0
    level: int = 0
    mark: str = ""
    is_first: bool = False
    page: int = 0
    part: str = ""
    goes_on: bool = False
    start: int = 0
    end: int = 0


def without_invisible(text: str) -> str:
    """A text without the characters that nobody sees: NUL, soft hyphens, zero-width ones."""
    return _INVISIBLE.sub("", text)


def folded(text: str) -> str:
    """A text with single spaces, one after a box to tick; line breaks that are meant stay."""
    words = _SPACES.sub(" ", text if text.isascii() else _BOX.sub(r"\g<0> ", text))
    return (_LINE_ENDS.sub("\n", words) if "\n" in words else words).strip()


def scripted(name: str, before: str, inner: str) -> str:
    """What raised ("sup") or lowered characters are written as: 10^6, H2O, 5th.

    A power has `^` before it, "th" and the like have nothing, and a number after a number has `_`.
    """
    words = inner.strip()
    if name != "sup":
        return f"_{words}" if before[-1:].isdigit() and words[:1].isalnum() else inner
    is_power = before[-1:].isalnum() or before[-1:] in {")", "]"}
    is_power = is_power and _POWER.fullmatch(words) is not None and not _NO_POWER.fullmatch(words)
    return f"^{words}" if is_power else inner


class BlockList:
    """Collects blocks; knows the lists around the place where it is.

    Attributes:
        blocks: What was added.
        page: That of the blocks that are added from now on.
        part: Likewise.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.page, self.part = 0, ""
        self._lists = 0
        self._begins_list = False
        self._marks: list[str | None] = []
        """For each open item its mark, until a block has taken it."""
        self._prefix = ""
        self._sections = set[tuple[int, ...]]()
        """The numbers of sections in lines without a style."""
        self._numbered = dict[str, int]()
        """Their headings and blocks; one that comes again is of a table of contents."""
        self._level, self._is_bold = 0, False
        """Of the last heading that is declared; and whether the last block is one by its look."""

    def begin_list(self) -> None:
        self._lists += 1
        self._begins_list = True

    def end_list(self) -> None:
        self._lists = max(0, self._lists - 1)
        self._begins_list = False

    def nest(self, depth: int) -> None:
        """Lists begin or end until the place is in this many."""
        while self._lists < depth:
            self.begin_list()
        self.unnest(depth)

    def unnest(self, depth: int = 0) -> None:
        """Lists end until the place is in no more than this many."""
        while self._lists > depth:
            self.end_list()

    def begin_item(self, mark: str) -> None:
        """An item begins; the next paragraph is its text."""
        self._marks.append(mark)

    def begin_definition(self, term: str) -> None:
        """An item begins whose text has a term before it."""
        self.begin_item("")
        if term:
            self._prefix = f"{term.rstrip(':')}: "

    def item(self, depth: int, mark: str, text: str) -> None:
        """Adds an item that is `depth` lists deep."""
        self.nest(depth)
        self.begin_item(mark)
        self.paragraph(text)
        self.end_item()

    def end_item(self) -> None:
        if self._marks:
            self._marks.pop()

    def prefix(self, words: str) -> None:
        """Puts words before the next paragraph, such as `Note: `."""
        self._prefix = words

    def heading(self, level: int, text: str, line: int = 0) -> None:
        if words := _one_line(text):
            self._level = level
            self._add(Block(Kind.HEADING, words, line, level))

    def line(self, text: str, *, is_bold: bool) -> None:
        """Adds a line without a style: a heading below the last one, if it looks so.

        It is short, bold or with the number of a section, and a text follows.
        """
        may_be_heading = is_bold or text.lstrip()[:1].isdecimal()
        words = _one_line(text) if may_be_heading else ""
        is_name = 0 < len(words.split()) <= _MAX_BOLD_WORDS and words[-1] not in ".,;"
        depth = self._section_depth(words) if is_name else 0
        is_heading = depth or (is_bold and is_name and _LETTERS.search(words))
        if self._lists or self._marks or not is_heading:
            self.paragraph(text)
            return
        level = min(max(1, self._level) + max(1, depth), MAX_DEPTH)
        self._add(Block(Kind.HEADING, words, 0, level))
        self._is_bold = True
        if depth:
            self._numbered[words] = len(self.blocks) - 1

    def _section_depth(self, words: str) -> int:
        """Of how many numbers that of a section consists, if it is the next one; else 0."""
        found = _SECTION.fullmatch(words)
        if found is None:
            return 0
        number = tuple(map(int, found[1].removesuffix(".0").split(".")))
        if number[-1] > 1 and (*number[:-1], number[-1] - 1) not in self._sections:
            return 0
        self._sections.add(number)
        return len(number)

    def paragraph(self, text: str, line: int = 0) -> None:
        """Adds a paragraph; the first one in an item is the item."""
        words = folded(without_invisible(text))
        if not words:
            return
        words, self._prefix = self._prefix + words, ""
        mark = self._taken_mark()
        level = min(self._lists, MAX_DEPTH)
        if mark is None:
            self._add(Block(Kind.PARAGRAPH, words, line, level))
        else:
            is_first, self._begins_list = self._begins_list, False
            self._add(Block(Kind.ITEM, words, line, level, mark, is_first))

    def code(self, text: str, line: int = 0) -> None:
        """Adds lines that stay as they are."""
        kept = without_invisible(text).strip("\n").rstrip()
        if kept.strip():
            self._taken_mark()
            self._add(Block(Kind.CODE, kept, line, min(self._lists, MAX_DEPTH)))

    def table(
        self,
        head: Sequence[str],
        rows: Sequence[tuple[int, Sequence[str]]],
        caption: str = "",
        caption_line: int = 0,
        *,
        goes_on: bool = False,
    ) -> None:
        """Adds a table: its columns' names, and each row's line and cells.

        Args:
            caption: What the table is called; it goes with each passage of its rows.
            caption_line: Where it stands, if not at the first row.
            goes_on: Whether these are further rows of the table before, whose caption goes with
                their passages too.
        """
        names = [_cell(name).rstrip(":") for name in head]
        level = min(self._lists, MAX_DEPTH)
        if words := _cell(caption):
            line = caption_line or (rows[0][0] if rows else 0)
            self._add(Block(Kind.CAPTION, words, line, level, goes_on=goes_on))
        is_first = True
        for line, cells in rows:
            if words := row_text(names, [_cell(cell) for cell in cells]):
                row = Block(Kind.ROW, words, line, level, is_first=is_first, goes_on=goes_on)
                self._add(row)
                is_first = False

    def _add(self, block: Block) -> None:
        if block.kind is Kind.HEADING:
            if self._is_bold and block.level <= self.blocks[-1].level:
                self._demote(len(self.blocks) - 1)
            if (entry := self._numbered.pop(block.text, None)) is not None:
                self._demote(entry)
        self._is_bold = False
        self.blocks.append(block._replace(page=self.page, part=self.part))

    def _demote(self, place: int) -> None:
        """What was taken for a heading is a paragraph."""
        self.blocks[place] = self.blocks[place]._replace(kind=Kind.PARAGRAPH, level=0)

    def _taken_mark(self) -> str | None:
        if not self._marks or self._marks[-1] is None:
            return None
        mark = self._marks[-1]
        self._marks[-1] = None
        return mark


def _one_line(text: str) -> str:
    return folded(without_invisible(text)).replace("\n", " ")


def _cell(text: str) -> str:
    return " ".join(_BOX.sub(r"\g<0> ", without_invisible(text)).split())


def row_text(names: Sequence[str], cells: Sequence[str]) -> str:
    """A row as `Column: value; Column: value`; of cells without a column's name, their values."""
    parts = []
    for place, cell in enumerate(cells):
        name = names[place] if place < len(names) else ""
        if cell:
            parts.append(f"{name}: {cell}" if name and name != cell else cell)
    return "; ".join(parts)


class Parsed(NamedTuple):
    """What a reader makes of a file.

    Attributes:
        title: What the file says that it is called; "" if it says nothing.
    """

    blocks: list[Block]
    title: str = ""


class UnreadableError(Exception):
    """A file, or the rest of it, cannot be read; the message says why in a line."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """Where a person finds what stands from `start` on, until the next mark.

    Attributes:
        start: In code points of the document.
        page: The page or slide, from 1; 0 if the format has neither.
        place: That, or the sheet and its row, in words: "page 3", "sheet Prices, row 12".
    """

    start: int
    page: int
    place: str


class Passage(msgspec.Struct, frozen=True):
    """A part of a document: `text[start:end]`.

    Attributes:
        heading: The headings above its start, the highest first, joined by " > "; then the sentence
            that introduces it, if it begins within a list.
        line: The line of the file that it begins in, from 1; 0 if that is not known.
        marks: The first for its start; none if the format has no pages, slides or sheets.
    """

    start: int
    end: int
    heading: str = ""
    line: int = 0
    marks: tuple[Mark, ...] = ()


MAX_FIELDS = 64
"""Of a document, and of the values of one of them."""
FieldValues = tuple[str, ...]


class Document(msgspec.Struct, frozen=True, tag=True):
    """A text that answers may come from.

    Attributes:
        name: The file's path in its folder; of a file of many documents, with `#` and an id.
        blocks: In the text's order; none of a text that is as it was given.
        passages: What it is cut into; none before it is.
        fields: What else it says of itself, by name, for filters.
    """

    name: str
    title: str
    text: str
    blocks: tuple[Block, ...] = ()
    passages: tuple[Passage, ...] = ()
    fields: dict[str, FieldValues] = {}

    @property
    def headings(self) -> list[Block]:
        return [block for block in self.blocks if block.kind is Kind.HEADING]


class Fault(msgspec.Struct, frozen=True, tag=True):
    """A file, or a part of one, that is left out: where it stands, and why, each in a line."""

    where: str
    why: str


Message = Document | Fault | None
"""What the process that reads files sends, as a line of JSON; null when all of a file is read."""


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What reading may cost; the flags of `qa-index` say what each bounds."""

    max_file_bytes: int = 64 << 20
    max_document_cpu_s: int = 120
    max_memory_bytes: int = 2 << 30


class ReadFile(msgspec.Struct, frozen=True):
    """The order to read a file and to cut its documents into passages.

    Attributes:
        path: Where it is, in the file system's bytes.
        name: What its documents are called.
        passage_tokens: About how many tokens a passage has.
    """

    path: bytes
    name: str
    limits: ReadLimits
    passage_tokens: int


def shortened(words: str) -> str:
    """Makes of a title, heading or id one line of bounded length."""
    line = " ".join(words[: 4 * MAX_NAME_CHARS].split())
    return line if len(line) <= MAX_NAME_CHARS else line[: MAX_NAME_CHARS - 1] + "…"
