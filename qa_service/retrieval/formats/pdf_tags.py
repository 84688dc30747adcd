"""What a tagged PDF says of a page's contents: which of them are in which cell of which table.

Programs for offices mark what they write, and say of each mark what it is (ISO 32000-1, 14.6 to
14.8). Some leave out cells without a text.

    https://pdfium.googlesource.com/pdfium/+/refs/heads/main/public/fpdf_structtree.h
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from qa_service.retrieval.formats.pdf_calls import plain

if TYPE_CHECKING:
    import pypdfium2

_MAX_ELEMENTS = 50_000
_MAX_DEPTH = 64
_MAX_SPAN = 1000
_MAX_NAME_BYTES = 64
_ROW_GROUPS = ("THead", "TBody", "TFoot")
_CELLS = ("TH", "TD")

_Pointer = Any
"""PDFium's `FPDF_STRUCTELEMENT`, as a number."""


class Element(NamedTuple):
    """A part of a page, such as a paragraph or a table's cell.

    Attributes:
        kind: `P`, `Table`, `TR` and others (14.8.4).
        marks: Of its own contents.
        columns, rows: How many of a table's it goes over.
    """

    kind: str
    marks: list[int]
    inner: list[Element]
    columns: int = 1
    rows: int = 1

    def all_marks(self) -> Iterator[int]:
        yield from self.marks
        for one in self.inner:
            yield from one.all_marks()


TaggedTable = list[list[Element]]
"""Rows of cells."""


def read_tags(raw: ModuleType, page: pypdfium2.PdfPage) -> list[TaggedTable]:
    """The tables on a page; what has others in its cells only arranges them, and is none."""
    tree = raw.FPDF_StructTree_GetForPage(page)
    if not tree:
        return []
    try:
        return list(_tables(_Reader(raw).root(tree)))
    finally:
        raw.FPDF_StructTree_Close(tree)


def _tables(element: Element) -> Iterator[TaggedTable]:
    rows = list(_rows(element))
    parts = chain.from_iterable(rows) if rows else element.inner
    inner = list(chain.from_iterable(map(_tables, parts)))
    if inner or not rows:
        yield from inner
    else:
        yield rows


def _rows(element: Element) -> Iterator[list[Element]]:
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
        self._get_type = plain(raw, "FPDF_StructElement_GetType")
        self._num_children = plain(raw, "FPDF_StructElement_CountChildren")
        self._get_child = plain(raw, "FPDF_StructElement_GetChildAtIndex", ctypes.c_void_p)
        self._get_mark = plain(raw, "FPDF_StructElement_GetChildMarkedContentID")
        self._room = _MAX_ELEMENTS

    def root(self, tree: _Pointer) -> Element:
        raw = self._raw
        tops = [
            raw.FPDF_StructTree_GetChildAtIndex(tree, number)
            for number in range(max(0, raw.FPDF_StructTree_CountChildren(tree)))
        ]
        its = [ctypes.cast(top, ctypes.c_void_p).value for top in tops if top]
        return Element("", [], [self._element(ctypes.c_void_p(one), _MAX_DEPTH) for one in its])

    def _element(self, pointer: ctypes.c_void_p, depth: int) -> Element:
        self._room -= 1
        marks, inner, columns, rows = list[int](), list[Element](), 1, 1
        kind = self._kind(pointer)
        for number in range(self._num_children(pointer) if depth else 0):
            child = self._get_child(pointer, number)
            if child and self._room > 0:
                inner.append(self._element(ctypes.c_void_p(child), depth - 1))
            elif not child and (mark := self._get_mark(pointer, number)) >= 0:
                marks.append(mark)
        if kind in _CELLS:
            columns, rows = self._span(pointer, b"ColSpan"), self._span(pointer, b"RowSpan")
        return Element(kind, marks, inner, columns, rows)

    def _kind(self, pointer: ctypes.c_void_p) -> str:
        """An element's kind; "" if it has none, or a longer name than any has."""
        length = self._get_type(pointer, self._name, ctypes.c_ulong(_MAX_NAME_BYTES))
        if not 0 < length <= _MAX_NAME_BYTES:
            return ""
        return self._name.raw[: length - 2].decode("utf-16-le", "replace")

    def _span(self, pointer: ctypes.c_void_p, name: bytes) -> int:
        raw, number = self._raw, ctypes.c_float()
        element = ctypes.cast(pointer, raw.FPDF_STRUCTELEMENT)
        for index in range(max(0, raw.FPDF_StructElement_GetAttributeCount(element))):
            attribute = raw.FPDF_StructElement_GetAttributeAtIndex(element, index)
            value = raw.FPDF_StructElement_Attr_GetValue(attribute, name)
            if value and raw.FPDF_StructElement_Attr_GetNumberValue(value, number):
                return max(1, min(_MAX_SPAN, int(number.value)))
        return 1
