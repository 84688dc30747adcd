"""How each kind of file becomes documents.

A reader is a function of a stream, the file's name and a bound in bytes. It yields documents, and
faults for parts that it leaves out; it raises `UnreadableError` if the rest cannot be read. Readers
of markup (`markups`) make blocks of a text, which `layout` writes as a person reads them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec

from qa_service.retrieval.documents import Document, Fault
from qa_service.retrieval.formats.bounded import read_text
from qa_service.retrieval.formats.front_matter import front_fields
from qa_service.retrieval.formats.markups import ENDINGS, parse
from qa_service.retrieval.layout import lay_out

FileReader = Callable[[BinaryIO, str, int], Iterator[Document | Fault]]


def read_markup(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    text = read_text(stream, max_bytes)
    document = lay_out(parse(text, name), name)
    yield msgspec.structs.replace(document, fields=front_fields(text))


def _reader(name: str) -> FileReader:
    """The reader of a module, imported with the first file of its kind: each takes memory."""

    def read(stream: BinaryIO, file_name: str, max_bytes: int) -> Iterator[Document | Fault]:
        module = importlib.import_module(f"{__name__}.{name}")
        reader: FileReader = getattr(module, f"read_{name}")
        return reader(stream, file_name, max_bytes)

    return read


FORMATS: dict[str, FileReader] = dict.fromkeys(ENDINGS, read_markup) | {
    ".csv": _reader("csv"),
    ".tsv": _reader("csv"),
    ".docm": _reader("docx"),
    ".docx": _reader("docx"),
    ".eml": _reader("eml"),
    ".epub": _reader("epub"),
    ".ipynb": _reader("notebook"),
    ".odp": _reader("odf"),
    ".ods": _reader("odf"),
    ".odt": _reader("odf"),
    ".pdf": _reader("pdf"),
    ".pptm": _reader("pptx"),
    ".pptx": _reader("pptx"),
    ".xlsm": _reader("xlsx"),
    ".xlsx": _reader("xlsx"),
    ".jsonl": _reader("json_lines"),
    ".json": _reader("squad"),
}
"""Each reader by the end of a file's name; of some kinds `files.format_of` takes longer ones."""
