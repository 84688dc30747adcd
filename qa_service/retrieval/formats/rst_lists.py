"""Lists of reStructuredText: bullets, numbers, fields, options and definitions."""

from __future__ import annotations

import re

from qa_service.retrieval.formats.rst_lines import (
    BULLET,
    EXPLICIT,
    FIELD,
    Lines,
    items_of,
    skip_empty,
)
from qa_service.retrieval.formats.rst_reader import Reader

NUMBERED = re.compile(
    r"(?P<mark>\(?(?:\d{1,9}|#|[a-zA-Z]|[ivxlcdmIVXLCDM]{1,8})[.)])(?P<gap>[ \t]+|$)"
)
_ARGUMENT = r"(?:[ =]\S+|\[[^\]]*\])*"
OPTION = re.compile(
    rf"(?P<names>(?:-\w|--[\w-]+|/\w+){_ARGUMENT}(?:, (?:-\w|--[\w-]+){_ARGUMENT})*)"
    r"(?:[ \t]{2,}(?P<text>\S.*)|[ \t]*)$"
)


def bullet_list(reader: Reader, part: Lines, place: int, depth: int) -> int:
    """Adds a bullet list that begins at a line; returns where it ends."""
    return _list(reader, part, place, depth, BULLET)


def numbered_list(reader: Reader, part: Lines, place: int, depth: int) -> int:
    """Adds a numbered list; returns where it ends, or its place if there is none."""
    lines = part.lines
    found = NUMBERED.match(lines[place])
    follows = lines[place + 1] if place + 1 < len(lines) else ""
    is_list = found and (not follows or follows[0] == " " or NUMBERED.match(follows))
    return _list(reader, part, place, depth, NUMBERED) if is_list else place


def _list(reader: Reader, part: Lines, place: int, depth: int, begin: re.Pattern[str]) -> int:
    items = list[tuple[str, Lines]]()
    while place < len(part.lines) and (found := begin.match(part.lines[place])):
        end = part.indented_end(place + 1)
        column = found.end() if found["gap"] else len(found[0]) + 1
        body = part.part(place, end)
        first = body.lines[0][column:]
        rest = Lines(body.lines[1:], body.numbers[1:])
        inner = rest.part(
            0, len(rest.lines), min(column, rest.indent(0, len(rest.lines))) or column
        )
        items.append((found["mark"], Lines([first.strip(), *inner.lines], body.numbers)))
        place = skip_empty(part.lines, end)
    if rows := _rows_of(items):
        reader.add_rows(rows, depth, num_header=0)
        return place
    reader.out.begin_list()
    for number, (mark, body) in enumerate(items, 1):
        reader.out.begin_item(_shown_mark(mark, number))
        reader.read(body, depth + 1)
        reader.out.end_item()
    reader.out.end_list()
    return place


def _rows_of(items: list[tuple[str, Lines]]) -> list[tuple[int, list[Lines]]]:
    """The rows of a list of lists of one length, as `list-table` has; none of another list."""
    rows = list[tuple[int, list[Lines]]]()
    for _, body in items:
        if not BULLET.match(body.lines[0]):
            return []
        cells = items_of(body, 0)
        if sum(len(cell.lines) for _, cell in cells) < len(
            "\n".join(body.lines).rstrip().split("\n")
        ) - len(cells):
            return []
        rows.append((body.numbers[0], [cell for _, cell in cells]))
    is_table = len(rows) > 1 and len({len(cells) for _, cells in rows}) == 1 and len(rows[0][1]) > 1
    return rows if is_table else []


def _shown_mark(mark: str, number: int) -> str:
    if BULLET.fullmatch(mark):
        return "-"
    return f"{number}." if "#" in mark else f"{mark.strip('().')}."


def field_list(reader: Reader, part: Lines, place: int, depth: int) -> int:
    """Adds a list of fields, `:name: text`; returns where it ends."""
    reader.out.begin_list()
    while place < len(part.lines) and (found := FIELD.match(part.lines[place])):
        end = part.indented_end(place + 1)
        name = reader.shown(found["name"])
        body = part.part(place + 1, end, part.indent(place + 1, end))
        if name == "Title" and not reader.title:
            reader.title = reader.shown(found["text"] or "")
        if found["text"] or any(body.lines):
            content = Lines([found["text"] or "", *body.lines], part.numbers[place:end])
            _named(reader, name, content, depth)
        place = skip_empty(part.lines, end)
    reader.out.end_list()
    return place


def option_list(reader: Reader, part: Lines, place: int, depth: int) -> int:
    """Adds a list of a program's options; returns where it ends."""
    begin = place
    reader.out.begin_list()
    while place < len(part.lines) and (found := OPTION.match(part.lines[place])):
        end = part.indented_end(place + 1)
        if not found["text"] and end == place + 1:
            break
        body = part.part(place + 1, end, part.indent(place + 1, end))
        content = Lines([found["text"] or "", *body.lines], part.numbers[place:end])
        _named(reader, found["names"], content, depth)
        place = skip_empty(part.lines, end)
    reader.out.end_list()
    return max(place, begin)


def definition_list(reader: Reader, part: Lines, place: int, depth: int) -> int:
    """Adds a list of terms and texts; returns where it ends, or its place if there is none."""
    lines = part.lines
    if (
        place + 1 >= len(lines)
        or not lines[place + 1].startswith(" ")
        or lines[place].endswith("::")
    ):
        return place
    reader.out.begin_list()
    while (
        place + 1 < len(lines)
        and lines[place]
        and lines[place][0] != " "
        and lines[place + 1].startswith(" ")
    ):
        if EXPLICIT.match(lines[place]):
            break
        end = part.indented_end(place + 1)
        body = part.part(place + 1, end, part.indent(place + 1, end))
        _named(reader, reader.shown(lines[place].split(" : ")[0]), body, depth)
        place = skip_empty(lines, end)
    reader.out.end_list()
    return place


def _named(reader: Reader, name: str, body: Lines, depth: int) -> None:
    """An item that begins with a name: `name: text`."""
    reader.out.begin_item("")
    reader.out.prefix(f"{name.rstrip(':')}: ")
    reader.read(body, depth + 1)
    reader.out.end_item()
