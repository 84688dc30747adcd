"""Word's documents, by python-docx: headings, paragraphs, lists and tables."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from qa_service.retrieval.blocks import BlockList, Parsed
from qa_service.retrieval.documents import Document, UnreadableError
from qa_service.retrieval.formats.bounded import PACKAGE_ERRORS, library, read_package
from qa_service.retrieval.layout import lay_out

if TYPE_CHECKING:
    from docx.document import Document as WordDocument
    from docx.text.paragraph import Paragraph

_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
_LIST = re.compile(r"list (?P<kind>bullet|number|paragraph)?(?: (?P<depth>\d))?", re.IGNORECASE)


def read_docx(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads a document's body.

    Raises:
        UnreadableError: It is longer than the bound, also unpacked, or not in this format.
    """
    data = read_package(stream, max_bytes)
    package = library("docx", "python-docx", ".docx")
    try:
        document: WordDocument = package.Document(io.BytesIO(data))
    except PACKAGE_ERRORS as error:
        raise UnreadableError(f"not a Word document: {error}") from None
    out = BlockList()
    _Body(out).read(document)
    yield lay_out(Parsed(out.blocks, document.core_properties.title or ""), name)


class _Body:
    def __init__(self, out: BlockList) -> None:
        self._out = out
        self._number = 0

    def read(self, document: WordDocument) -> None:
        from docx.table import Table  # noqa: PLC0415, an extra's package

        for item in document.iter_inner_content():
            if isinstance(item, Table):
                self._out.unnest()
                rows = [[cell.text for cell in row.cells] for row in item.rows]
                if len(rows) > 1:
                    self._out.table(rows[0], [(0, row) for row in rows[1:]])
                else:
                    self._out.table([], [(0, row) for row in rows])
            else:
                self._paragraph(item)
        self._out.unnest()

    def _paragraph(self, paragraph: Paragraph) -> None:
        if not paragraph.text.strip():
            return
        style = (paragraph.style.name or "") if paragraph.style is not None else ""
        depth = _list_depth(paragraph, style)
        self._out.unnest(depth)
        if found := _HEADING.fullmatch(style):
            self._out.heading(int(found[1]), paragraph.text)
        elif style.lower() == "title":
            self._out.heading(1, paragraph.text)
        elif depth:
            if self._out.nest(depth):
                self._number = 0
            self._number += 1
            self._out.begin_item(f"{self._number}." if "number" in style.lower() else "-")
            self._out.paragraph(paragraph.text)
            self._out.end_item()
        else:
            self._out.paragraph(paragraph.text)


def _list_depth(paragraph: Paragraph, style: str) -> int:
    """How many lists a paragraph is in: by its style, or by its numbering."""
    level = paragraph._p.xpath("./w:pPr/w:numPr/w:ilvl/@w:val")
    if level or paragraph._p.xpath("./w:pPr/w:numPr"):
        return 1 + int(level[0] if level else 0)
    found = _LIST.match(style)
    return int(found["depth"] or 1) if found and found["kind"] != "paragraph" else 0
