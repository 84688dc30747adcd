"""Tables of values between commas, semicolons or tabs: a row is a line of `Column: value`s."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import BinaryIO

from qa_service.retrieval.blocks import BlockList, Parsed
from qa_service.retrieval.documents import Document, UnreadableError
from qa_service.retrieval.formats.bounded import read_text
from qa_service.retrieval.layout import lay_out

_SEPARATORS = ",;\t|"


def read_csv(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads a file whose first line names the columns.

    Raises:
        UnreadableError: It is longer than the bound, no text, or no table.
    """
    text = read_text(stream, max_bytes)
    separator = _separator(text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    out = BlockList()
    try:
        head = next(reader, [])
        line = reader.line_num + 1
        rows = list[tuple[int, list[str]]]()
        for row in reader:
            rows.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UnreadableError(f"line {reader.line_num}: {error}") from None
    out.table(head, rows)
    yield lay_out(Parsed(out.blocks), name)


def _separator(text: str) -> str:
    """The one that the first line has most often; Excel writes `sep=;` before it."""
    first = text.split("\n", 1)[0]
    return max(_SEPARATORS, key=first.count)
