"""Lists of reStructuredText: bullets, numbers, fields, options and definitions."""

from __future__ import annotations

import re

from qa_service.retrieval.formats.rst_lines import (
    BULLET,
    EXPLICIT,
    FIELD,
    Lines,
    RawTable,
    Reader,
)

NUMBERED = re.compile(
    r"(?P<mark>\(?(?:\d{1,9}|#|[a-zA-Z]|[ivxlcdmIVXLCDM]{1,8})[.)])(?P<gap>[ \t]+|$)"
)
_ARGUMENT = r"(?:[ =]\S+|\[[^\]]*\])*"
OPTION = re.compile(
    rf"(?P<names>(?:-\w|--[\w-]+|/\w+){_ARGUMENT}(?:, (?:-\w|--[\w-]+){_ARGUMENT})*)"
    r"(?:[ \t]{2,}(?P<text>\S.*)|[ \t]*)$"
)

# Each adds a list that begins at a line, and returns where it ends: at its place if there is none.


def bullet_list(reader: Reader, part: Lines, place: int, depth: int) -> int:
    return _list(reader, part, place, depth, BULLET)


def numbered_list(reader: Reader, part: Lines, place: int, depth: int) -> int:
    follows = "".join(part.lines[place + 1 : place + 2])
    is_list = not follows or follows[0] == " " or NUMBERED.match(follows)
    return _list(reader, part, place, depth, NUMBERED) if is_list else place


def _list(reader: Reader, part: Lines, place: int, depth: int, begin: re.Pattern[str]) -> int:
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


def field_list(reader: Reader, part: Lines, place: int, depth: int) -> int:
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


def option_list(reader: Reader, part: Lines, place: int, depth: int) -> int:
    reader.out.begin_list()
    while place < len(part.lines) and (found := OPTION.match(part.lines[place])):
        end = part.indented_end(place + 1)
        if not found["text"] and end == place + 1:
            break
        _named(reader, found["names"], part.behind(found["text"], place, end), depth)
        place = part.skip_empty(end)
    reader.out.end_list()
    return place


def definition_list(reader: Reader, part: Lines, place: int, depth: int) -> int:
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


def _named(reader: Reader, name: str, body: Lines, depth: int) -> None:
    """An item that begins with a name: `name: text`."""
    reader.out.begin_definition(name)
    reader.read(body, depth + 1)
    reader.out.end_item()
