"""Excel's workbooks, by openpyxl: of each sheet its tables, a row a line of `Column: value`s."""

from __future__ import annotations

import datetime
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, BinaryIO

from qa_service.retrieval.blocks import BlockList, Parsed
from qa_service.retrieval.documents import Document, UnreadableError
from qa_service.retrieval.formats.bounded import PACKAGE_ERRORS, library, read_package
from qa_service.retrieval.layout import lay_out

if TYPE_CHECKING:
    from openpyxl.cell.cell import Cell
    from openpyxl.worksheet.worksheet import Worksheet

_MAX_COLUMNS = 500
"""Columns that are read; cells to the right are left out."""

_Row = tuple[int, list[str]]
"""A row's number in its sheet, and its cells."""


def read_xlsx(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads the sheets that are shown; of a formula, the value that was saved with it.

    Raises:
        UnreadableError: It is longer than the bound, also unpacked, or not in this format.
    """
    data = read_package(stream, max_bytes)
    package = library("openpyxl", "openpyxl", ".xlsx")
    try:
        book = package.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    except PACKAGE_ERRORS as error:
        raise UnreadableError(f"not a workbook: {error}") from None
    out = BlockList()
    with closing(book):
        for sheet in book.worksheets:
            if sheet.sheet_state == "visible":
                out.heading(1, sheet.title)
                for rows in _groups(_rows(sheet)):
                    _add(rows, out)
        title = book.properties.title or ""
    yield lay_out(Parsed(out.blocks, title), name)


def _rows(sheet: Worksheet) -> Iterator[_Row]:
    sheet.reset_dimensions()  # what the file says of its size need not be true
    for number, cells in enumerate(sheet.iter_rows(), 1):
        yield number, [_shown(cell) for cell in cells[:_MAX_COLUMNS]]


def _groups(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Rows that stand together: an empty one ends a table."""
    for has_words, group in itertools.groupby(rows, key=lambda row: any(row[1])):
        if has_words:
            yield list(group)


def _add(rows: Sequence[_Row], out: BlockList) -> None:
    """Adds a table below its title: rows of one cell before it."""
    table = list(itertools.dropwhile(lambda row: sum(map(bool, row[1])) == 1, rows))
    for number, cells in rows[: len(rows) - len(table)]:
        out.paragraph("".join(cells), number)
    has_head = len(table) > 1 and all(
        cell or not any(row[place : place + 1] for _, row in table)
        for place, cell in enumerate(table[0][1])
    )
    out.table(table[0][1] if has_head else [], table[int(has_head) :])


def _shown(cell: Cell) -> str:
    """A cell's value, about as it is shown."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, datetime.datetime):
        is_day = value.time() == datetime.time()
        return value.date().isoformat() if is_day else value.isoformat(" ", "minutes")
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        share = "%" in (cell.number_format or "")
        return f"{value * 100:.10g}%" if share else f"{value:.15g}"
    return str(value).strip()
