"""The text of a PDF, page by page, by pypdf."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from qa_service.retrieval.documents import Document, UnreadableError
from qa_service.retrieval.formats.bounded import read_bytes, titled

if TYPE_CHECKING:
    import pypdf


def read_pdf(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads a PDF that has a text; of scanned pages there is none.

    Offsets are those of the text, whose pages have an empty line between them.
    """
    try:
        package = importlib.import_module("pypdf")
    except ModuleNotFoundError:
        raise UnreadableError(
            "PDF needs the package pypdf: pip install 'qa-server[collections]'"
        ) from None
    reader: pypdf.PdfReader = package.PdfReader(io.BytesIO(read_bytes(stream, max_bytes)))
    text = "\n\n".join(_pages(reader, max_bytes))
    if not text.strip():
        raise UnreadableError("no text in it: scanned pages need OCR first")
    title = _encodable(str(getattr(reader.metadata, "title", None) or ""))
    yield titled(name, text, title=title)


def _pages(reader: pypdf.PdfReader, max_chars: int) -> Iterator[str]:
    length = 0
    for page in reader.pages:
        text = _encodable(page.extract_text())
        length += len(text)
        if length > max_chars:
            raise UnreadableError(f"more than {max_chars} characters of text (--max_file_bytes)")
        yield text


def _encodable(text: str) -> str:
    """A text without lone surrogates, which no UTF-8 can hold: question marks in their place."""
    return text.encode("utf-8", "replace").decode("utf-8")
