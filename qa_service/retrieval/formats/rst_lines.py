"""Lines of reStructuredText, with their numbers in the file, and what reads them."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from qa_service.retrieval.blocks import BlockList

BULLET = re.compile(r"(?P<mark>[-*+•‣⁃])(?P<gap>[ \t]+|$)")  # noqa: RUF001, bullets
FIELD = re.compile(
    r":(?P<name>(?![:\s])(?:[^:\n\\`]|\\.|:(?=\S)(?!`)){1,80}):(?:[ \t]+(?P<text>.*)|[ \t]*)$"
)
EXPLICIT = re.compile(r"\.\.(?:[ \t]|$)|__[ \t]+\S")

_HEADER = re.compile(r"(?P<name>[A-Z][\w-]*):[ \t]*(?P<text>.*)$")


def split_header(lines: list[str]) -> tuple[str, list[str]]:
    """The title of a header as of a letter's, which PEPs have; and the lines, it as fields."""
    end = lines.index("") if "" in lines else len(lines)
    head = lines[:end]
    if end < 2 or not all(_HEADER.match(line) or line[0] == " " for line in head):
        return "", lines
    title = list[str]()
    is_title = False
    for line in head:
        found = _HEADER.match(line)
        is_title = found["name"] == "Title" if found else is_title
        if is_title:
            title.append(found["text"] if found else line.strip())
    fields = [line if line[0] == " " else f":{line}" for line in head]
    return " ".join(title), fields + lines[end:]


class Lines(NamedTuple):
    """Lines, and of each its number in the file."""

    lines: list[str]
    numbers: list[int]

    def part(self, start: int, end: int, columns: int = 0) -> Lines:
        """Some of the lines, without the columns that they are indented by."""
        cut = [
            line[columns:] if not line[:columns].strip() else line.lstrip()
            for line in self.lines[start:end]
        ]
        return Lines(cut, self.numbers[start:end])

    def indented_end(self, start: int, columns: int = 1) -> int:
        """Where lines end that are empty or indented by this many columns."""
        end = place = start
        blank = " " * columns
        while place < len(self.lines):
            line = self.lines[place]
            if line and not line.startswith(blank):
                break
            place += 1
            end = place if line else end
        return end

    def dedented(self, start: int, end: int, columns: int = 0) -> Lines:
        """Some of the lines without what indents all of them, of which at most these columns."""
        filled = [line for line in self.lines[start:end] if line]
        indent = min((len(line) - len(line.lstrip()) for line in filled), default=0)
        return self.part(start, end, min(columns or indent, indent) or columns)

    def behind(self, first: str | None, place: int, end: int) -> Lines:
        """The text behind a mark at a line, and the lines below that are indented."""
        return Lines([first or "", *self.dedented(place + 1, end).lines], self.numbers[place:end])

    def paragraph_end(self, start: int) -> int:
        """Where the next empty line is."""
        place = start
        while place < len(self.lines) and self.lines[place]:
            place += 1
        return place

    def skip_empty(self, place: int) -> int:
        """Where the next line is that is not empty."""
        while place < len(self.lines) and not self.lines[place]:
            place += 1
        return place

    def items(self, place: int, begin: re.Pattern[str]) -> tuple[list[tuple[str, Lines]], int]:
        """The marks and contents of a list's items that begin at a line, and where they end."""
        items = list[tuple[str, Lines]]()
        while place < len(self.lines) and (found := begin.match(self.lines[place])):
            end = self.indented_end(place + 1)
            column = found.end() if found["gap"] else len(found[0]) + 1
            inner = self.dedented(place + 1, end, column)
            first = self.lines[place][column:].strip()
            items.append((found["mark"], Lines([first, *inner.lines], self.numbers[place:end])))
            place = self.skip_empty(end)
        return items, place


class RawTable(NamedTuple):
    """A table whose cells are markup still; each row with its line in the file."""

    head: list[str]
    rows: list[tuple[int, list[str]]]


class Reader(Protocol):
    """What directives and lists need of the reader that they are in.

    Attributes:
        title: Of the document; empty if none has been found.
        level: Of the heading above.
    """

    out: BlockList
    title: str
    level: int

    def shown(self, text: str) -> str:
        """What inline markup shows."""

    def read(self, part: Lines, depth: int) -> None:
        """Adds the blocks of some lines."""

    def add_table(self, table: RawTable, depth: int) -> None:
        """Adds a table."""
