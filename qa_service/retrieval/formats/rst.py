"""reStructuredText, by a small reader of our own: docutils takes seven times as long.

Directives are docutils' and Sphinx', each with what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from qa_service.retrieval.documents import BlockList, Parsed
from qa_service.retrieval.formats.front_matter import split_front_matter
from qa_service.retrieval.formats.rst_parts import (
    BULLET,
    EXPLICIT,
    FIELD,
    GRID_LINE,
    NUMBERED,
    OPTION,
    SIMPLE_LINE,
    Lines,
    RawTable,
    csv_table,
    grid_table,
    inline_text,
    simple_table,
    split_header,
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
_CODES = frozenset({
    "code", "code-block", "sourcecode", "parsed-literal", "doctest", "testcode", "testoutput",
    "prompt", "math", "ipython", "productionlist", "click:example", "click:run", "subscript",
    "terminal", "console",
})  # fmt: skip
_SILENT = frozenset({
    "toctree", "image", "raw", "index", "contents", "include", "meta", "highlight", "module",
    "default-role", "currentmodule", "py:currentmodule", "py:module", "automodule", "autoclass",
    "autofunction", "automethod", "autoattribute", "autodata", "autoexception", "autosummary",
    "tabularcolumns", "sectnum", "graphviz", "digraph", "mermaid", "literalinclude", "plot",
    "role", "target-notes", "header", "footer", "title", "testsetup", "testcleanup", "video",
    "youtube", "program", "bibliography", "highlightlang", "uml", "plantuml",
    "replace", "unicode", "date", "sectionauthor", "codeauthor", "default-domain",
})  # fmt: skip
_WRAPPERS = frozenset({
    "container", "compound", "rst-class", "class", "only", "ifconfig", "grid", "tab-set", "tabs",
    "hlist", "centered", "glossary", "epigraph", "pull-quote", "highlights",
    "grid-item", "card-carousel", "tabs-set", "subfigure",
})  # fmt: skip
"""Directives whose content alone is shown."""
_BOXES = frozenset({
    "attention", "caution", "danger", "error", "hint", "important", "note", "tip", "warning",
    "todo", "seealso",
})  # fmt: skip
_DOMAINS = ("py:", "c:", "cpp:", "js:", "http:", "rst:", "std:")
_VERSIONS = {
    "versionadded": "New in version",
    "versionchanged": "Changed in version",
    "versionremoved": "Removed in version",
    "deprecated": "Deprecated since version",
    "deprecated-removed": "Deprecated since version",
}
_OBJECTS = frozenset({
    "function", "method", "class", "attribute", "data", "exception", "option", "cmdoption",
    "envvar", "confval", "describe", "object", "decorator", "staticmethod", "classmethod",
    "property", "macro", "type", "member", "struct", "enum", "var", "setting", "globalvar",
    "fixture", "hook", "opcode", "pdbcommand", "c_function", "cfunction", "http",
})  # fmt: skip
"""Directives that describe a thing: its name is a heading."""


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
        self._num_objects = 0
        """Descriptions of things around this."""

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
        code = part.skip_empty(end) if begins_code else len(part.lines)
        if code >= len(part.lines):
            return end
        code_end = part.indented_end(code)
        if code_end == code and part.lines[code][0] in _QUOTE_SIGNS and code > end:
            code_end = part.paragraph_end(code)  # of code that is quoted, not indented
        self.out.code("\n".join(part.dedented(code, code_end).lines), part.numbers[code])
        return max(code_end, end)

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
                self._show(directive, depth)
        elif found := _NOTE.match(line):
            self.read(part.behind(found["text"], place, end), depth + 1)
        elif line == ".." and end > place + 1 and not part.lines[place + 1]:
            return place + 1  # an empty comment does not take what is indented after it
        return end

    def _show(self, directive: Directive, depth: int) -> None:
        name = directive.name
        if name in _SILENT:
            return
        if name in _CODES or "code" in name:
            self._code(directive)
        elif name in {"list-table", "csv-table", "table", "flat-table"}:
            self._table(directive, depth)
        elif name in _BOXES or name in _VERSIONS:
            self._box(directive, depth)
        elif name.rsplit(":", 1)[-1] in _OBJECTS or name.startswith(_DOMAINS):
            self._object(directive, depth)
        else:
            is_shown = name in {"rubric", "centered"} or any(directive.body.lines)
            if directive.argument and is_shown and name != "figure" and name not in _WRAPPERS:
                self.out.paragraph(self.shown(directive.argument), directive.line)
            self.read(directive.body, depth + 1)

    def _code(self, directive: Directive) -> None:
        lines = directive.body.lines
        if directive.name == "math" and directive.argument:
            lines = [directive.argument, *lines]
        text = "\n".join(lines)
        if directive.name in {"parsed-literal", "subs-code-block"}:
            text = self.shown(text)
        self.out.code(text, next(iter(directive.body.numbers), directive.line))

    def _box(self, directive: Directive, depth: int) -> None:
        lines, numbers = directive.body
        argument = directive.argument
        if directive.name in _VERSIONS:
            version, _, rest = argument.partition(" ")
            label = f"{_VERSIONS[directive.name]} {self.shown(version)}"
            argument = rest
        else:
            label = "See also" if directive.name == "seealso" else directive.name.capitalize()
        if not argument and not any(lines):
            self.out.paragraph(f"{label}.", directive.line)
            return
        self.out.prefix(f"{label}: ")
        if argument and lines and lines[0]:  # its first paragraph goes on
            lines = [argument, *lines]
        elif argument:
            lines = [argument, "", *lines]
            numbers = [directive.line, *numbers]
        numbers = [directive.line] * (len(lines) - len(numbers)) + list(numbers)
        self.read(Lines(lines, numbers), depth + 1)

    def _object(self, directive: Directive, depth: int) -> None:
        self._num_objects += 1
        level = self.level + self._num_objects
        for name in directive.argument.split("\n"):
            shown = self.shown(name.replace("\\", ""))
            self.out.heading(level, shown, directive.line)
        self.read(directive.body, depth + 1)
        self._num_objects -= 1

    def _table(self, directive: Directive, depth: int) -> None:
        body = directive.body
        if directive.argument:
            self.out.paragraph(self.shown(directive.argument), directive.line)
        rows_of_head = directive.options.get("header-rows", "")
        is_number = len(rows_of_head) < 4 and rows_of_head.strip().isdecimal()
        num_header = int(rows_of_head) if is_number else 0
        if directive.name == "csv-table":
            table = csv_table(body, directive.options.get("header", ""), num_header)
            self.add_table(table, depth)
        elif directive.name == "table":
            self.read(body, depth + 1)
        else:
            rows = list[tuple[int, list[str]]]()
            for _, item in body.items(body.skip_empty(0), BULLET)[0]:
                cells, _ = item.items(item.skip_empty(0), BULLET)
                rows.append((item.numbers[0], ["\n".join(cell.lines) for _, cell in cells]))
            head = rows[0][1] if num_header and rows else []
            self.add_table(RawTable(head, rows[num_header:]), depth)


def _is_title(title: str, line: str) -> bool:
    """Whether a line is one that the next line underlines."""
    is_text = title[:1].strip() and not _RULE.fullmatch(title)
    return bool(is_text and _RULE.fullmatch(line))


# Lists; as the methods above, each returns where it ends: at its place if there is none.


def bullet_list(reader: _Reader, part: Lines, place: int, depth: int) -> int:
    return _list(reader, part, place, depth, BULLET)


def numbered_list(reader: _Reader, part: Lines, place: int, depth: int) -> int:
    follows = "".join(part.lines[place + 1 : place + 2])
    is_list = not follows or follows[0] == " " or NUMBERED.match(follows)
    return _list(reader, part, place, depth, NUMBERED) if is_list else place


def _list(reader: _Reader, part: Lines, place: int, depth: int, begin: re.Pattern[str]) -> int:
    items, end = part.items(place, begin)
    if rows := _rows_of(items):
        reader.add_table(RawTable([], rows), depth)
        return end
    reader.out.begin_list()
    for number, (mark, body) in enumerate(items, 1):
        is_bullet = begin is BULLET
        shown = "-" if is_bullet else f"{number if '#' in mark else mark.strip('().')}."
        reader.out.begin_item(shown)
        reader.read(body, depth + 1)
        reader.out.end_item()
    reader.out.end_list()
    return end


def _rows_of(items: list[tuple[str, Lines]]) -> list[tuple[int, list[str]]]:
    """The rows of a list of lists of one length, as `list-table` has; none of another list."""
    rows = list[tuple[int, list[str]]]()
    for _, body in items:
        cells, _ = body.items(0, BULLET)
        num_lines = "\n".join(body.lines).rstrip().count("\n") + 1
        if not cells or sum(len(cell.lines) for _, cell in cells) < num_lines - len(cells):
            return []
        rows.append((body.numbers[0], ["\n".join(cell.lines) for _, cell in cells]))
    is_table = len(rows) > 1 and len({len(cells) for _, cells in rows}) == 1 and len(rows[0][1]) > 1
    return rows if is_table else []


def field_list(reader: _Reader, part: Lines, place: int, depth: int) -> int:
    reader.out.begin_list()
    while place < len(part.lines) and (found := FIELD.match(part.lines[place])):
        end = part.indented_end(place + 1)
        name = reader.shown(found["name"])
        body = part.behind(found["text"], place, end)
        if name == "Title" and not reader.title:
            reader.title = reader.shown(found["text"] or "")
        if any(body.lines):
            _named(reader, name, body, depth)
        place = part.skip_empty(end)
    reader.out.end_list()
    return place


def option_list(reader: _Reader, part: Lines, place: int, depth: int) -> int:
    reader.out.begin_list()
    while place < len(part.lines) and (found := OPTION.match(part.lines[place])):
        end = part.indented_end(place + 1)
        if not found["text"] and end == place + 1:
            break
        _named(reader, found["names"], part.behind(found["text"], place, end), depth)
        place = part.skip_empty(end)
    reader.out.end_list()
    return place


def definition_list(reader: _Reader, part: Lines, place: int, depth: int) -> int:
    lines = part.lines
    if lines[place].endswith("::") or not _is_term(lines, place):
        return place
    reader.out.begin_list()
    while _is_term(lines, place) and lines[place] and lines[place][0] != " ":
        if EXPLICIT.match(lines[place]):
            break
        end = part.indented_end(place + 1)
        name = reader.shown(lines[place].split(" : ")[0])
        _named(reader, name, part.dedented(place + 1, end), depth)
        place = part.skip_empty(end)
    reader.out.end_list()
    return place


def _is_term(lines: list[str], place: int) -> bool:
    """Whether a line has an indented one below it."""
    return place + 1 < len(lines) and lines[place + 1].startswith(" ")


def _named(reader: _Reader, name: str, body: Lines, depth: int) -> None:
    """An item that begins with a name: `name: text`."""
    reader.out.begin_definition(name)
    reader.read(body, depth + 1)
    reader.out.end_item()


_ELEMENTS: tuple[tuple[Callable[[str], object], Callable[[_Reader, Lines, int, int], int]], ...] = (
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


class Directive(NamedTuple):
    """A directive: `.. name:: argument`, then its options and its content."""

    name: str
    argument: str
    options: dict[str, str]
    body: Lines
    line: int


def split_directive(name: str, argument: str, body: Lines, line: int) -> Directive:
    """A directive's argument, which may go on in the next lines, its options and its content."""
    lines, place = body.lines, 0
    if name not in _BOXES and name not in _VERSIONS:
        while place < len(lines) and lines[place] and argument and not FIELD.match(lines[place]):
            argument += "\n" + lines[place].strip()
            place += 1
    options: dict[str, str] = {}
    while place < len(lines) and (found := FIELD.match(lines[place])):
        options[found["name"]] = found["text"] or ""
        place += 1
        while place < len(lines) and lines[place].startswith(" "):
            options[found["name"]] += " " + lines[place].strip()
            place += 1
    return Directive(name, argument, options, body.part(place, len(lines)), line)
