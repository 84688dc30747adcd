"""What a tagged PDF says of a page's contents: which of them are a paragraph, a heading, a cell.

Programs for offices mark what they write, and say of each mark what it is (ISO 32000-1, 14.6 to
14.8). Some leave out cells without a text.

    https://pdfium.googlesource.com/pdfium/+/refs/heads/main/public/fpdf_structtree.h
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from itertools import chain, islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from qa_service.retrieval.formats.cells import MAX_COLUMNS
from qa_service.retrieval.formats.pdf_calls import plain

if TYPE_CHECKING:
    import pypdfium2

_MAX_ELEMENTS = 50_000
_MAX_DEPTH = 64
_MAX_TABLES = 200
"""On a page."""
_MAX_NAME_BYTES = 64
_ROW_GROUPS = ("THead", "TBody", "TFoot")
_CELLS = ("TH", "TD")
_WITHIN = frozenset(
    {"Annot", "BibEntry", "Code", "Em", "LBody", "Link", "NonStruct", "Note", "Quote"}
    | {"RB", "RP", "RT", "Reference", "Ruby", "Span", "Strong", "Sub", "WP", "WT", "Warichu"}
)
"""Kinds of elements that are parts of a paragraph or an item."""
_HEADING = re.compile("H[1-6]?")

_Pointer = Any
"""PDFium's `FPDF_STRUCTTREE`."""


class Tag(NamedTuple):
    """A paragraph, a heading, an item or another part of a page that is read as one.

    Attributes:
        number: Its place in the order in which the page is read.
        kind: `P`, `H1`, `LI`, an item's mark `Lbl`, and others (14.8.4).
    """

    number: int
    kind: str

    @property
    def is_heading(self) -> bool:
        return _HEADING.fullmatch(self.kind) is not None


class TaggedCell(NamedTuple):
    """A table's cell: the numbers of the tags in it, and over how many columns and rows it goes."""

    tags: range
    columns: int
    rows: int


TaggedTable = list[list[TaggedCell]]


class Tags(NamedTuple):
    """The tags of a page.

    Attributes:
        of_marks: By the number of the marked content.
        tables: What has another one in its cells only arranges it, and is none.
    """

    of_marks: dict[int, Tag]
    tables: list[TaggedTable]


def read_tags(raw: ModuleType, page: pypdfium2.PdfPage) -> Tags:
    """The tags of a page; none if its file has none."""
    tree = raw.FPDF_StructTree_GetForPage(page)
    if not tree:
        return Tags({}, [])
    try:
        root = _Reader(raw).root(tree)
    finally:
        raw.FPDF_StructTree_Close(tree)
    numbers = _Numbering()
    numbers.add(root)
    tables = [
        [
            [TaggedCell(numbers.in_cells[id(cell)], cell.columns, cell.rows) for cell in row]
            for row in rows
        ]
        for rows in islice(_tables(root), _MAX_TABLES)
    ]
    return Tags(numbers.of_marks, tables)


class _Element(NamedTuple):
    """What a page's contents are of.

    Attributes:
        marks: Of its own contents.
        columns, rows: How many of a table's it goes over.
    """

    kind: str
    marks: list[int]
    inner: list[_Element]
    columns: int = 1
    rows: int = 1


class _Numbering:
    """Gives a page's contents their tags."""

    def __init__(self) -> None:
        self.of_marks: dict[int, Tag] = {}
        self.in_cells: dict[int, range] = {}
        """The numbers of the tags in each cell, by the id of its element."""
        self._num_tags = 0

    def add(self, element: _Element, kind: str = "", opened: list[Tag] | None = None) -> None:
        """Adds the contents of an element.

        Args:
            kind: Of the tag that is open, if one is.
            opened: That tag, which is there once it has contents.
        """
        start = self._num_tags
        if opened is None or element.kind not in _WITHIN:
            kind, opened = _kind_of(element), []
        for mark in element.marks:
            if not opened:
                opened.append(Tag(self._num_tags, kind))
                self._num_tags += 1
            self.of_marks[mark] = opened[0]
        for number, one in enumerate(element.inner):
            is_first = element.kind == "LBody" and not number
            is_text = is_first and (one.kind == "P" or _HEADING.fullmatch(one.kind))
            self.add(one._replace(kind="Span") if is_text else one, kind, opened)
        if element.kind in _CELLS:
            self.in_cells[id(element)] = range(start, self._num_tags)


def _kind_of(element: _Element) -> str:
    """An element's kind; of an item whose text is a heading, that one's."""
    bodies = [one for one in element.inner if one.kind == "LBody" and element.kind == "LI"]
    inner = [one.kind for body in bodies for one in body.inner[:1]]
    return next(filter(_HEADING.fullmatch, inner), element.kind)


def _tables(element: _Element) -> Iterator[list[list[_Element]]]:
    rows = list(_rows(element))
    inner = list(chain.from_iterable(map(_tables, chain(*rows) if rows else element.inner)))
    if inner or not rows:
        yield from inner
    else:
        yield rows


def _rows(element: _Element) -> Iterator[list[_Element]]:
    for one in element.inner:
        if one.kind == "TR":
            yield [cell for cell in one.inner if cell.kind in _CELLS]
        elif one.kind in _ROW_GROUPS:
            yield from _rows(one)


class _Reader:
    """Reads the elements of a page."""

    def __init__(self, raw: ModuleType) -> None:
        self._raw = raw
        self._name = ctypes.create_string_buffer(_MAX_NAME_BYTES)
        self._name_bytes = ctypes.c_ulong(_MAX_NAME_BYTES)
        self._get_type = plain(raw, "FPDF_StructElement_GetType")
        self._num_children = plain(raw, "FPDF_StructElement_CountChildren")
        self._get_child = plain(raw, "FPDF_StructElement_GetChildAtIndex", ctypes.c_void_p)
        self._get_mark = plain(raw, "FPDF_StructElement_GetChildMarkedContentID")
        self._num_attributes = plain(raw, "FPDF_StructElement_GetAttributeCount")
        self._room = _MAX_ELEMENTS

    def root(self, tree: _Pointer) -> _Element:
        raw = self._raw
        tops = [
            raw.FPDF_StructTree_GetChildAtIndex(tree, number)
            for number in range(max(0, raw.FPDF_StructTree_CountChildren(tree)))
        ]
        pointers = [ctypes.cast(top, ctypes.c_void_p) for top in tops if top]
        return _Element("", [], [self._element(pointer, _MAX_DEPTH) for pointer in pointers])

    def _element(self, pointer: ctypes.c_void_p, depth: int) -> _Element:
        self._room -= 1
        marks, inner, columns, rows = list[int](), list[_Element](), 1, 1
        kind = self._kind(pointer)
        for number in range(self._num_children(pointer) if depth else 0):
            if child := self._get_child(pointer, number):
                if self._room > 0:
                    inner.append(self._element(ctypes.c_void_p(child), depth - 1))
            elif (mark := self._get_mark(pointer, number)) >= 0:
                marks.append(mark)
        if kind in _CELLS and self._num_attributes(pointer) > 0:
            columns, rows = self._span(pointer, b"ColSpan"), self._span(pointer, b"RowSpan")
        return _Element(kind, marks, inner, columns, rows)

    def _kind(self, pointer: ctypes.c_void_p) -> str:
        """An element's kind; "" if it has none, or a longer name than any has."""
        length = self._get_type(pointer, self._name, self._name_bytes)
        if not 0 < length <= _MAX_NAME_BYTES:
            return ""
        return self._name.raw[: length - 2].decode("utf-16-le", "replace")

    def _span(self, pointer: ctypes.c_void_p, name: bytes) -> int:
        raw, number = self._raw, ctypes.c_float()
        element = ctypes.cast(pointer, raw.FPDF_STRUCTELEMENT)
        for index in range(self._num_attributes(pointer)):
            attribute = raw.FPDF_StructElement_GetAttributeAtIndex(element, index)
            value = raw.FPDF_StructElement_Attr_GetValue(attribute, name)
            if value and raw.FPDF_StructElement_Attr_GetNumberValue(value, number):
                return max(1, min(MAX_COLUMNS, int(number.value)))
        return 1
