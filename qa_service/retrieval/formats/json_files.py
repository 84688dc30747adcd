"""Files of JSON: lines with a document each, SQuAD's paragraphs, Jupyter's notebooks."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from qa_service.retrieval.documents import (
    BlockList,
    Document,
    Fault,
    Parsed,
    UnreadableError,
    shortened,
)
from qa_service.retrieval.formats import parse
from qa_service.retrieval.formats.bounded import read_bytes, read_text
from qa_service.retrieval.formats.front_matter import fields_of
from qa_service.retrieval.layout import lay_out, title_of

_CHUNK_BYTES = 1 << 16  # of a line over the bound are held at a time
_MAX_FAULTS = 1000
"""Bad lines that are left out of any file; more only if they are at most half of its lines."""


class _Line(msgspec.Struct, frozen=True):
    text: str
    title: str = ""
    id: str | int | None = None


_decoder = msgspec.json.Decoder(_Line)
_fields_decoder = msgspec.json.Decoder(dict[str, Any])


def read_json_lines(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document | Fault]:
    """Reads a document a line; one without an id has its line's number."""
    faults = 0
    for number, line in enumerate(_lines(stream, max_bytes), 1):
        if line is not None and line.isspace():
            continue
        found = _document(name, number, line, max_bytes)
        faults += isinstance(found, Fault)
        if faults > _MAX_FAULTS and 2 * faults > number:
            raise UnreadableError(f"most of {number} lines cannot be read: the rest is left out")
        yield found


def _document(name: str, number: int, line: bytes | None, max_bytes: int) -> Document | Fault:
    if line is None:
        return Fault(f"{name}, line {number}", f"longer than {max_bytes} bytes (--max_file_bytes)")
    try:
        row = _decoder.decode(line)
        others = _fields_decoder.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Fault(f"{name}, line {number}", str(error))
    known_as = shortened(str(number if row.id is None else row.id))
    title = shortened(row.title) or title_of(name)
    fields = fields_of(others, leave_out=_Line.__struct_fields__)
    return Document(f"{name}#{known_as}", title, row.text, fields=fields)


def _lines(stream: BinaryIO, max_bytes: int) -> Iterator[bytes | None]:
    """Each line; None for one over the bound, of which only a piece at a time is held."""
    is_first = True
    while line := stream.readline(max_bytes + 1):
        if is_first:
            line, is_first = line.removeprefix(codecs.BOM_UTF8), False
        if len(line) <= max_bytes or line.endswith(b"\n"):
            yield line
            continue
        while (rest := stream.readline(_CHUNK_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield None


class _Paragraph(msgspec.Struct, frozen=True):
    context: str


class _Article(msgspec.Struct, frozen=True):
    paragraphs: list[_Paragraph]
    title: str = ""


class _Squad(msgspec.Struct, frozen=True):
    data: msgspec.Raw = msgspec.Raw()


def read_squad(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads the paragraphs; each is known by its number in the file, from 1.

    Other JSON, which has no `data`, holds no document.
    """
    try:
        articles = _articles(read_bytes(stream, max_bytes).removeprefix(codecs.BOM_UTF8))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableError(f"not in SQuAD's format: {error}") from None
    number = 0
    for article in articles:
        title = shortened(article.title.replace("_", " ")) or title_of(name)
        for paragraph in article.paragraphs:
            number += 1
            yield Document(f"{name}#{number}", title, paragraph.context)


def _articles(file: bytes) -> list[_Article]:
    try:
        data = msgspec.json.decode(file, type=_Squad).data
    except msgspec.ValidationError:  # JSON, but no object
        return []
    return msgspec.json.decode(data, type=list[_Article]) if bytes(data) else []


class _Cell(msgspec.Struct, frozen=True):
    cell_type: str = ""
    source: str | list[str] = ""


class _Notebook(msgspec.Struct, frozen=True):
    cells: list[_Cell] = []


def read_notebook(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads a notebook of format 4."""
    try:
        text = read_text(stream, max_bytes)
        cells = msgspec.json.decode(text, type=_Notebook).cells
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableError(f"not a notebook: {error}") from None
    out = BlockList()
    title = ""
    for cell in cells:
        source = cell.source if isinstance(cell.source, str) else "".join(cell.source)
        if cell.cell_type == "markdown":
            parsed = parse(source, "markdown")
            title = title or parsed.title
            out.blocks += (block._replace(line=0) for block in parsed.blocks)
        elif cell.cell_type in {"code", "raw"}:
            out.code(source)
    yield lay_out(Parsed(out.blocks, title), name)
