"""What directives and lists of reStructuredText need of the reader that they are in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from qa_service.retrieval.blocks import BlockList
from qa_service.retrieval.formats.rst_lines import Lines
from qa_service.retrieval.formats.rst_tables import RawTable


class Reader(Protocol):
    """What reads the content of a directive or a list, and adds its blocks.

    Attributes:
        title: Of the document; empty if none has been found.
        level: Of the heading above.
    """

    out: BlockList
    title: str
    level: int

    def shown(self, text: str) -> str:
        """What inline markup shows."""

    def read(self, part: Lines, depth: int) -> None:
        """Adds the blocks of some lines."""

    def add_table(self, table: RawTable, numbers: Sequence[int], depth: int) -> None:
        """Adds a table whose cells are markup."""

    def add_rows(self, rows: list[tuple[int, list[Lines]]], depth: int, num_header: int) -> None:
        """Adds a table of cells of several lines."""
