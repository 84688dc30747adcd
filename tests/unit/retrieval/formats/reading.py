"""Files of each kind, read as `qa-index` reads them."""

import io
from typing import Any

from qa_service.retrieval.documents import Document, Fault
from qa_service.retrieval.files import format_of
from qa_service.retrieval.formats import FORMATS
from tests.support import all_of


def saved(file: Any) -> bytes:
    """What a workbook or a presentation is on disk."""
    data = io.BytesIO()
    file.save(data)
    return data.getvalue()


def read_parts(name: str, data: bytes | str, bound: int = 1 << 24) -> list[Document | Fault]:
    data = data.encode() if isinstance(data, str) else data
    return list(FORMATS[format_of(name)](io.BytesIO(data), name, bound))


def read_all(name: str, data: bytes | str, bound: int = 1 << 24) -> list[Document]:
    """The documents of a file without a fault."""
    return all_of(Document, read_parts(name, data, bound))


def read(name: str, data: bytes | str, bound: int = 1 << 24) -> Document:
    (document,) = read_all(name, data, bound)
    return document
