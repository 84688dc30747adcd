"""Questions about tables: which row and cell answers, and what has no answer."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from training import office_pages
from training.office_tables import make_document, put
from training.table_questions import Asker, Table, cells, place_in, row_with, tables
from training.trees import render_document

TOWNS = """# Offices

| Town | Telephone | Open |
| --- | --- | --- |
| Ulm | 0731 505 | 9 to 5 |
| Bonn | 0228 77 | 9 to 5 |
| Kiel | 0431 901 | daily |

| Plan | Price |
| --- | --- |
| Solo | 5 EUR |
"""


def rows_of_towns():
    return next(tables(render_document(TOWNS, "markdown")))


def test_a_row_is_read_back_into_its_cells():
    assert [tuple(cell[:2]) for cell in cells("Town: Ulm; 0731 505; Open: 9 to 5")] == [
        ("Town", "Ulm"),
        ("", "0731 505"),
        ("Open", "9 to 5"),
    ]


def test_each_table_has_its_rows():
    found = list(tables(render_document(TOWNS, "markdown")))
    assert [len(rows) for rows in found] == [3, 1]
    assert found[1] == ["Plan: Solo; Price: 5 EUR"]


@pytest.mark.parametrize(
    ("asked", "answer", "expected"),
    [
        ("When is Bonn open?", "9 to 5", "Town: Bonn; Telephone: 0228 77; Open: 9 to 5"),
        ("When is Ulm open?", "9 to 5", "Town: Ulm; Telephone: 0731 505; Open: 9 to 5"),
        ("When is Kiel open?", "8 to 9", ""),
    ],
)
def test_of_rows_with_an_answer_the_one_that_the_question_names_is_found(asked, answer, expected):
    assert row_with([answer], asked, rows_of_towns()) == expected


def test_of_equal_cells_the_one_below_the_column_that_is_asked_for_is_the_answer():
    row = "Team: Ulm; Home: 3; Away: 3"
    start, end = place_in(row, "3", "How many away?") or (0, 0)
    assert (row[:start], row[start:end]) == ("Team: Ulm; Home: 3; Away: ", "3")
    assert place_in(row, "l", "Which?") is None


def test_questions_made_of_a_table_are_answered_by_a_cell_of_their_row_or_by_none():
    rows = rows_of_towns()
    asker = Asker(random.Random(3))
    next(asker.ask(Table(["Plan: Solo; Price: 5 EUR", "Plan: Team; Price: 8 EUR"])))
    made = list(islice(asker.ask(Table(rows)), 300))
    answered = [one for one in made if one.answer]
    assert len(answered) > 100
    for one in answered:
        assert one.row in rows
        assert one.answer in [cell.value for cell in cells(one.row)]
    without = [one for one in made if one.question and not one.answer]
    assert without
    assert not any(one.row for one in without)


def test_questions_of_office_tables_are_put_to_one_passage_with_their_answer_at_most():
    rng = random.Random(7)
    elsewhere = ["Report > Other\nTown: Lagos; Telephone: 1"]
    for number in range(20):
        document, asked = make_document(number, rng)
        for one in asked:
            passages = put(one, document, elsewhere, rng)
            with_answer = [its for its in passages if its.start >= 0]
            assert len(with_answer) == bool(one.answer)
            for its in with_answer:
                assert its.text[its.start :].startswith(one.answer)
            others = [its.text.lower() for its in passages[bool(one.row) :]]
            assert not any(one.label.lower() in text for text in others)


def test_questions_of_office_pages_have_their_answer_in_one_passage_at_most():
    rng = random.Random(5)
    kinds = set()
    for number in range(40):
        document, asked = office_pages.make_page(number, rng)
        for one in asked:
            passages = office_pages.put(one, document, ["Other\nNothing."] * 4, rng)
            with_answer = [its for its in passages if its.start >= 0]
            assert len(with_answer) <= 1
            assert bool(with_answer) == bool(one.answer and passages)
            for its in with_answer:
                assert its.text[its.start :].startswith(one.answer)
            kinds.add(bool(one.answer))
    assert kinds == {True, False}
