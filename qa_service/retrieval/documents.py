"""What is read from a file: documents, and faults in their place."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from qa_service.retrieval.blocks import Kind

MAX_NAME_CHARS = 200
"""Longest title, heading or id; each passage carries them, so their length has a bound."""


class UnreadableError(Exception):
    """A file, or the rest of it, cannot be read; the message says why in a line."""


class Heading(msgspec.Struct, frozen=True):
    """A heading of a document.

    Attributes:
        start: Where its line starts, in code points of the document's text.
        level: 1 for the highest.
    """

    start: int
    level: int
    text: str


class Place(NamedTuple):
    """Where a block stands in its document's text: `text[start:end]`.

    Attributes:
        level: Of a heading, 1 for the highest; of others, how many lists are around it.
        line: Its first line in the file, from 1; 0 if the format has no lines.
        is_first: Whether a list or a table begins with it.
        page: That it begins on, or its slide, from 1; 0 if the format has neither.
        part: What a person calls that, or the sheet that it is in: "page 3", "sheet Prices".
    """

    start: int
    end: int
    kind: Kind
    level: int = 0
    line: int = 0
    is_first: bool = False
    page: int = 0
    part: str = ""


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
        headings: In the text's order.
        blocks: In the text's order; none of a text that is as it was given.
        passages: What it is cut into; none before it is.
        fields: What else it says of itself, by name, for filters.
    """

    name: str
    title: str
    text: str
    headings: tuple[Heading, ...] = ()
    blocks: tuple[Place, ...] = ()
    passages: tuple[Passage, ...] = ()
    fields: dict[str, FieldValues] = {}


class Fault(msgspec.Struct, frozen=True, tag=True):
    """A file, or a part of one, that is left out: where it stands, and why, each in a line."""

    where: str
    why: str


Message = Document | Fault | None
"""What the process that reads files sends, as a line of JSON; null when all of a file is read."""


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What reading may cost.

    Attributes:
        max_file_bytes: Longest file, unpacked; of JSON lines, the longest line.
        max_memory_bytes: Address space of the process that reads.
    """

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
