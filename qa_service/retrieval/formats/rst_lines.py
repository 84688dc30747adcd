"""Lines of reStructuredText, with their numbers in the file, and the items of lists in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

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

    def indent(self, start: int, end: int) -> int:
        """By how many columns the lines are indented that are indented the fewest."""
        return min(
            (len(line) - len(line.lstrip()) for line in self.lines[start:end] if line), default=0
        )

    def paragraph_end(self, start: int) -> int:
        """Where the next empty line is."""
        place = start
        while place < len(self.lines) and self.lines[place]:
            place += 1
        return place


def skip_empty(lines: Sequence[str], place: int) -> int:
    """Where the next line is that is not empty."""
    while place < len(lines) and not lines[place]:
        place += 1
    return place


def items_of(part: Lines, place: int) -> list[tuple[str, Lines]]:
    """The marks and the contents of a bullet list that begins at a line."""
    items = []
    while place < len(part.lines) and (found := BULLET.match(part.lines[place])):
        end = part.indented_end(place + 1)
        column = found.end() if found["gap"] else 2
        inner = part.part(place + 1, end, column)
        lines = [part.lines[place][column:], *inner.lines]
        items.append((found["mark"], Lines(lines, part.numbers[place:end])))
        place = skip_empty(part.lines, end)
    return items
