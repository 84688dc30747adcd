"""reStructuredText, by a small reader of our own: docutils takes seven times as long."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from qa_service.retrieval.blocks import BlockList, Parsed
from qa_service.retrieval.formats.front_matter import split_front_matter
from qa_service.retrieval.formats.rst_directives import Directives, split_directive
from qa_service.retrieval.formats.rst_inline import inline_text
from qa_service.retrieval.formats.rst_lines import (
    BULLET,
    EXPLICIT,
    FIELD,
    Lines,
    RawTable,
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
                ends = (
                    take(self, part, place, depth) for begins, take in _ELEMENTS if begins(line)
                )
                found = next((end for end in ends if end > place), 0)
                place = found or self._paragraph(part, place, depth)

    # Each adds what begins at a line, and returns where it ends: at its place if it is none.

    def _quote(self, part: Lines, place: int, depth: int) -> int:
        end = part.indented_end(place)
        self.read(part.dedented(place, end), depth + 1)
        return end

    def _heading(self, part: Lines, place: int, depth: int) -> int:
        first, second, third = [*part.lines[place : place + 3], "", ""][:3]
        is_rule = _RULE.fullmatch(first) is not None
        if is_rule and len(first) > 1 and _is_title(second.strip(), third) and third[0] == first[0]:
            title, end = place + 1, place + 3
        elif is_rule:
            is_transition = len(first) >= 4 and not second
            return place + is_transition
        elif _is_title(first, second) and len(second) >= min(len(first), 4):
            title, end = place, place + 2
        else:
            return place
        style = (part.lines[end - 1][0], is_rule)
        if style not in self._styles:
            self._styles.append(style)
        self.level = self._styles.index(style) + 1
        self.out.heading(self.level, self.shown(part.lines[title].strip()), part.numbers[title])
        return end

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
        if place + 1 < end and not part.lines[place + 1].startswith(" "):
            rest = range(place + 1, end)
            end = next((at for at in rest if EXPLICIT.match(part.lines[at])), end)
        text = "\n".join(line.strip() for line in part.lines[place:end])
        begins_code = text.endswith("::")
        if begins_code:  # the text keeps a colon that is not apart from it
            text = text[:-1] if text[-3:-2].strip() else text[:-2].rstrip()
        self.out.paragraph(self.shown(text).replace("\n", " "), part.numbers[place])
        return self._literal(part, end) if begins_code else end

    def _literal(self, part: Lines, place: int) -> int:
        """The block of code that `::` announces: indented, or quoted."""
        start = part.skip_empty(place)
        if start >= len(part.lines):
            return place
        end = part.indented_end(start)
        if end == start and part.lines[start][0] in _QUOTE_SIGNS and start > place:
            end = part.paragraph_end(start)
        self.out.code("\n".join(part.dedented(start, end).lines), part.numbers[start])
        return max(end, place)

    def _grid(self, part: Lines, place: int, depth: int) -> int:
        end = place
        while end < len(part.lines) and part.lines[end][:1] in {"+", "|"}:
            end += 1
        self.add_table(grid_table(part.part(place, end)), depth)
        return end

    def _simple(self, part: Lines, place: int, depth: int) -> int:
        end = place
        for at in range(place + 1, len(part.lines)):
            if SIMPLE_LINE.fullmatch(part.lines[at]):
                end = at + 1
                if not "".join(part.lines[end : end + 1]):
                    break
        if end > place:
            self.add_table(simple_table(part.part(place, end)), depth)
        return end

    def add_table(self, table: RawTable, depth: int) -> None:
        head = [self._cell(cell, depth) for cell in table.head]
        rows = [(line, [self._cell(cell, depth) for cell in cells]) for line, cells in table.rows]
        self.out.table(head, rows)

    def _cell(self, markup: str, depth: int) -> str:
        if "\n" not in markup:
            return self.shown(markup)
        inner = _Reader(self._substitutions)
        lines = [line.rstrip() for line in markup.split("\n")]
        inner.read(Lines(lines, [0] * len(lines)), depth + 5)
        return " ".join(block.text for block in inner.out.blocks)

    def _explicit(self, part: Lines, place: int, depth: int) -> int:
        line = part.lines[place]
        end = part.indented_end(place + 1)
        if found := _DIRECTIVE.match(line):
            if not line[2:].lstrip().startswith("|"):
                name, argument = found["name"].lower(), (found["argument"] or "").strip()
                body = part.dedented(place + 1, end)
                directive = split_directive(name, argument, body, part.numbers[place])
                self._directives.show(directive, depth)
        elif found := _NOTE.match(line):
            self.read(part.behind(found["text"], place, end), depth + 1)
        elif line == ".." and end > place + 1 and not part.lines[place + 1]:
            return place + 1  # an empty comment does not take what is indented after it
        return end


def _is_title(title: str, line: str) -> bool:
    """Whether a line is one that the next line underlines."""
    is_text = title[:1].strip() and not _RULE.fullmatch(title)
    return bool(is_text and _RULE.fullmatch(line))


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
