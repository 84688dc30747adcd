"""The text of a PDF, page by page, by PDFium: as good as pypdf's in a tenth of the time.

A PDF has lines, not paragraphs: lines that are nearly as wide as the page's widest go on in the
next one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from qa_service.retrieval.blocks import BlockList, Parsed
from qa_service.retrieval.documents import Document, Fault, UnreadableError
from qa_service.retrieval.formats.bounded import library, read_bytes
from qa_service.retrieval.layout import lay_out

if TYPE_CHECKING:
    import pypdfium2

_HYPHEN = "\ufffe"
"""What PDFium writes for a hyphen at a line's end, which it joins with the next line."""
_HYPHENATED = re.compile(rf"(\w+)(?:{_HYPHEN}\n?|[-\u2010]\n)(?=(\w+))")
_WORD = re.compile(r"\w+(?:[-\u2010]\w+)*")
_BULLET = re.compile(r"(?P<mark>[•‣▪●◦–]|\d{1,3}[.)])[ \t]+(?=\S)")  # noqa: RUF001, an en dash
_FULL_SHARE = 0.8
"""A line of so much of the widest one's characters goes on in the next."""


def read_pdf(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document | Fault]:
    """Reads a PDF that has a text; of scanned pages there is none.

    Raises:
        UnreadableError: It is longer than the bound, no PDF, wants a password, or has no text.
    """
    package = library("pypdfium2", "pypdfium2", "PDF")
    try:
        pdf: pypdfium2.PdfDocument = package.PdfDocument(read_bytes(stream, max_bytes))
    except package.PdfiumError as error:
        raise UnreadableError(f"not a PDF that can be opened: {error}") from None
    pages, scanned = list[str](), list[int]()
    length = 0
    for number, page in enumerate(pdf, 1):
        text = _encodable(page.get_textpage().get_text_range()).replace("\r\n", "\n")
        length += len(text)
        if length > max_bytes:
            raise UnreadableError(f"more than {max_bytes} characters of text (--max_file_bytes)")
        if not text.strip() and any(page.get_objects(filter=[package.raw.FPDF_PAGEOBJ_IMAGE])):
            scanned.append(number)
        pages.append(text)
    if not any(page.strip() for page in pages):
        raise UnreadableError("no text in it: scanned pages need OCR first")
    for number in scanned:
        yield Fault(f"{name}, page {number}", "no text on it: scanned pages need OCR first")
    title = _encodable(pdf.get_metadata_value("Title")).strip()
    yield lay_out(Parsed(_blocks(pages).blocks, title), name)


def _encodable(text: str) -> str:
    """A text without lone surrogates, which no UTF-8 can hold: question marks in their place."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _blocks(pages: list[str]) -> BlockList:
    words = Counter(word.lower() for page in pages for word in _WORD.findall(page))

    def joined(found: re.Match[str]) -> str:
        """A word that a line's end cuts: with its hyphen where it has one elsewhere."""
        before, after = found[1], found[2]
        whole, hyphened = f"{before}{after}".lower(), f"{before}-{after}".lower()
        is_hyphened = words[hyphened] > words[whole] or not after[0].islower()
        return f"{before}-" if is_hyphened else before

    out = BlockList()
    for page in pages:
        _add_page(out, _HYPHENATED.sub(joined, page))
    return out


def _add_page(out: BlockList, page: str) -> None:
    lines = [line.strip() for line in page.split("\n")]
    full = _FULL_SHARE * max(map(len, lines))
    paragraph = list[str]()
    in_list = False
    for line in [*lines, ""]:
        bullet = _BULLET.match(line)
        ends = not line or bullet or (paragraph and len(paragraph[-1]) < full)
        if ends and paragraph:
            out.paragraph(" ".join(paragraph))
            paragraph = []
            if in_list:
                out.end_item()
        if bool(bullet) != in_list and (bullet or ends):
            (out.begin_list if bullet else out.end_list)()
            in_list = bool(bullet)
        if bullet:
            mark = bullet["mark"]
            out.begin_item(f"{mark[:-1]}." if mark[0].isdigit() else "-")
        if line:
            paragraph.append(line[bullet.end() :] if bullet else line)
    if in_list:
        out.end_list()
