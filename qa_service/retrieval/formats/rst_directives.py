"""Directives of reStructuredText: docutils' and Sphinx', and what each of them shows."""

from __future__ import annotations

from typing import NamedTuple

from qa_service.retrieval.formats.rst_lines import BULLET, FIELD, Lines, RawTable, Reader
from qa_service.retrieval.formats.rst_tables import csv_table

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


class Directives:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._num_objects = 0

    def show(self, directive: Directive, depth: int) -> None:
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
                self._reader.out.paragraph(self._reader.shown(directive.argument), directive.line)
            self._reader.read(directive.body, depth + 1)

    def _code(self, directive: Directive) -> None:
        lines = directive.body.lines
        if directive.name == "math" and directive.argument:
            lines = [directive.argument, *lines]
        text = "\n".join(lines)
        if directive.name in {"parsed-literal", "subs-code-block"}:
            text = self._reader.shown(text)
        self._reader.out.code(text, next(iter(directive.body.numbers), directive.line))

    def _box(self, directive: Directive, depth: int) -> None:
        lines, numbers = directive.body
        argument = directive.argument
        if directive.name in _VERSIONS:
            version, _, rest = argument.partition(" ")
            label = f"{_VERSIONS[directive.name]} {self._reader.shown(version)}"
            argument = rest
        else:
            label = "See also" if directive.name == "seealso" else directive.name.capitalize()
        if not argument and not any(lines):
            self._reader.out.paragraph(f"{label}.", directive.line)
            return
        self._reader.out.prefix(f"{label}: ")
        if argument and lines and lines[0]:  # its first paragraph goes on
            lines = [argument, *lines]
        elif argument:
            lines = [argument, "", *lines]
            numbers = [directive.line, *numbers]
        numbers = [directive.line] * (len(lines) - len(numbers)) + list(numbers)
        self._reader.read(Lines(lines, numbers), depth + 1)

    def _object(self, directive: Directive, depth: int) -> None:
        self._num_objects += 1
        level = self._reader.level + self._num_objects
        for name in directive.argument.split("\n"):
            shown = self._reader.shown(name.replace("\\", ""))
            self._reader.out.heading(level, shown, directive.line)
        self._reader.read(directive.body, depth + 1)
        self._num_objects -= 1

    def _table(self, directive: Directive, depth: int) -> None:
        body = directive.body
        if directive.argument:
            self._reader.out.paragraph(self._reader.shown(directive.argument), directive.line)
        rows_of_head = directive.options.get("header-rows", "")
        is_number = len(rows_of_head) < 4 and rows_of_head.strip().isdecimal()
        num_header = int(rows_of_head) if is_number else 0
        if directive.name == "csv-table":
            table = csv_table(body, directive.options.get("header", ""), num_header)
            self._reader.add_table(table, depth)
        elif directive.name == "table":
            self._reader.read(body, depth + 1)
        else:
            rows = list[tuple[int, list[str]]]()
            for _, item in body.items(body.skip_empty(0), BULLET)[0]:
                cells, _ = item.items(item.skip_empty(0), BULLET)
                rows.append((item.numbers[0], ["\n".join(cell.lines) for _, cell in cells]))
            head = rows[0][1] if num_header and rows else []
            self._reader.add_table(RawTable(head, rows[num_header:]), depth)
