"""Tables of values between commas, semicolons or tabs: a row is a line of `Column: value`s."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import BinaryIO

from qa_service.retrieval.documents import BlockList, Document, Parsed, UnreadableError
from qa_service.retrieval.formats.bounded import read_text
from qa_service.retrieval.formats.cells import MAX_COLUMNS, Row, indent_of
from qa_service.retrieval.formats.grids import add_grid
from qa_service.retrieval.formats.table_heads import SAMPLE_ROWS, may_be_head
from qa_service.retrieval.layout import lay_out

_SEPARATORS = ",;\t|"
_SAMPLE_LINES = 20
_SAMPLE_CHARS = 1 << 16
_MAX_CELL_CHARS = 1 << 30
"""No bound of its own: the file has one."""
_DECLARED = re.compile(r"sep=([^\w\r\n\"])\r?\n", re.IGNORECASE)
"""What Excel writes and reads before the first line."""
_WORD = re.compile(r"[^\W\d_]{2}")
_QUOTED = re.compile(r'"[^"]*"')


def read_csv(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads a file whose first line of several values names the columns."""
    text = read_text(stream, max_bytes)
    declared = _DECLARED.match(text)
    csv.field_size_limit(_MAX_CELL_CHARS)
    lines = io.StringIO(text[declared.end() :] if declared else text, newline="")
    reader = csv.reader(lines, delimiter=declared[1] if declared else _separator(text))
    rows, line = list[Row](), 1 + bool(declared)
    try:
        for cells in reader:
            texts = [cell.strip() for cell in cells[:MAX_COLUMNS]]
            rows.append(Row(line, texts, indent=indent_of(*cells[:1])))
            line = 1 + bool(declared) + reader.line_num
    except csv.Error as error:
        raise UnreadableError(f"line {reader.line_num}: {error}") from None
    if _has_row_names(rows):
        rows[0].cells.insert(0, "")
    if not _has_head(rows):
        rows.insert(0, Row(0, [" "] * max(len(row.cells) for row in rows), is_head=True))
    out = BlockList()
    add_grid(out, rows, has_head=True)
    yield lay_out(Parsed(out.blocks), name)


def _has_head(rows: list[Row]) -> bool:
    """Whether the first row names the columns: few of its words are in the rows below, too."""
    first, *rest = [row for row in rows if any(row.cells)][:SAMPLE_ROWS] or [Row(0, [])]
    others = [row for row in rest if row.cells != first.cells]
    recurring = [
        cell
        for column, cell in enumerate(first.cells)
        if _WORD.search(cell) and any(row.at(column) == cell for row in others)
    ]
    return len(recurring) + (not may_be_head(rows, 0)) < 2 if recurring else True


def _has_row_names(rows: list[Row]) -> bool:
    """Whether each row has a name before its cells, as R writes it: a cell more than the head."""
    head, *rest = [row.cells for row in rows if any(row.cells)] or [[]]
    is_longer = bool(rest) and all(len(cells) == len(head) + 1 for cells in rest)
    return is_longer and bool(rows[0].cells) and all(cells[0] and cells[-1] for cells in rest)


def _separator(text: str) -> str:
    """The one that most of the first lines have, outside quotes, and then most often.

    Where there is none, a space that parts the quoted names of columns, as R writes them.
    """
    lines = _QUOTED.sub("", text[:_SAMPLE_CHARS]).splitlines()[:_SAMPLE_LINES]
    counts = {one: [line.count(one) for line in lines] for one in _SEPARATORS}
    if not any(map(sum, counts.values())) and any('" "' in line for line in text.splitlines()[:1]):
        return " "
    return max(_SEPARATORS, key=lambda one: (sum(map(bool, counts[one])), sum(counts[one])))
