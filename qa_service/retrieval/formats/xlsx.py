"""Excel's workbooks, from their XML: of each sheet its tables, a row a line of `Column: value`s.

Format: ECMA-376, part 1, 18. What is hidden is left out: sheets, rows, columns, text in the colour
of its ground. Of a formula there is the value that was saved with it.
"""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple, TypeVar
from xml.etree import ElementTree as Xml

from qa_service.retrieval.documents import BlockList, Document, Parsed
from qa_service.retrieval.formats.bounded import read_package, reading
from qa_service.retrieval.formats.cells import ERROR, MAX_COLUMNS, Row, indent_of
from qa_service.retrieval.formats.grids import add_grid
from qa_service.retrieval.formats.number_formats import BUILT_IN, GENERAL, shown
from qa_service.retrieval.formats.office_package import (
    OfficePackage,
    attribute,
    child,
    descendants,
    is_on,
    name_of,
    number,
)
from qa_service.retrieval.layout import lay_out, says_something, title_of

_Value = TypeVar("_Value")
_WHITE = "FFFFFF"
_INDENT_POINTS = 9.0
"""Of a step of a cell's indent."""
_MAX_MERGED_CELLS = 1_000_000
"""Of a sheet; a file of a few bytes may merge them all."""
_ESCAPED = re.compile(r"_x(?:(000[9AD]|005F)|00[01][\dA-F])_", re.IGNORECASE)
"""A character that XML cannot hold; of those there are a tab, the ends of lines and `_` to see."""


def read_xlsx(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads the sheets that are shown."""
    data = read_package(stream, max_bytes)
    out = BlockList()
    with reading("a workbook"):
        package = OfficePackage(data)
        _Workbook(package).read(out)
        title = package.title()
    yield lay_out(Parsed(out.blocks, title if says_something(title) else title_of(name)), name)


class _Format(NamedTuple):
    """How a cell is shown.

    Attributes:
        code: Of its number.
        is_strong: Whether it is set off as heads are.
        indent: In points.
        is_hidden: Whether its text has the colour of the paper.
    """

    code: str
    is_strong: bool
    indent: float = 0.0
    is_hidden: bool = False


_PLAIN = _Format(GENERAL, is_strong=False)


class _Table(NamedTuple):
    """The places of a table that a sheet declares."""

    rows: range
    columns: range
    has_head: bool


class _Workbook:
    def __init__(self, package: OfficePackage) -> None:
        self._package = package
        self._book = package.document("workbook")
        self._is_1904 = attribute(child(self._book, "workbookPr"), "date1904") in {"1", "true"}
        self._formats = _formats(package.part("styles"))
        self._strings = [_string(one) for one in package.part("sharedStrings")]

    def read(self, out: BlockList) -> None:
        """Adds the sheets' tables, each sheet's below its name."""
        parts = self._package.relations(self._package.main)
        sheets = [
            (attribute(one, "name"), parts[attribute(one, "id")][1])
            for one in descendants(self._book, "sheet")
            if attribute(one, "state") in {"", "visible"}
            and parts.get(attribute(one, "id"), ("", ""))[0] == "worksheet"
        ]
        for title, part in sheets:
            out.part = f"sheet {title}"
            if len(sheets) > 1 or says_something(title):
                out.heading(1, title)
            add_grid(out, self._rows(part))

    def _rows(self, part: str) -> list[Row]:
        """A sheet's rows, with an empty one wherever the sheet has some."""
        rows, hidden, merged, last = list[Row](), set[int](), list[str](), 0
        tables = [*_tables(self._package, part)]
        with self._package.open(part) as stream:
            for _, element in Xml.iterparse(stream):
                name = name_of(element)
                if name == "row":
                    before, last = last, number(element, "r") or last + 1
                    if last > before + 1:
                        rows.append(Row(0, []))
                    if element.get("hidden") not in {"1", "true"}:
                        within = [table for table in tables if last in table.rows]
                        rows.append(self._row(element, last, within))
                    element.clear()
                elif name == "col" and element.get("hidden") in {"1", "true"}:
                    first, end = number(element, "min") or 1, number(element, "max") or 0
                    hidden.update(range(first - 1, min(end, MAX_COLUMNS)))
                elif name == "mergeCell":
                    merged.append(attribute(element, "ref"))
        return list(_filled(rows, merged, hidden))

    def _row(self, element: Xml.Element, line: int, tables: Sequence[_Table]) -> Row:
        heads = [table.columns for table in tables if table.has_head and table.rows[0] == line]
        texts, strong, indent, column = list[str](), set[int](), 0.0, -1
        for cell in element:
            reference = cell.get("r")
            column = _column(reference.rstrip("0123456789")) if reference else column + 1
            if column >= MAX_COLUMNS:
                continue
            form = self._formats.get(cell.get("s", "0"), _PLAIN)
            if form.is_hidden and not any(column in table.columns for table in tables):
                continue  # a table's style may have a dark ground
            shown_text = self._text(cell, form)
            if text := shown_text.strip():
                if not any(texts):
                    indent = form.indent + indent_of(shown_text)
                texts += [""] * (column + 1 - len(texts))
                texts[column] = text
                if form.is_strong:
                    strong.add(column)
        return Row(line, texts, strong=strong, is_head=bool(heads), indent=indent, heads=heads)

    def _text(self, cell: Xml.Element, form: _Format) -> str:
        """A cell's value as it is shown; of an error nothing."""
        kind = cell.get("t", "n")
        if kind == "inlineStr":
            return _string(cell)
        held = next((one.text or "" for one in cell if name_of(one) == "v"), "")
        if kind == "n" and held:
            return shown(float(held), form.code, is_1904=self._is_1904)
        if kind == "s" and held:
            return self._strings[int(held)]
        if kind == "b":
            return {"0": "FALSE", "1": "TRUE"}.get(held, "")
        return held if kind in {"str", "d"} and not ERROR.fullmatch(held) else ""


def _string(element: Xml.Element) -> str:
    """A string's runs; how it is pronounced is left out."""
    parts = list[str]()
    for one in element:
        if (name := name_of(one)) == "t":
            parts.append(_ESCAPED.sub(lambda found: chr(int(found[1] or "0", 16)), one.text or ""))
        elif name in {"r", "is"}:
            parts.append(_string(one))
    return "".join(parts)


def _formats(styles: Xml.Element) -> dict[str, _Format]:
    """How cells are shown, by the numbers that cells have."""
    codes = {number(one, "numFmtId"): attribute(one, "formatCode")
             for one in descendants(styles, "numFmt")}  # fmt: skip
    fonts = [*(child(styles, "fonts") or ())]
    bold = [is_on(child(one, "b")) for one in fonts]
    inks = [_colour(child(one, "color")) for one in fonts]
    fills = [child(one, "patternFill") for one in child(styles, "fills") or ()]
    grounds = [_ground(one) for one in fills]
    found = dict[str, _Format]()
    for place, one in enumerate(child(styles, "cellXfs") or ()):
        code = number(one, "numFmtId") or 0
        font, fill = number(one, "fontId"), number(one, "fillId")
        ground = _at(grounds, fill)
        is_strong = bool(_at(bold, font)) or ground not in {None, "", _WHITE}
        is_hidden = _at(inks, font) == ground != ""
        indent = _INDENT_POINTS * (number(child(one, "alignment"), "indent") or 0)
        code_text = codes.get(code) or BUILT_IN.get(code, GENERAL)
        found[str(place)] = _Format(code_text, is_strong, indent, is_hidden)
    return found


def _ground(fill: Xml.Element | None) -> str:
    """A fill's colour; "" if it has several."""
    kind = attribute(fill, "patternType")
    if fill is None or kind not in {"", "none", "solid"}:
        return ""
    return _colour(child(fill, "fgColor")) or kind if kind == "solid" else _WHITE


def _colour(colour: Xml.Element | None) -> str:
    """A colour's name; "" if there is none."""
    rgb, tint = attribute(colour, "rgb")[2:].upper(), attribute(colour, "tint")
    parts = [rgb, attribute(colour, "theme"), attribute(colour, "indexed"), tint.strip("-0.")]
    return _WHITE if parts == ["", "0", "", ""] else " ".join(filter(None, [*parts[:3], tint]))


def _at(values: Sequence[_Value], place: int | None) -> _Value | None:
    return values[place] if place is not None and place < len(values) else None


def _tables(package: OfficePackage, sheet: str) -> Iterator[_Table]:
    """The tables that a sheet declares."""
    for table in (package.read(name) for name in package.related(sheet, "table")):
        (row, first), (end, last) = map(_place, (attribute(table, "ref").split(":") * 2)[:2])
        has_head = attribute(table, "headerRowCount") != "0"
        yield _Table(range(row, end + 1), range(first, last + 1), has_head)


@functools.lru_cache(maxsize=MAX_COLUMNS)
def _column(letters: str) -> int:
    """A column's place, from 0."""
    place = 0
    for letter in letters[:4].upper():
        place = 26 * place + ord(letter) - ord("A") + 1
    return place - 1


def _place(reference: str) -> tuple[int, int]:
    """The row's number, from 1, and the column's place, from 0, of a cell such as `B3`."""
    letters = reference.rstrip("0123456789")
    return int(reference[len(letters) :]), _column(letters)


def _filled(rows: list[Row], merged: list[str], hidden: set[int]) -> Iterator[Row]:
    """The rows with the text of each merged cell in all of its places that are shown."""
    by_line = {row.line: row for row in rows if row.line}
    lines = sorted(by_line)
    from_left, from_above, strong = (defaultdict[int, set[int]](set) for _ in range(3))
    budget = _MAX_MERGED_CELLS
    for reference in merged:
        (top, first), (bottom, end) = map(_place, (reference.split(":") * 2)[:2])
        columns = [c for c in range(first, min(end + 1, MAX_COLUMNS)) if c not in hidden]
        inside = lines[bisect_left(lines, top) : bisect_right(lines, bottom)]
        text = by_line[top].at(first) if top in by_line else ""
        budget -= len(inside) * len(columns)
        if not text or budget < 0:
            continue
        for line, column in itertools.product(inside, columns):
            cells = by_line[line].cells
            cells.extend([""] * (column + 1 - len(cells)))
            cells[column] = text
            for marks, is_marked in (
                (from_left, column != columns[0]), (from_above, line != top),
                (strong, first in by_line[top].strong),
            ):  # fmt: skip
                if is_marked:
                    marks[line].add(column)
    for row in rows:
        cells = ["" if n in hidden else cell for n, cell in enumerate(row.cells)]
        marked = row.strong | strong.get(row.line, set())
        left, above = from_left.get(row.line, set()), from_above.get(row.line, set())
        texts = cells if hidden else row.cells
        yield Row(row.line, texts, left, above, marked, row.is_head, row.indent, row.heads)
