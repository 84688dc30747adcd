"""Rows of tables as the index writes them, `Column: value; Column: value`, read back into cells."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from qa_service.evaluation.unanswerable import words_of
from qa_service.retrieval.blocks import Kind
from qa_service.retrieval.documents import Document

_PART = re.compile(r"(?:(?P<name>[^:;]{1,80}): )?(?P<value>\S.*)")


class Cell(NamedTuple):
    """A cell of a row: `row[start:end]` is its value."""

    name: str
    value: str
    start: int
    end: int


def cells(row: str) -> list[Cell]:
    """The cells of a row; a value that has `; ` within it is taken for several."""
    found = list[Cell]()
    place = 0
    for part in row.split("; "):
        if match := _PART.fullmatch(part):
            start, end = (place + at for at in match.span("value"))
            found.append(Cell(match["name"] or "", match["value"], start, end))
        place += len(part) + 2
    return found


def tables(document: Document) -> Iterator[list[str]]:
    rows = list[str]()
    for block in document.blocks:
        if rows and (block.kind is not Kind.ROW or block.is_first):
            yield rows
            rows = []
        if block.kind is Kind.ROW:
            rows.append(document.text[block.start : block.end])
    if rows:
        yield rows


def row_with(answers: Sequence[str], asked: str, rows: Iterable[str]) -> str:
    """The row whose rare words are most like a question's, of those that have an answer; or ""."""
    all_rows = list(rows)
    counts = Counter(word for row in all_rows for word in words_of(row))
    wanted = {
        word: math.log(1 + len(all_rows) / counts[word])
        for word in words_of(asked)
        if word in counts
    }
    for answer in answers:
        with_it = [row for row in all_rows if place_in(row, answer, asked)]
        if with_it:
            return max(with_it, key=lambda row: sum(wanted.get(word, 0) for word in words_of(row)))
    return ""


def place_in(row: str, answer: str, asked: str) -> tuple[int, int] | None:
    """Where an answer stands in a row: best as a whole cell, below a name that the question has."""
    words = set(words_of(asked))
    whole = [cell for cell in cells(row) if cell.value.casefold() == answer.casefold()]
    if whole:
        best = max(whole, key=lambda cell: len(words.intersection(words_of(cell.name))))
        return best.start, best.end
    found = re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", row)
    return found.span() if found else None
