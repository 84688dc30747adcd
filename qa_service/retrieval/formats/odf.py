"""LibreOffice's texts, sheets and slides (.odt, .ods, .odp), from their XML.

Format: OpenDocument 1.3, part 3. What is deleted or hidden, and comments, are left out; notes and
text boxes follow the paragraph that they are anchored in.
"""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Iterable, Iterator, Set
from typing import BinaryIO
from xml.etree import ElementTree as Xml

from qa_service.retrieval.documents import BlockList, Document, Parsed, UnreadableError
from qa_service.retrieval.formats.bounded import read_package, reading
from qa_service.retrieval.formats.cells import MAX_COLUMNS, Cell, Grid
from qa_service.retrieval.formats.grids import add_grid
from qa_service.retrieval.formats.office_package import attribute, child, name_of, number, text_of
from qa_service.retrieval.layout import lay_out, says_something

_ENCRYPTED = b"encryption-data"
_MAX_REPEATED_ROWS = 100
"""A row that is repeated more often is what a sheet is filled with."""
_PLAIN_FILLS = frozenset({"", "transparent", "#ffffff"})
_LEFT_OUT = frozenset(
    {"tracked-changes", "annotation", "annotation-end", "table-of-content", "alphabetical-index"}
    | {"ruby-text", "forms", "note-citation", "illustration-index", "desc", "title"}
)
_ASIDE = frozenset({"note", "frame", "custom-shape", "table"})
"""What follows the paragraph that it stands in."""


def read_odf(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads a text, a workbook or a presentation."""
    data = read_package(stream, max_bytes)
    out = BlockList()
    with reading("in OpenDocument's format"), zipfile.ZipFile(io.BytesIO(data)) as archive:
        if _ENCRYPTED in archive.read("META-INF/manifest.xml"):
            raise UnreadableError("it is encrypted")
        content = Xml.fromstring(archive.read("content.xml"))
        has_title = "meta.xml" in archive.namelist()
        meta = Xml.fromstring(archive.read("meta.xml")) if has_title else None
        _Reader(out, content).read()
    title = text_of(meta.find(".//{*}title")) if meta is not None else ""
    yield lay_out(Parsed(out.blocks, title), name)


class _Reader:
    def __init__(self, out: BlockList, content: Xml.Element) -> None:
        self._out = out
        self._content = content
        styles = (one for one in content.iter() if name_of(one) in {"style", "list-style"})
        self._styles = {attribute(one, "name"): one for one in styles}
        self._strong = {name for name, style in self._styles.items() if _is_strong(style)}

    def read(self) -> None:
        """Adds the blocks of the body; of a workbook each sheet's below its name."""
        kind = next(iter(child(self._content, "body") or ()))
        if name_of(kind) == "presentation":
            slides = (one for one in kind if name_of(one) == "page")
            for place, slide in enumerate(slides, 1):
                self._out.page, self._out.part = place, f"slide {place}"
                self._blocks([slide])
            return
        if name_of(kind) != "spreadsheet":
            self._blocks(kind)
            return
        sheets = list[Xml.Element]()
        for one in kind:
            style = self._styles.get(attribute(one, "style-name"))
            is_hidden = attribute(child(style, "table-properties"), "display") == "false"
            if name_of(one) == "table" and not is_hidden:
                sheets.append(one)
        for sheet in sheets:
            title = attribute(sheet, "name")
            self._out.part = f"sheet {title}"
            if len(sheets) > 1 or says_something(title):
                self._out.heading(1, title)
            self._table(sheet)

    def _blocks(self, element: Iterable[Xml.Element], *, is_title: bool = False) -> None:
        for one in element:
            name = name_of(one)
            if name in {"h", "p"}:
                text, aside = _text(one)
                if name == "h" or is_title:
                    self._out.unnest()
                    self._out.heading(number(one, "outline-level") or 1, text)
                else:
                    self._out.line(text, is_bold=attribute(one, "style-name") in self._strong)
                self._blocks(aside)
            elif name == "list":
                self._list(one)
            elif name == "table":
                self._table(one)
            elif name not in _LEFT_OUT:
                self._blocks(one, is_title=is_title or attribute(one, "class") == "title")

    def _list(self, element: Xml.Element) -> None:
        style = self._styles.get(attribute(element, "style-name"))
        levels = [name_of(one) for one in style] if style is not None else []
        is_numbered = bool(levels) and levels[0] == "list-level-style-number"
        self._out.begin_list()
        items = (item for item in element if name_of(item) in {"list-item", "list-header"})
        for count, item in enumerate(items, 1):
            self._out.begin_item(f"{count}." if is_numbered else "-")
            self._blocks(item)
            self._out.end_item()
        self._out.end_list()

    def _table(self, table: Xml.Element) -> None:
        grid, aside, line = Grid(), list[Xml.Element](), 0
        for row, is_head in _rows(table, is_head=False):
            times = number(row, "number-rows-repeated") or 1
            found = (cell for one in row for cell in _cells(one, aside, self._strong))
            cells = list(itertools.islice(found, MAX_COLUMNS))
            is_shown = attribute(row, "visibility") not in {"collapse", "filter"}
            for place in range(min(times, _MAX_REPEATED_ROWS) if any(c.text for c in cells) else 1):
                if is_shown:
                    grid.add_row(cells, line + place + 1, is_head=is_head)
            line += times
        add_grid(self._out, grid.rows)
        self._blocks(aside)


def _is_strong(style: Xml.Element) -> bool:
    """Whether a style sets a cell off as heads are: bold, or on a colour."""
    fill = attribute(child(style, "table-cell-properties"), "background-color").lower()
    is_bold = attribute(child(style, "text-properties"), "font-weight") == "bold"
    return is_bold or fill not in _PLAIN_FILLS


def _rows(element: Xml.Element, *, is_head: bool) -> Iterator[tuple[Xml.Element, bool]]:
    """A table's rows, and whether each is a head's."""
    for one in element:
        name = name_of(one)
        if name == "table-row":
            yield one, is_head
        elif name in {"table-header-rows", "table-rows", "table-row-group"}:
            yield from _rows(one, is_head=name == "table-header-rows")


def _cells(element: Xml.Element, aside: list[Xml.Element], strong: Set[str]) -> Iterator[Cell]:
    """A cell as often as it is repeated; a place that a merged cell covers is none."""
    if name_of(element) != "table-cell":
        return
    parts = list[str]()
    for one in element.iter():
        if name_of(one) in {"p", "h"}:
            text, its = _text(one)
            parts.append(text)
            aside += its
    text = " ".join(parts)
    columns = number(element, "number-columns-spanned") or 1
    rows = number(element, "number-rows-spanned") or 1
    times = number(element, "number-columns-repeated") or 1
    is_strong = attribute(element, "style-name") in strong
    yield from itertools.repeat(Cell(text, columns, rows, is_strong), min(times, MAX_COLUMNS))


def _text(element: Xml.Element) -> tuple[str, list[Xml.Element]]:
    """A paragraph's text, and what follows it."""
    parts, aside = [element.text or ""], list[Xml.Element]()
    for one in element:
        name = name_of(one)
        if name == "s":
            parts.append(" ")
        elif name == "tab":
            parts.append("\t")
        elif name == "line-break":
            parts.append("\n")
        elif name in _ASIDE:
            aside.append(one)
        elif name not in _LEFT_OUT:
            text, its = _text(one)
            parts.append(text)
            aside += its
        parts.append(one.tail or "")
    return "".join(parts), aside
