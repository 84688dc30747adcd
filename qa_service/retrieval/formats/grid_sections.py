"""Which sections of a table are open at a row: labels alone in their rows, above those they name.

A section whose rows are indented below it ends with a row that is not ("Insurance" after "Total for
Utilities"), and sections in it go with its name: "Expense, Utilities".
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import inf
from typing import NamedTuple

from qa_service.retrieval.formats.cells import Row
from qa_service.retrieval.formats.table_heads import MAX_LABEL_CHARS

SAME_INDENT = 2.0
"""In points; labels that begin no further apart are at one level."""
_FIRST_ROWS = 2
"""Of a section, which are all indented if it has an end; one alone may be by typed spaces."""


class _Section(NamedTuple):
    caption: str
    at: int
    indent: float


class Sections:
    """The open sections of a table, the innermost last.

    Args:
        caption: Of the rows above the first section.
        at: Its line.
        column: Of the rows' labels.
    """

    def __init__(self, caption: str, at: int, column: int) -> None:
        self._above = caption, at
        self._open: list[_Section] = []
        self._column = column

    @property
    def caption(self) -> tuple[str, int]:
        """The caption of the rows that come next, and its line."""
        return self._open[-1][:2] if self._open else self._above

    def begin(self, row: Row, below: Iterable[Row]) -> None:
        """Opens a section.

        Args:
            row: Its name.
            below: The rows below the name, without those that name sections.
        """
        text, self._above = row.cells[row.columns()[0]], ("", 0)
        if not self._is_indented(row, below):
            self._open = [_Section(text, row.line, inf)]
            return
        self._open = [one for one in self._open if one.indent < row.indent - SAME_INDENT]
        outer = self.caption[0][:MAX_LABEL_CHARS].rstrip(": ") if self._open else ""
        caption = f"{outer}, {text}" if outer else text
        self._open.append(_Section(caption, row.line, row.indent))

    def _is_indented(self, row: Row, below: Iterable[Row]) -> bool:
        is_label = row.columns()[0] == self._column and not row.from_left
        labelled = (one for one in below if one.at(self._column))
        first = list(islice(labelled, _FIRST_ROWS if is_label else 0))
        return bool(first) and all(one.indent > row.indent + SAME_INDENT for one in first)

    def end(self, row: Row) -> bool:
        """Whether a row is below the end of sections, which are open no more."""
        if not row.at(self._column) or not self._open or self._open[-1].indent == inf:
            return False
        kept = [one for one in self._open if one.indent < row.indent - SAME_INDENT]
        is_end = len(kept) < len(self._open)
        self._open = kept
        return is_end
