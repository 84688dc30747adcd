"""reStructuredText, by a small reader of our own: docutils takes seven times as long."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from qa_service.retrieval.blocks import BlockList, Parsed
from qa_service.retrieval.formats.front_matter import split_front_matter
from qa_service.retrieval.formats.rst_directives import Directives, split_directive
from qa_service.retrieval.formats.rst_inline import inline_text
from qa_service.retrieval.formats.rst_lines import (
    BULLET,
    EXPLICIT,
    FIELD,
    Lines,
    skip_empty,
    split_header,
)
from qa_service.retrieval.formats.rst_lists import (
    NUMBERED,
    OPTION,
    bullet_list,
    definition_list,
    field_list,
    numbered_list,
    option_list,
)
from qa_service.retrieval.formats.rst_tables import (
    GRID_LINE,
    SIMPLE_LINE,
    RawTable,
    grid_table,
    simple_table,
)

_RULE = re.compile(r"([!-/:-@\[-`{-~])\1*[ \t]*")
_DIRECTIVE = re.compile(
    r"\.\.[ \t]+(?:\|[^|\n]+\|[ \t]+)?(?P<name>[\w:.+-]+?)[ \t]?::"
    r"(?:[ \t]+(?P<argument>.*)|[ \t]*)$"
)
_SUBSTITUTION = re.compile(
    r"^[ \t]*\.\.[ \t]+\|(?P<name>[^|\n]+)\|[ \t]+(?P<kind>replace|unicode|image|date)::"
    r"[ \t]*(?P<text>.*(?:\n[ \t]+\S.*)*)",
    re.MULTILINE,
)
_NOTE = re.compile(r"\.\.[ \t]+\[(?P<label>[^\]\n]+)\][ \t]*(?P<text>.*)$")
_QUOTE_SIGNS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")

_MAX_DEPTH = 30


def parse_rst(text: str, whole: str | None) -> Parsed:
    """Reads reStructuredText with Sphinx' directives.

    Args:
        whole: The file that it is a part of, whose substitutions count.
    """
    title, body, first_line = split_front_matter(text)
    lines = [line.expandtabs(8).rstrip() for line in body.split("\n")]
    reader = _Reader(_substitutions(body if whole is None else whole))
    if whole is None:
        reader.title, lines = split_header(lines)
    reader.read(Lines(lines, list(range(first_line, first_line + len(lines)))), 0)
    return Parsed(reader.out.blocks, title or reader.title)


def parse_rst_into(out: BlockList, text: str, line: int) -> None:
    """Adds the blocks of reStructuredText that stands in another format."""
    reader = _Reader(_substitutions(text))
    reader.out = out
    lines = [row.expandtabs(8).rstrip() for row in text.split("\n")]
    reader.read(Lines(lines, list(range(line, line + len(lines)))), 0)


def _substitutions(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    if "|" in text:
        for match in _SUBSTITUTION.finditer(text):
            words = " ".join(match["text"].split()) if match["kind"] == "replace" else ""
            found[match["name"].lower()] = inline_text(words, {})
    return found


class _Reader:
    def __init__(self, substitutions: Mapping[str, str]) -> None:
        self.out = BlockList()
        self.title = ""
        self._substitutions = substitutions
        self._styles: list[tuple[str, bool]] = []
        self.level = 0
        self._directives = Directives(self)

    def shown(self, text: str) -> str:
        return inline_text(text, self._substitutions)

    def read(self, part: Lines, depth: int) -> None:
        """Adds the blocks of some lines, whose text begins in the first column."""
        place = 0
        while place < len(part.lines):
            line = part.lines[place]
            if not line:
                place += 1
            elif depth > _MAX_DEPTH:
                self.out.paragraph(line, part.numbers[place])
                place += 1
            else:
                place = self._element(part, place, line, depth)

    def _element(self, part: Lines, place: int, line: str, depth: int) -> int:
        """Adds what begins at a line; returns where the next begins."""
        for begins, take in _ELEMENTS:
            if begins(line) and (end := take(self, part, place, depth)) > place:
                return end
        return self._paragraph(part, place, depth)

    def _quote(self, part: Lines, place: int, depth: int) -> int:
        end = part.indented_end(place)
        self.read(part.part(place, end, part.indent(place, end)), depth + 1)
        return end

    # Headings

    def _heading(self, part: Lines, place: int, depth: int) -> int:
        lines = part.lines
        if _RULE.fullmatch(lines[place]):
            if len(lines[place]) < 2:
                return place
            is_overline = (
                place + 2 < len(lines)
                and lines[place + 1]
                and _is_underline(lines[place + 1].strip(), lines[place + 2], lines[place])
            )
            if is_overline:
                return self._add_heading(part, place + 1, lines[place][0], True, place + 3)
            is_transition = len(lines[place].rstrip()) >= 4 and not (
                place + 1 < len(lines) and lines[place + 1]
            )
            return place + 1 if is_transition else place
        if place + 1 < len(lines) and _is_underline(lines[place], lines[place + 1]):
            return self._add_heading(part, place, lines[place + 1][0], False, place + 2)
        return place

    def _add_heading(self, part: Lines, place: int, sign: str, is_overlined: bool, end: int) -> int:
        style = (sign, is_overlined)
        if style not in self._styles:
            self._styles.append(style)
        self.level = self._styles.index(style) + 1
        self.out.heading(self.level, self.shown(part.lines[place].strip()), part.numbers[place])
        return end

    # Text and code

    def _doctest(self, part: Lines, place: int, depth: int) -> int:
        end = part.paragraph_end(place)
        self.out.code("\n".join(part.lines[place:end]), part.numbers[place])
        return end

    def _line_block(self, part: Lines, place: int, depth: int) -> int:
        end = part.paragraph_end(place)
        lines = list[str]()
        for line in part.lines[place:end]:
            if line.startswith("|"):
                lines.append(line[1:].strip())
            elif lines:
                lines[-1] += " " + line.strip()
        self.out.paragraph(self.shown("\n".join(lines)), part.numbers[place])
        return end

    def _paragraph(self, part: Lines, place: int, depth: int) -> int:
        end = part.paragraph_end(place + 1)
        for inner in range(place + 1, end):
            if (
                part.lines[inner].startswith(" ")
                and EXPLICIT.match(part.lines[inner - 1]) is None
                and inner == place + 1
            ):
                break
            if EXPLICIT.match(part.lines[inner]):
                end = inner
                break
        text = "\n".join(line.strip() for line in part.lines[place:end])
        begins_code = text.endswith("::")
        if begins_code:
            text = (
                text[:-2].rstrip()
                if text[:-2].endswith((" ", "\n", "")) and not text[:-2].strip()
                else text[:-1]
            )
            text = text[:-1].rstrip() if text.endswith((" :", "\n:")) else text
        self.out.paragraph(self.shown(text).replace("\n", " "), part.numbers[place])
        return self._literal(part, end) if begins_code else end

    def _literal(self, part: Lines, place: int) -> int:
        """The block of code that `::` announces: indented, or quoted."""
        start = skip_empty(part.lines, place)
        if start >= len(part.lines):
            return place
        end = part.indented_end(start)
        if end == start and part.lines[start][0] in _QUOTE_SIGNS and start > place:
            end = part.paragraph_end(start)
        body = part.part(start, end, part.indent(start, end))
        self.out.code("\n".join(body.lines), part.numbers[start])
        return max(end, place)

    # Tables

    def _grid(self, part: Lines, place: int, depth: int) -> int:
        end = place
        while end < len(part.lines) and part.lines[end][:1] in {"+", "|"}:
            end += 1
        table = grid_table(part.lines[place:end])
        self.add_table(table, part.numbers[place:end], depth)
        return end

    def _simple(self, part: Lines, place: int, depth: int) -> int:
        borders = [place]
        for at in range(place + 1, len(part.lines)):
            if SIMPLE_LINE.fullmatch(part.lines[at]):
                borders.append(at)
                follows = part.lines[at + 1] if at + 1 < len(part.lines) else ""
                if not follows:
                    break
        if len(borders) < 2:
            return place
        end = borders[-1] + 1
        self.add_table(simple_table(part.lines[place:end]), part.numbers[place:end], depth)
        return end

    def add_table(self, table: RawTable, numbers: Sequence[int], depth: int) -> None:
        head = [self._cell(cell, depth) for cell in table.head]
        rows = [
            (numbers[row.line], [self._cell(cell, depth) for cell in row.cells])
            for row in table.rows
        ]
        self.out.table(head, rows)

    def _cell(self, markup: str, depth: int) -> str:
        if "\n" not in markup:
            return self.shown(markup)
        inner = _Reader(self._substitutions)
        lines = [line.rstrip() for line in markup.split("\n")]
        inner.read(Lines(lines, [0] * len(lines)), depth + 5)
        return " ".join(block.text for block in inner.out.blocks)

    def add_rows(self, rows: list[tuple[int, list[Lines]]], depth: int, num_header: int) -> None:
        """Adds a table of cells of several lines."""
        shown = [
            (line, [self._cell("\n".join(cell.lines), depth) for cell in cells])
            for line, cells in rows
        ]
        head = shown[0][1] if num_header and shown else []
        self.out.table(head, shown[num_header:])

    # Explicit markup

    def _explicit(self, part: Lines, place: int, depth: int) -> int:
        line = part.lines[place]
        end = part.indented_end(place + 1)
        if found := _DIRECTIVE.match(line):
            if line[2:].lstrip().startswith("|"):
                return end
            name, argument = found["name"].lower(), (found["argument"] or "").strip()
            body = part.part(place + 1, end, part.indent(place + 1, end))
            directive = split_directive(name, argument, body, part.numbers[place])
            self._directives.show(directive, depth)
            return end
        if found := _NOTE.match(line):
            body = part.part(place + 1, end, part.indent(place + 1, end))
            lines = Lines([found["text"], *body.lines], part.numbers[place:end])
            self.read(lines, depth + 1)
        elif line == ".." and end > place + 1 and not part.lines[place + 1]:
            return place + 1  # an empty comment does not take what is indented after it
        return end


def _is_underline(title: str, line: str, overline: str = "") -> bool:
    if (
        not line
        or not title
        or title[0] == " "
        or not _RULE.fullmatch(line)
        or _RULE.fullmatch(title)
    ):
        return False
    if overline:
        return line[0] == overline[0]
    return len(line) >= min(len(title), 4)


_Begins = Callable[[str], object]
_Take = Callable[[_Reader, Lines, int, int], int]

_ELEMENTS: tuple[tuple[_Begins, _Take], ...] = (
    (lambda line: line[0] == " ", _Reader._quote),
    (EXPLICIT.match, _Reader._explicit),
    (GRID_LINE.fullmatch, _Reader._grid),
    (SIMPLE_LINE.fullmatch, _Reader._simple),
    (lambda line: True, _Reader._heading),
    (BULLET.match, bullet_list),
    (NUMBERED.match, numbered_list),
    (FIELD.match, field_list),
    (OPTION.match, option_list),
    (lambda line: line.startswith(">>> "), _Reader._doctest),
    (lambda line: line.startswith("| "), _Reader._line_block),
    (lambda line: True, definition_list),
)
"""What may begin at a line, in this order; the rest is a paragraph."""
