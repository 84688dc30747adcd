"""Jupyter's notebooks: their Markdown and code, without what the code printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from qa_service.retrieval.blocks import BlockList, Parsed
from qa_service.retrieval.documents import Document, UnreadableError
from qa_service.retrieval.formats.bounded import read_text
from qa_service.retrieval.formats.markups import parse
from qa_service.retrieval.layout import lay_out


class _Cell(msgspec.Struct, frozen=True):
    cell_type: str = ""
    source: str | list[str] = ""


class _Notebook(msgspec.Struct, frozen=True):
    cells: list[_Cell] = []


_decoder = msgspec.json.Decoder(_Notebook)


def read_notebook(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads a notebook of format 4."""
    try:
        cells = _decoder.decode(read_text(stream, max_bytes).encode()).cells
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
