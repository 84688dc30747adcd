"""Parts of reStructuredText: lines with their numbers in the file, inline markup, tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qa_service.retrieval.documents import scripted
from qa_service.retrieval.formats.markdown_source import role_text

BULLET = re.compile(r"(?P<mark>[-*+•‣⁃])(?P<gap>[ \t]+|$)")  # noqa: RUF001, bullets
FIELD = re.compile(
    r":(?P<name>(?![:\s])(?:[^:\n\\`]|\\.|:(?=\S)(?!`)){1,80}):(?:[ \t]+(?P<text>.*)|[ \t]*)$"
)
EXPLICIT = re.compile(r"\.\.(?:[ \t]|$)|__[ \t]+\S")

_HEADER = re.compile(r"(?P<name>[A-Z][\w-]*):[ \t]*(?P<text>.*)$")
_MARKUP = re.compile(
    r"(?P<literal>``(?P<code>[^`](?:[^`]|`(?!`))*?)``(?=[^\w`]|$|_))"
    r"|(?P<role>:[\w:+.-]{1,60}:)?(?<![\w`\\])`(?P<text>(?=[^\s`])(?:[^`\\]|\\.)*)`(?P<after>:[\w:+.-]{1,60}:|__?(?!\w))?"
    r"|(?<![\w*\\])\*\*(?P<strong>[^\s*](?:[^*]|\*(?!\*))*?)\*\*(?![\w*])"
    r"|(?<![\w*\\])\*(?P<emphasis>[^\s*](?:[^*\\]|\\.)*?)(?<![\s\\])\*(?![\w*])"
    r"|(?<![\w|\\])\|(?P<name>[^\s|](?:[^|\n]*[^\s|])?)\|(?!\w)_{0,2}"
    r"|(?P<note>\s?\[(?:\#[\w.-]*|\d+|\*)\]_(?!\w))"
    r"|\[(?P<citation>[\w.-]+)\]_(?!\w)"
    r"|(?<![\w:/.\\@-])(?P<reference>[^\W_](?:[\w.+-]*[^\W_])?)__?(?=[\s.,;:!?)\]}'\"]|$)"
    r"|\\(?P<escaped>[\s\S]?)"
)
_TRIGGERS = re.compile(r"[`*|_\\]")
_WIKI = {"pep": "PEP ", "rfc": "RFC ", "issue": "#", "pr": "#", "pull": "#", "gh": "#"}
_VERBATIM = frozenset({"math", "code", "abbr", "regexp", "token"})
_NESTED = 3
GRID_LINE = re.compile(r"\+(?:[-=]+\+)+[ \t]*")
SIMPLE_LINE = re.compile(r"={2,}(?:[ \t]+={2,})+[ \t]*")
_SPAN_LINE = re.compile(r"-{2,}(?:[ \t]+-{2,})*[ \t]*")
_MAX_CELLS = 200_000
NUMBERED = re.compile(
    r"(?P<mark>\(?(?:\d{1,9}|#|[a-zA-Z]|[ivxlcdmIVXLCDM]{1,8})[.)])(?P<gap>[ \t]+|$)"
)
_ARGUMENT = r"(?:[ =]\S+|\[[^\]]*\])*"
OPTION = re.compile(
    rf"(?P<names>(?:-\w|--[\w-]+|/\w+){_ARGUMENT}(?:, (?:-\w|--[\w-]+){_ARGUMENT})*)"
    r"(?:[ \t]{2,}(?P<text>\S.*)|[ \t]*)$"
)


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

    def indented_end(self, start: int) -> int:
        """Where lines end that are empty or indented."""
        end = place = start
        while place < len(self.lines):
            line = self.lines[place]
            if line and not line.startswith(" "):
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


def inline_text(text: str, substitutions: Mapping[str, str], depth: int = 0) -> str:
    """A text as it is shown.

    Args:
        substitutions: What `|name|` stands for.
    """
    if not _TRIGGERS.search(text):
        return text

    def shown(found: re.Match[str]) -> str:
        if found["text"] is not None:
            return _interpreted(found, text)
        inner = found["strong"] or found["emphasis"]
        if inner is not None:
            return inline_text(inner, substitutions, depth + 1) if depth < _NESTED else inner
        if found["name"] is not None:
            return substitutions.get(found["name"].lower(), found["name"])
        if found["citation"] is not None:
            return f"[{found['citation']}]"
        return found["code"] or found["reference"] or (found["escaped"] or "").strip()

    return _MARKUP.sub(shown, text)


def _interpreted(found: re.Match[str], text: str) -> str:
    after = found["after"] or ""
    role = (found["role"] or (after if after.startswith(":") else "")).strip(":")
    name = role.rsplit(":", 1)[-1].lower()
    words = found["text"] if "\\" not in found["text"] else re.sub(r"\\(.?)", r"\1", found["text"])
    if name in _VERBATIM:
        return words
    if name in {"sup", "superscript", "sub", "subscript"}:
        return scripted(name[:3], text[: found.start()].removesuffix("\\ "), words)
    shown = role_text(words)
    if name in _WIKI and shown[:1].isdigit():
        return _WIKI[name] + shown.replace("#", " § ")
    if name == "doc" and shown == words:
        return shown.rsplit("/", 1)[-1]
    return shown


def grid_table(part: Lines) -> RawTable:
    """Reads a grid; a cell over several columns or rows stands in its first one."""
    grid_lines = filter(GRID_LINE.fullmatch, part.lines)
    bounds = sorted({n for line in grid_lines for n, sign in enumerate(line) if sign == "+"})
    head, rows = list[str](), list[tuple[int, list[str]]]()
    if len(bounds) * len(part.lines) > _MAX_CELLS:
        return RawTable(head, rows)
    begin, cells = part.numbers[0], [list[str]() for _ in bounds[1:]]
    for place, line in enumerate(part.lines):
        if not (line.startswith("+") and set(line.rstrip()) <= set("+-=") and len(line) > 2):
            _take_grid_line(line, bounds, cells)
            continue
        texts = ["\n".join(cell).strip() for cell in cells]
        if any(texts):
            rows.append((begin, texts))
        if "=" in line and not head:
            head = [" ".join(c) for c in zip(*[texts for _, texts in rows], strict=True)]
            rows = []
        begin, cells = part.numbers[min(place + 1, len(part.numbers) - 1)], [[] for _ in bounds[1:]]
    return RawTable(head, rows)


def _take_grid_line(line: str, bounds: Sequence[int], cells: list[list[str]]) -> None:
    """Shares a line among the columns; a text goes on where no border is."""
    first = 0
    for place, bound in enumerate(bounds[1:]):
        sign = line[bound : bound + 1]
        if sign in {"|", "+", ""} or place == len(cells) - 1:
            part = line[bounds[first] + 1 : bound].rstrip()
            if part.strip("-=+ "):
                cells[first].append(part[1:] if part.startswith(" ") else part)
            elif not part.strip():
                cells[first].append("")
            first = place + 1


def simple_table(part: Lines) -> RawTable:
    """Reads a simple table, from its first border to its last."""
    starts = [found.start() for found in re.finditer("=+", part.lines[0])]
    head, rows = list[str](), list[tuple[int, list[str]]]()
    borders = [place for place, line in enumerate(part.lines) if SIMPLE_LINE.fullmatch(line)]
    for place, line in enumerate(part.lines[1:], 1):
        if SIMPLE_LINE.fullmatch(line):
            if len(borders) > 2 and place == borders[1]:
                columns = zip(*[texts for _, texts in rows], strict=True)
                head, rows = [" ".join(" ".join(column).split()) for column in columns], []
        elif line.strip() and not _SPAN_LINE.fullmatch(line):
            bounds = zip(starts, [*starts[1:], len(line)], strict=True)
            cells = [line[start:end].strip() for start, end in bounds]
            if rows and not cells[0]:
                above = rows[-1][1]
                above[:] = [f"{a}\n{b}".strip() for a, b in zip(above, cells, strict=True)]
            else:
                rows.append((part.numbers[place], cells))
    return RawTable(head, rows)


def csv_table(part: Lines, header: str, num_header: int) -> RawTable:
    read = csv.reader(part.lines, skipinitialspace=True)
    rows = [(part.numbers[place], row) for place, row in enumerate(read) if row]
    if header:
        return RawTable(next(csv.reader([header], skipinitialspace=True)), rows)
    return RawTable(rows[0][1], rows[1:]) if num_header and rows else RawTable([], rows)
