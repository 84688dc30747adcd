"""Excel's workbooks, from their XML: of each sheet its tables, a row a line of `Column: value`s.

Format: ECMA-376, part 1, 18. What is hidden is left out: sheets, rows, columns. Of a formula there
is the value that was saved with it.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree as Xml

from qa_service.retrieval.blocks import BlockList, Parsed
from qa_service.retrieval.documents import Document
from qa_service.retrieval.formats.bounded import read_package, reading
from qa_service.retrieval.formats.grids import MAX_COLUMNS, Row, add_grid, indent_of
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

_INDENT_POINTS = 9.0
"""Of a step of a cell's indent."""
_MAX_MERGED_CELLS = 1_000_000
"""Of a sheet; a file of a few bytes may merge them all."""


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
    """How a cell is shown: its number's format, whether it is set off as heads are, its indent."""

    code: str
    is_strong: bool
    indent: float = 0.0


_PLAIN = _Format(GENERAL, is_strong=False)


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
        heads = _heads(self._package, part)
        with self._package.open(part) as stream:
            for _, element in Xml.iterparse(stream):
                name = name_of(element)
                if name == "row":
                    before, last = last, number(element, "r") or last + 1
                    if last > before + 1:
                        rows.append(Row(0, []))
                    if element.get("hidden") not in {"1", "true"}:
                        rows.append(self._row(element, last, is_head=last in heads))
                    element.clear()
                elif name == "col" and element.get("hidden") in {"1", "true"}:
                    first, end = number(element, "min") or 1, number(element, "max") or 0
                    hidden.update(range(first - 1, min(end, MAX_COLUMNS)))
                elif name == "mergeCell":
                    merged.append(attribute(element, "ref"))
        return list(_filled(rows, merged, hidden))

    def _row(self, element: Xml.Element, line: int, *, is_head: bool) -> Row:
        texts, strong, indent = list[str](), set[int](), 0.0
        for cell in element:
            reference = cell.get("r")
            column = _column(reference.rstrip("0123456789")) if reference else len(texts)
            if column >= MAX_COLUMNS:
                continue
            form = self._formats.get(cell.get("s", "0"), _PLAIN)
            shown_text = self._text(cell, form)
            if text := shown_text.strip():
                if not any(texts):
                    indent = form.indent + indent_of(shown_text)
                texts += [""] * (column + 1 - len(texts))
                texts[column] = text
                if form.is_strong:
                    strong.add(column)
        return Row(line, texts, strong=strong, is_head=is_head, indent=indent)

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
        return held if kind in {"str", "d"} else ""


def _string(element: Xml.Element) -> str:
    """A string's runs; how it is pronounced is left out."""
    parts = list[str]()
    for one in element:
        if (name := name_of(one)) == "t":
            parts.append(one.text or "")
        elif name in {"r", "is"}:
            parts.append(_string(one))
    return "".join(parts)


def _formats(styles: Xml.Element) -> dict[str, _Format]:
    """How cells are shown, by the numbers that cells have."""
    codes = {number(one, "numFmtId"): attribute(one, "formatCode")
             for one in descendants(styles, "numFmt")}  # fmt: skip
    fonts = [is_on(child(one, "b")) for one in child(styles, "fonts") or ()]
    fills = [child(one, "patternFill") for one in child(styles, "fills") or ()]
    strong_fills = [
        attribute(one, "patternType") == "solid"
        and attribute(child(one, "fgColor"), "rgb")[2:].upper() != "FFFFFF"
        and attribute(child(one, "fgColor"), "theme") != "0"
        for one in fills
    ]
    found = dict[str, _Format]()
    for place, one in enumerate(child(styles, "cellXfs") or ()):
        code = number(one, "numFmtId") or 0
        is_strong = _at(fonts, number(one, "fontId")) or _at(strong_fills, number(one, "fillId"))
        indent = _INDENT_POINTS * (number(child(one, "alignment"), "indent") or 0)
        code_text = codes.get(code) or BUILT_IN.get(code, GENERAL)
        found[str(place)] = _Format(code_text, is_strong, indent)
    return found


def _at(flags: Sequence[bool], place: int | None) -> bool:
    return place is not None and place < len(flags) and flags[place]


def _heads(package: OfficePackage, sheet: str) -> set[int]:
    """The rows that the sheet's tables declare as their heads."""
    tables = [package.read(name) for name in package.related(sheet, "table")]
    return {
        _place(attribute(table, "ref").partition(":")[0])[0]
        for table in tables
        if attribute(table, "headerRowCount") != "0"
    }


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
        yield Row(row.line, texts, left, above, marked, row.is_head, row.indent)
