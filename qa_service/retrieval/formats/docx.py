"""Word's documents, from their XML: headings, paragraphs, lists with their numbers, tables, notes.

Format: ECMA-376, part 1, 17. Text boxes, charts and notes follow the
paragraph that they are anchored in. What is inserted is there and what is deleted is not, nor are
codes of fields.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO
from xml.etree import ElementTree as Xml

from qa_service.retrieval.documents import MAX_NAME_CHARS, BlockList, Document, Kind, Parsed
from qa_service.retrieval.formats.bounded import read_package, reading
from qa_service.retrieval.formats.cells import Cell, Grid, Row, is_of_heads
from qa_service.retrieval.formats.grid_table import GridTable
from qa_service.retrieval.formats.grids import add_grid
from qa_service.retrieval.formats.office_charts import add_chart
from qa_service.retrieval.formats.office_package import (
    OfficePackage,
    attribute,
    child,
    descendants,
    is_on,
    name_of,
    number,
    text_of,
    without_page_number,
)
from qa_service.retrieval.formats.table_heads import MAX_HEAD_ROWS, is_strong
from qa_service.retrieval.formats.word_styles import Nesting, Role, Roles, Styles
from qa_service.retrieval.formats.word_text import BOXES, WRAPPERS, WordText
from qa_service.retrieval.layout import lay_out

_Cells = tuple[Xml.Element, list[Xml.Element]]
"""A row of a table, and its cells."""
_LONG_CELL_CHARS = 300
"""Rows with longer cells may arrange the page."""
_FIRST_ROW, _FIRST_COLUMN = 0x20, 0x80
"""Bits of a table's look: what its style sets off."""
_MARGINS = frozenset({"headerReference", "footerReference"})
_BULLET = re.compile(r"\s*(?:[•▪‣◦●■□➢➤·]\s*|[-–]\s+)(?=\w)")  # noqa: RUF001, a dash
"""Before a paragraph: many type it."""
_MIN_LINE_CHARS = 60
_GOES_ON, _LOWER = re.compile(r"[^\W\d_],?$"), re.compile(r"\s*[a-z]{2,}[\s,]")
"""The end of a line in the middle of a sentence, and the beginning of the next one."""
_DIGITS = re.compile(r"\d+")
_PLAIN_FILLS = frozenset({"", "auto", "FFFFFF", "ffffff"})


def read_docx(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads the pages' heads and feet, then a document's body with its notes and text boxes."""
    data = read_package(stream, max_bytes)
    out = BlockList()
    with reading("a Word document"):
        package = OfficePackage(data)
        reader = _Reader(package, out)
        document = package.document("document")
        reader.read(document)
        title, count = package.title() or reader.title, len(out.blocks)
        reader.read_margins(document)
    yield lay_out(Parsed([*out.blocks[count:], *out.blocks[:count]], title), name)


class _Reader:
    """Adds a document's blocks.

    Attributes:
        title: Its first paragraph in the style of titles.
    """

    def __init__(self, package: OfficePackage, out: BlockList) -> None:
        self._out = out
        self._package = package
        self._relations = package.relations(package.main)
        self._styles = Styles(package.part("styles"))
        self._roles = Roles(self._styles, package.part("numbering"))
        self._nesting = Nesting()
        self._notes = {
            (kind, attribute(note, "id")): note
            for kind in ("footnote", "endnote")
            for note in package.part(f"{kind}s")
        }
        self._carried = ""
        """The text of a paragraph whose end is deleted: it goes on in the next one."""
        self._above: Sequence[GridTable] = ()
        self._width = self._end = 0
        """Of the table above, if it has a head: its columns, and how many blocks end with it."""
        self._fields = list[bool]()
        """Of each field that is open, whether it makes a table of contents."""
        self._line_end = 0
        """How many blocks end with a line that may go on in the next paragraph."""
        self.title = ""

    def read(self, element: Xml.Element) -> None:
        for one in element:
            name = name_of(one)
            if name == "p":
                self._paragraph(one)
            elif name == "tbl":
                self._table(one)
            elif name == "AlternateContent":
                self.read(one[0])
            elif name in WRAPPERS:
                self.read(one)
        self._end_lists()

    def _end_lists(self) -> None:
        self._out.unnest()
        self._nesting.close()

    def read_margins(self, document: Xml.Element) -> None:
        """Adds what stands above and below the pages' texts, once, but for the pages' numbers."""
        self._width = 0
        known = {block.text for block in self._out.blocks}
        found = dict[str, Xml.Element]()
        for section in descendants(document, "sectPr"):
            shown = {"default", "first"} if is_on(child(section, "titlePg")) else {"default"}
            for one in section:
                entry = self._relations.get(attribute(one, "id"))
                if entry and name_of(one) in _MARGINS and attribute(one, "type") in shown:
                    part = self._package.read(entry[1])
                    found.setdefault(_DIGITS.sub("", text_of(part)), part)
        for part in found.values():
            self._margin(part, known)

    def _margin(self, element: Xml.Element, known: set[str]) -> None:
        for one in element:
            if name_of(one) == "p":
                found = WordText(one, self._notes)
                text = without_page_number(str(found))
                if text and text not in known:
                    known.add(text)
                    self._out.paragraph(text)
                for box in found.boxes:
                    self._margin(box, known)
            elif name_of(one) == "tbl":
                self._table(one)
            elif name_of(one) in WRAPPERS:
                self._margin(one, known)

    def _paragraph(self, element: Xml.Element) -> None:
        found = WordText(element, self._notes)
        text = self._carried + str(found)
        self._carried = ""
        if child(element, "pPr", "rPr", "del") is not None:
            self._carried = text
            return
        role = self._roles.of(element)
        is_in_contents = self._is_in_contents(found) and not role.heading
        is_entry = is_in_contents and text.rstrip()[-1:].isdecimal()
        if not text.strip() or role.is_contents or is_entry:
            self._line_end = 0
        elif not (role.heading or role.depth) and self._goes_on(text):
            last = self._out.blocks[-1]
            self._out.blocks[-1] = last._replace(text=f"{last.text} {text.strip()}")
        elif role.heading and len(text) <= MAX_NAME_CHARS:
            self._end_lists()
            self._fields.clear()
            self.title = self.title or (text if role.is_title else "")
            self._out.heading(role.heading, _numbered(role, text))
        elif role.depth and role.mark:
            self._out.item(self._nesting.depth(role), role.mark, text)
        elif not role.depth and (bullet := _BULLET.match(text)):
            self._nesting.close()
            self._out.item(1, "-", text[bullet.end() :])
        else:
            self._out.unnest(self._nesting.depth(role))
            self._out.line(text, is_bold=found.is_bold)
            self._line_end = len(self._out.blocks)
        for note in found.notes:
            self._out.paragraph(self._joined(note, []))
        for box in found.boxes:
            self._box(box)

    def _goes_on(self, text: str) -> bool:
        """Whether a paragraph is the next line of the one right above: some end each line."""
        if self._line_end != len(self._out.blocks) or not self._line_end:
            return False
        above = self._out.blocks[-1]
        is_line = above.kind is Kind.PARAGRAPH and len(above.text) >= _MIN_LINE_CHARS
        return is_line and bool(_GOES_ON.search(above.text) and _LOWER.match(text))

    def _is_in_contents(self, paragraph: WordText) -> bool:
        """Whether a paragraph, or a part of it, is in a field that makes a table of contents."""
        is_in = any(self._fields)
        for code in paragraph.codes:
            if code is not None:
                self._fields.append(code.split()[:1] == ["TOC"])
                is_in |= self._fields[-1]
            elif self._fields:
                self._fields.pop()
        return is_in

    def _box(self, element: Xml.Element) -> None:
        """Reads what is anchored in a paragraph: a text box, or a chart."""
        if name_of(element) != "chart":
            self.read(element)
        elif part := self._relations.get(attribute(element, "id")):
            add_chart(self._out, self._package.read(part[1]))

    def _table(self, element: Xml.Element) -> None:
        self._end_lists()
        rows = [(row, list(_within(row, "tc"))) for row in _within(element, "tr")]
        rows = [(row, cells) for row, cells in rows if child(row, "trPr", "del") is None]
        look, counted = self._look(element), self._roles.counted()
        after = list[Xml.Element]()
        grid = self._grid(rows, look, after)
        are_pages = _are_pages(grid, rows, after)
        if rows and not any(are_pages):
            self._add_table(grid.rows, after)
            return
        self._roles.go_back(counted)
        for is_page, found in itertools.groupby(range(len(rows)), are_pages.__getitem__):
            part = [rows[place] for place in found]
            if is_page:
                for cell in itertools.chain.from_iterable(cells for _, cells in part):
                    self.read(cell)
            else:
                after = []
                rest = self._grid(part, look if part[0] is rows[0] else look & ~_FIRST_ROW, after)
                self._add_table(rest.rows, after)

    def _grid(self, rows: list[_Cells], look: int, after: list[Xml.Element]) -> Grid:
        """The cells of a table.

        Args:
            look: What the table's style sets off: bits.
            after: Takes the tables, boxes and notes in them.
        """
        grid = Grid()
        fills = [_fill(cell) for _, cells in rows[:1] for cell in cells]
        for place, (row, cells) in enumerate(rows):
            is_head = is_on(child(row, "trPr", "tblHeader"))
            skipped = number(child(row, "trPr", "gridBefore")) or 0
            made = [Cell("", columns=skipped)] if skipped else []
            for column, cell in enumerate(cells):
                is_set_off = bool(look & (_FIRST_ROW * (not place) | _FIRST_COLUMN * (not column)))
                is_set_off |= is_of_heads(_fill(cell), fills)
                made.append(self._cell(cell, after, is_strong=is_set_off))
            # Some declare rows below a head's as heads, too.
            is_like = not place or any(one.is_strong for one in made) or not grid.rows[0].strong
            grid.add_row(made, is_head=is_head and is_like)
        return grid

    def _add_table(self, rows: list[Row], after: list[Xml.Element]) -> None:
        """Adds a table, or further rows of the one right above it: some part tables at pages.

        Args:
            after: The tables, boxes and notes in its cells.
        """
        width = max(len(row.cells) for row in rows)
        has_head = any(row.is_head or is_strong(row) for row in rows[:MAX_HEAD_ROWS])
        goes_on = not has_head and self._width == width and self._end == len(self._out.blocks)
        self._above = add_grid(self._out, rows, above=self._above if goes_on else ())
        self._width = width if has_head or goes_on else 0
        self._end = len(self._out.blocks)
        for one in after:
            if name_of(one) == "tbl":
                self._table(one)
            elif name_of(one) in BOXES:
                self._box(one)
            else:
                self._out.paragraph(self._joined(one, []))

    def _cell(self, cell: Xml.Element, after: list[Xml.Element], *, is_strong: bool) -> Cell:
        merged = child(cell, "tcPr", "vMerge")
        bold = list[bool]()
        text = self._joined(cell, after, bold)
        return Cell(
            text,
            columns=number(child(cell, "tcPr", "gridSpan")) or 1,
            is_strong=is_strong or (bool(bold) and all(bold)),
            goes_on=merged is not None and attribute(merged) != "restart",
        )

    def _joined(
        self, element: Xml.Element, after: list[Xml.Element], bold: list[bool] | None = None
    ) -> str:
        """The text of a cell or note in a line.

        Args:
            after: Takes the tables, boxes and notes in it.
            bold: Takes of each paragraph whether it is bold.
        """
        parts = list[str]()
        for one in element:
            name = name_of(one)
            if name == "p":
                found = WordText(one, self._notes)
                after += [*found.notes, *found.boxes]
                role = self._roles.of(one)
                if text := str(found).strip():
                    parts.append(_numbered(role, text))
                    if bold is not None:
                        bold.append(found.is_bold)
            elif name == "tbl":
                after.append(one)
            elif name in WRAPPERS:
                parts.append(self._joined(one, after, bold))
        return " ".join(filter(None, parts))

    def _look(self, table: Xml.Element) -> int:
        """Whether the table's style sets off the first row and the first column: bits."""
        look = child(table, "tblPr", "tblLook")
        value = attribute(look)
        bits = int(value, 16) if value else 0
        for bit, name in ((_FIRST_ROW, "firstRow"), (_FIRST_COLUMN, "firstColumn")):
            bits |= bit * (attribute(look, name) == "1")
        style = attribute(child(table, "tblPr", "tblStyle"))
        parts = [
            one for found in self._styles.named(style) for one in found
            if is_on(child(one, "rPr", "b")) or child(one, "tcPr", "shd") is not None
        ]  # fmt: skip
        named = {attribute(one, "type") for one in parts if name_of(one) == "tblStylePr"}
        return bits & (_FIRST_ROW * ("firstRow" in named) | _FIRST_COLUMN * ("firstCol" in named))


def _numbered(role: Role, text: str) -> str:
    return f"{role.mark} {text}" if role.mark and not (role.heading and role.mark == "-") else text


def _fill(cell: Xml.Element) -> str:
    """A cell's colour; "" if it is the paper's."""
    fill = attribute(child(cell, "tcPr", "shd"), "fill")
    return "" if fill in _PLAIN_FILLS else fill


def _within(element: Xml.Element, name: str) -> Iterator[Xml.Element]:
    """A table's rows, or a row's cells, also within content controls."""
    for one in element:
        if name_of(one) == name:
            yield one
        elif name_of(one) in WRAPPERS:
            yield from _within(one, name)


def _are_pages(grid: Grid, rows: list[_Cells], within: list[Xml.Element]) -> list[bool]:
    """Which rows only arrange the page.

    All of one column, or one row of long cells or tables; of a table without a head a long cell or
    a table that is alone in its row.
    """
    if all(len(row.columns()) < 2 for row in grid.rows):
        return [True] * len(rows)
    are_wide = [any(len(cell) > _LONG_CELL_CHARS for cell in row.cells) for row in grid.rows]
    if len(rows) == 1:
        return [are_wide[0] or any(name_of(one) == "tbl" for one in within)]
    if any(row.is_head or is_strong(row) for row in grid.rows[:MAX_HEAD_ROWS]):
        return [False] * len(rows)
    return [
        len(row.columns()) < 2 and not row.from_above
        and (is_wide or any(child(cell, "tbl") is not None for cell in cells))
        for row, is_wide, (_, cells) in zip(grid.rows, are_wide, rows, strict=True)
    ]  # fmt: skip
