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
from qa_service.retrieval.formats.cells import ERROR, MAX_COLUMNS, Cell, Grid, is_of_heads
from qa_service.retrieval.formats.grids import add_grid
from qa_service.retrieval.formats.odf_lists import OUTLINE, Numbers
from qa_service.retrieval.formats.office_package import (
    attribute,
    child,
    name_of,
    number,
    text_of,
    without_page_number,
)
from qa_service.retrieval.layout import lay_out, says_something

_ENCRYPTED = b"encryption-data"
_MAX_REPEATED_ROWS = 100
"""A row that is repeated more often is what a sheet is filled with."""
_STYLES = frozenset({"style", "list-style", OUTLINE})
_MAX_CHAIN = 20
"""Styles that are based on one another; more are a circle."""
_PLAIN_FILLS = frozenset({"", "transparent", "#ffffff"})
_LEFT_OUT = frozenset(
    {"tracked-changes", "annotation", "annotation-end", "table-of-content", "alphabetical-index"}
    | {"ruby-text", "forms", "note-citation", "illustration-index", "desc", "title"}
)
_USUAL_PAGE = "Standard"
_MARGINS = frozenset({"header", "header-first", "footer", "footer-first"})
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
        names = archive.namelist()
        meta = Xml.fromstring(archive.read("meta.xml")) if "meta.xml" in names else None
        styles = Xml.fromstring(archive.read("styles.xml")) if "styles.xml" in names else None
        _Reader(out, content, styles).read()
    title = text_of(meta.find(".//{*}title")) if meta is not None else ""
    yield lay_out(Parsed(out.blocks, title), name)


class _Reader:
    def __init__(self, out: BlockList, content: Xml.Element, styles: Xml.Element | None) -> None:
        self._out = out
        self._body = next(iter(child(content, "body") or ()))
        parts = [part for part in (styles, content) if part is not None]  # content's names win
        named = [one for part in parts for one in part.iter() if name_of(one) in _STYLES]
        self._styles = {attribute(one, "name"): one for one in named if name_of(one) == "style"}
        self._bold = {name for name in self._styles if self._is_bold(name)}
        self._fills = {
            name: fill
            for name, style in self._styles.items()
            if (fill := _fill(style)) not in _PLAIN_FILLS
        }
        lists = [one for one in named if name_of(one) != "style"]
        self._numbers = Numbers(
            {attribute(one, "name") if name_of(one) != OUTLINE else OUTLINE: one for one in lists}
        )
        self._margins = _margins(content, styles)
        self._mark = ""
        """Of the item whose text follows."""

    def _is_bold(self, name: str) -> bool:
        for _ in range(_MAX_CHAIN):
            style = self._styles.get(name)
            if weight := attribute(child(style, "text-properties"), "font-weight"):
                return weight == "bold"
            name = attribute(style, "parent-style-name")
        return False

    def read(self) -> None:
        """Adds the blocks of the body; of a workbook each sheet's below its name."""
        if name_of(self._body) == "presentation":
            slides = (one for one in self._body if name_of(one) == "page")
            for place, slide in enumerate(slides, 1):
                self._out.page, self._out.part = place, f"slide {place}"
                self._blocks([slide])
            return
        if name_of(self._body) != "spreadsheet":
            for text in self._margins:
                self._out.paragraph(text)
            self._blocks(self._body)
            return
        sheets = list[Xml.Element]()
        for one in self._body:
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
                    level = number(one, "outline-level") or 1
                    mark = self._mark or self._outline(one, level)
                    self._out.unnest()
                    self._out.heading(level, text if mark in {"", "-"} else f"{mark} {text}")
                else:
                    self._out.line(text, is_bold=_is_bold(one, self._bold))
                self._blocks(aside)
            elif name == "list":
                self._list(one)
            elif name == "table":
                self._table(one)
            elif name not in _LEFT_OUT:
                self._blocks(one, is_title=is_title or attribute(one, "class") == "title")

    def _outline(self, heading: Xml.Element, level: int) -> str:
        """The number of a heading that is in no list; its style may have none."""
        style = self._styles.get(attribute(heading, "style-name"))
        has_none = style is not None and _without_list(style)
        has_none = has_none or attribute(heading, "is-list-header") == "true"
        is_empty = not text_of(heading).strip()
        return "" if has_none or is_empty else self._numbers.next_mark(OUTLINE, level)

    def _list(self, element: Xml.Element, style: str = "", level: int = 1) -> None:
        style = attribute(element, "style-name") or style
        goes_on = attribute(element, "continue-numbering") or attribute(element, "continue-list")
        if level == 1 and goes_on in {"", "false"}:
            self._numbers.begin(style)
        self._out.begin_list()
        for item in element:
            if name_of(item) not in {"list-item", "list-header"}:
                continue
            self._mark = ""
            if name_of(item) == "list-item" and any(name_of(one) in {"p", "h"} for one in item):
                self._mark = self._numbers.next_mark(style, level, number(item, "start-value"))
            self._out.begin_item(self._mark)
            for one in item:
                if name_of(one) == "list":
                    self._list(one, style, level + 1)
                else:
                    self._blocks([one])
                self._mark = ""
            self._out.end_item()
        self._out.end_list()

    def _table(self, table: Xml.Element) -> None:
        grid, aside, line = Grid(), list[Xml.Element](), 0
        rows = list(_rows(table, is_head=False))
        begins = rows[:1] if name_of(self._body) == "text" else ()  # a sheet's may be a title
        first = [
            self._fills.get(attribute(one, "style-name"), "") for row, _ in begins for one in row
        ]
        strong = self._bold.union(
            name for name, fill in self._fills.items() if is_of_heads(fill, first)
        )
        for row, is_head in rows:
            times = number(row, "number-rows-repeated") or 1
            found = (cell for one in row for cell in _cells(one, aside, strong))
            cells = list(itertools.islice(found, MAX_COLUMNS))
            is_shown = attribute(row, "visibility") not in {"collapse", "filter"}
            for place in range(min(times, _MAX_REPEATED_ROWS) if any(c.text for c in cells) else 1):
                if is_shown:
                    grid.add_row(cells, line + place + 1, is_head=is_head)
            line += times
        add_grid(self._out, grid.rows)
        self._blocks(aside)


def _margins(content: Xml.Element, styles: Xml.Element | None) -> list[str]:
    """What stands above and below the texts of the pages that there are, but for their numbers."""
    named = {attribute(one, "master-page-name") for one in content.iter()} | {_USUAL_PAGE}
    parts = (
        part
        for page in (styles.iter() if styles is not None else ())
        if name_of(page) == "master-page" and attribute(page, "name") in named
        for part in page
        if name_of(part) in _MARGINS and attribute(part, "display") != "false"
    )
    lines = (_text(one)[0] for part in parts for one in part.iter() if name_of(one) == "p")
    return list(dict.fromkeys(filter(None, map(without_page_number, lines))))


def _paragraphs(element: Xml.Element) -> Iterator[Xml.Element]:
    """A cell's, those in lists and in other paragraphs' frames too, without comments'."""
    for one in element:
        if name_of(one) not in _LEFT_OUT:
            if name_of(one) in {"p", "h"}:
                yield one
            yield from _paragraphs(one)


def _without_list(style: Xml.Element) -> bool:
    """Whether a style says that what has it is in no list, nor numbered."""
    return any(key.endswith("}list-style-name") and not value for key, value in style.items())


def _fill(style: Xml.Element) -> str:
    return attribute(child(style, "table-cell-properties"), "background-color").lower()


def _is_bold(element: Xml.Element, strong: Set[str]) -> bool:
    """Whether all of a text is bold, by its own style or those of its parts."""
    if attribute(element, "style-name") in strong:
        return True
    texts = [element.text, *(one.tail for one in element)]
    parts = [one for one in element if text_of(one).strip()]
    return (
        bool(parts)
        and not any(text and text.strip() for text in texts)
        and all(_is_bold(one, strong) for one in parts)
    )


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
    parts, are_bold = list[str](), list[bool]()
    for one in _paragraphs(element):
        text, its = _text(one)
        parts.append(text)
        aside += its
        if text_of(one).strip():
            are_bold.append(_is_bold(one, strong))
    text = " ".join(parts)
    text = "" if ERROR.fullmatch(text) else text
    columns = number(element, "number-columns-spanned") or 1
    rows = number(element, "number-rows-spanned") or 1
    times = number(element, "number-columns-repeated") or 1
    is_strong = attribute(element, "style-name") in strong or (bool(are_bold) and all(are_bold))
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
