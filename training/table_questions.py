"""Asks questions of the tables of documents, by row and column, as people word them.

    python -m training.table_questions DATA/docs_train --work work/ --count 4000 --output made.jsonl

A row is named by its label, or by two of its cells if several rows have that label; the column by
its name, a part of it, or words that people use for it. A part of the questions nothing answers:
the row or the column is of another table, a number or a name is exchanged, or the cell is empty.
The lines that are written are those of a question file, for `training.documents`.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from qa_service.child_program import turn_off_telemetry
from qa_service.command_line import make_parser
from qa_service.evaluation.measures import words_of
from qa_service.retrieval.documents import Document, Kind
from training.trees import Tree, open_tree

_PART = re.compile(r"(?:(?P<name>[^:;]{1,80}): )?(?P<value>\S.*)")
_LOG = logging.getLogger(__name__)
_MAX_LABEL_CHARS, _MAX_NAME_CHARS, _MAX_VALUE_CHARS = 60, 45, 90
_TABLES_A_DOCUMENT = 12
_QUESTIONS_A_TABLE = 8
_NONE_SHARE = 0.25

_WORDINGS = json.loads((Path(__file__).parent / "wordings" / "tables.json").read_bytes())
"""Wordings: `{x}` is the row, `{c}` the column, `{v}` the value, `{l}` the column of rows' names.

`by_name` has those for columns whose name matches, the first kind that does; `other_words` what
people say in place of a word of a column's name.
"""
_NUMBER = re.compile(r"[-+~<>]?[$€£]?\d[\d,. ]*(?:%|\w{0,3})")
_DIGITS = re.compile(r"\d+")
_STOP = frozenset(
    ("a", "an", "and", "as", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to")
)
_EMPTY = frozenset(("-", "n/a", "na", "none", "no", "yes", "x", "true", "false", "tbd", "?"))


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


class Asked(NamedTuple):
    """A question and the row and cell that answer it; neither, if nothing does."""

    question: str
    answer: str = ""
    row: str = ""


class Row(NamedTuple):
    """A row as the index writes it, and its cells by their columns' names."""

    text: str
    cells: dict[str, Cell]


class Table:
    """The rows of a table, and the column that names them."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = [row for text in rows if (row := _row(text))]
        counts = Counter(name for row in self.rows for name in row.cells)
        self.names = [name for name, n in counts.items() if 2 * n > len(self.rows)]
        self.rows = [row for row in self.rows if set(row.cells) <= set(self.names)]
        self.label = next((name for name in self.names if self._names_rows(name)), "")

    def _names_rows(self, name: str) -> bool:
        values = [row.cells[name].value for row in self.rows if name in row.cells]
        worded = sum(
            bool(re.search(r"[^\W\d_]{2}", its)) and len(its) <= _MAX_LABEL_CHARS for its in values
        )
        return 10 * worded > 8 * len(self.rows) and 10 * len(set(values)) > 4 * len(values)

    @property
    def is_askable(self) -> bool:
        return bool(self.label) and len(self.names) > 1 and len(self.rows) > 1


def _row(text: str) -> Row | None:
    found = cells(text)
    by_name = {cell.name: cell for cell in found}
    return Row(text, by_name) if len(by_name) == len(found) and all(by_name) and found else None


class Asker:
    """Asks questions of tables; knows other tables' labels and names, for what is not there."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._labels: list[str] = []
        self._names: list[str] = []

    def ask(self, table: Table) -> Iterator[Asked]:
        self._labels += [
            row.cells[table.label].value for row in table.rows[:20] if table.label in row.cells
        ]
        self._names += table.names
        words = {word for row in table.rows for word in words_of(row.text)}
        while True:
            row = self._rng.choice(table.rows)
            if table.label not in row.cells:
                yield Asked("")
            elif self._rng.random() < _NONE_SHARE:
                yield Asked(self._not_there(table, row, words))
            else:
                yield self._of(table, row)

    def _of(self, table: Table, row: Row) -> Asked:
        others = [name for name in table.names if name != table.label and name in row.cells]
        if not others:
            return Asked("")
        name = self._rng.choice(others)
        cell, label = row.cells[name], row.cells[table.label]
        if len(cell.value) > _MAX_VALUE_CHARS or len(label.value) > _MAX_LABEL_CHARS:
            return Asked("")
        alike = [its for its in table.rows if _value(its, table.label) == label.value]
        if self._rng.random() < 0.12 and _is_distinct(table, name, cell.value):
            wording = self._rng.choice(_WORDINGS["of_label"])
            words = wording.format(l=self._named(table.label), c=self._named(name), v=cell.value)
            return Asked(as_typed(words, self._rng), label.value, row.text)
        if len({_value(its, name) for its in alike}) > 1:
            second = self._telling(table, row, alike, name)
            return (
                Asked(
                    self._worded(name, cell.value, f"{label.value}{second}"), cell.value, row.text
                )
                if second
                else Asked("")
            )
        return Asked(self._worded(name, cell.value, self._label(label.value)), cell.value, row.text)

    def _telling(self, table: Table, row: Row, alike: Sequence[Row], name: str) -> str:
        """Another cell that tells a row from those with the same label."""
        for other in table.names:
            value = _value(row, other)
            if other in (table.label, name) or not value or len(value) > 30:
                continue
            if sum(_value(its, other) == value for its in alike) == 1:
                return self._rng.choice(
                    (f" in {value}", f", {value}", f" ({value})", f" {value}", f" for {value}")
                )
        return ""

    def _not_there(self, table: Table, row: Row, words: set[str]) -> str:
        """A question of which the row, the column or a name is not in the table."""
        name = self._rng.choice([its for its in table.names if its != table.label])
        label = row.cells[table.label].value
        draw = self._rng.random()
        empty = [its for its in table.names if its not in row.cells]
        if empty and draw < 0.5:
            return self._worded(self._rng.choice(empty), "", label)
        if draw < 0.7:
            exchanged = self._exchanged(label, words)
            return self._worded(name, "", exchanged) if exchanged else ""
        other = self._rng.choice(self._names)
        its = set(words_of(self._plain(other))) - _STOP
        if not its or its & words or len(label) > _MAX_LABEL_CHARS:
            return ""
        return self._worded(other, "", label)

    def _exchanged(self, label: str, words: set[str]) -> str:
        """A label with a number exchanged, or a label of another table, that is not in this one."""
        numbers = _DIGITS.findall(label)
        if numbers and self._rng.random() < 0.6:
            number = self._rng.choice(numbers)
            other = str(max(0, int(number[:9]) + self._rng.choice((-3, -2, -1, 1, 2, 3, 10))))
            return label.replace(number, other) if other not in words and other != number else ""
        other = self._rng.choice(self._labels)
        rare = set(words_of(other)) - _STOP
        return other if rare and not rare & words and len(other) <= _MAX_LABEL_CHARS else ""

    def _worded(self, name: str, value: str, label: str) -> str:
        draw = self._rng.random()
        known = next(
            (its for pattern, its in _WORDINGS["by_name"] if re.search(pattern, name.lower())), ()
        )
        if known and draw < 0.6:
            wording = self._rng.choice(known)
        elif _NUMBER.fullmatch(value) and draw < 0.85:
            wording = self._rng.choice(_WORDINGS["of_numbers"])
        else:
            wording = self._rng.choice(_WORDINGS["of_any"])
        return as_typed(wording.format(x=label, c=self._named(name)), self._rng)

    def _plain(self, name: str) -> str:
        spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name)
        return re.sub(r"\s*[(\[].*?[)\]]|\*", "", spaced).strip() or name

    def _named(self, name: str) -> str:
        """A column's name as people say it: without its unit, in part, or in other words."""
        plain = self._plain(name) if self._rng.random() < 0.8 else name
        words = [
            word if word.isupper() and len(word) < 5 else word.lower() for word in plain.split()
        ]
        if len(words) > 2 and self._rng.random() < 0.35:
            del words[self._rng.randrange(len(words))]
        for place, word in enumerate(words):
            if (others := _WORDINGS["other_words"].get(word)) and self._rng.random() < 0.5:
                words[place] = self._rng.choice(others)
        return " ".join(words)

    def _label(self, label: str) -> str:
        words = label.split()
        if len(words) > 2 and self._rng.random() < 0.3:
            del words[self._rng.randrange(len(words))]
        return " ".join(words)


def as_typed(words: str, rng: random.Random) -> str:
    """A question with or without capitals and a question mark; a few with a typing error."""
    draw = rng.random()
    if draw < 0.35:
        words = words.lower()
    elif draw < 0.75:
        words = words[:1].upper() + words[1:]
    place = rng.randrange(len(words))
    if rng.random() < 0.03 and words[place].isalpha():
        words = words[:place] + words[place + 1 :]
    return words + "?" if rng.random() < 0.5 and not words.endswith("?") else words


def _value(row: Row, name: str) -> str:
    return row.cells[name].value if name in row.cells else ""


def _is_distinct(table: Table, name: str, value: str) -> bool:
    """Whether one row alone has a value, which is worth asking for."""
    has_it = sum(_value(row, name) == value for row in table.rows)
    return has_it == 1 and 1 < len(value) <= 40 and value.lower() not in _EMPTY


def questions_of(tree: Tree, asker: Asker, rng: random.Random) -> Iterator[tuple[str, Asked]]:
    """The document and the question, for some tables of each document of a tree."""
    for name in tree.files():
        if not tree.has(name):
            continue
        rows = (rows for document in tree.documents(name) for rows in tables(document))
        found = [table for its in rows if (table := Table(its)).is_askable]
        for table in rng.sample(found, min(_TABLES_A_DOCUMENT, len(found))):
            number = min(_QUESTIONS_A_TABLE, 2 * len(table.rows))
            for asked in islice(asker.ask(table), number):
                if asked.question:
                    yield name, asked


def make_flags() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("data", type=Path, help="a folder of groups with docs_TREE.tar.gz in each")
    add("--work", type=Path, required=True, help="for unpacked trees and their collections")
    add("--output", type=Path, required=True, help="for the questions")
    add("--count", type=int, default=4000, help="how many to write")
    add("--seed", type=int, default=0)
    return parser


def main() -> None:
    turn_off_telemetry()
    flags = make_flags().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    rng = random.Random(flags.seed)
    asker = Asker(rng)
    lines = []
    for archive in sorted(flags.data.glob("*/docs_*.tar.gz")):
        tree = archive.name.removeprefix("docs_").removesuffix(".tar.gz")
        opened = open_tree(archive, flags.work)
        for document, asked in questions_of(opened, asker, rng) if opened else ():
            answers = [asked.answer] if asked.answer else []
            its = {
                "tree": tree,
                "document": document,
                "question": asked.question,
                "answers": answers,
            }
            lines.append(its | {"kind": "table" if answers else "none", "row": asked.row})
    drawn = rng.sample(lines, min(flags.count, len(lines)))
    flags.output.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in drawn))
    _LOG.info("%d of %d questions", len(drawn), len(lines))


if __name__ == "__main__":
    main()
