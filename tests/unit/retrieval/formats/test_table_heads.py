"""Which rows are a table's head, and which are not."""

import pytest

from qa_service.retrieval.formats.cells import Cell, Row
from tests.unit.retrieval.formats.grid_text import merged, written


def test_a_cell_merged_down_the_rows_is_no_more_of_the_head_than_its_first_place():
    head = [*(Cell(text, is_strong=True) for text in ("Task", "Days")), Cell("Tip", rows=9)]
    rows = merged(head, *([f"Work {letter}", letter] for letter in "ABCDEF"))
    assert written(rows)[:2] == ["Task: Work A; Days: A; Tip", "Task: Work B; Days: B; Tip"]


def test_units_below_two_rows_that_are_set_off_are_of_the_head():
    strong = [
        [Cell("", is_strong=True), Cell("Clear", 2, is_strong=True), Cell("All", 2, is_strong=True)]
        for _ in "ab"
    ]
    rows = merged(*strong, ["", "no.", "%", "no.", "%"], ["Ulm", "7", "70", "10", "100"],
                  ["Bonn", "3", "60", "5", "100"])  # fmt: skip
    assert written(rows)[0] == "Ulm; Clear no.: 7; Clear %: 70; All no.: 10; All %: 100"


def test_the_one_row_that_is_full_has_the_names_below_others_merged_without_a_corner():
    rows = merged(
        ["", Cell("Meals", 2), Cell("Care", 2)],
        ["Time", "Snack", "Lunch", "Nap", "Bath"],
        ["Morning", "done", "", "", ""],
        ["Noon", "", "done", "", ""],
    )
    assert written(rows) == ["Time: Morning; Meals Snack: done", "Time: Noon; Meals Lunch: done"]


def test_a_name_that_begins_with_a_number_and_is_set_off_may_stand_over_nothing():
    head = Row(1, ["Item", "EUR", "5 year trend"], strong={0, 1, 2})
    rows = [head, *(Row(n, [name, "7", ""]) for n, name in enumerate(("Sales", "Tax"), 2))]
    assert written(rows) == ["Item: Sales; EUR: 7", "Item: Tax; EUR: 7"]


def test_codes_of_classes_name_columns_of_numbers():
    rows = [["Votes", "1A", "1B", "2A", "Total"], ["Ann", "7", "2", "0", "9"],
            ["Bob", "3", "1", "4", "8"]]  # fmt: skip
    assert written(rows)[0] == "Votes: Ann; 1A: 7; 1B: 2; 2A: 0; Total: 9"
    rows[2][1] = "3A"
    assert written(rows)[0] == "Votes; 1A; 1B; 2A; Total"


@pytest.mark.parametrize("name", ["Day 1", "Bag 2"])
def test_a_short_word_and_a_number_are_no_amount(name: str):
    rows = [["Item", name, "EUR"], ["Pen", "Ann", "5"], ["Cup", "Bob", "18"]]
    assert written(rows)[0] == f"Item: Pen; {name}: Ann; EUR: 5"
    assert written([["Item", "EUR 5"], ["Pen", "EUR 18"]])[0] == "Item: EUR 5"


def test_a_corner_is_no_name_of_the_columns_beside_it():
    rows = [["2", "Mon", "", "Tue", ""], ["", "Start", "End", "Start", "End"],
            ["Ann", "900", "1700", "-", "-"], ["Bob", "800", "1600", "-", "-"]]  # fmt: skip
    strong = [Row(n, row, strong={*range(5 * (n < 3))}) for n, row in enumerate(rows, 1)]
    assert written(strong)[0] == ("2: Ann; Mon Start: 900; Mon End: 1700; Tue Start: -; Tue End: -")


def test_a_name_stands_over_columns_from_its_own_on():
    rows = [["", "Arts", "", "Sums", ""], ["Name", "Songs", "Grade", "Cubes", "Grade"],
            ["Ann", "7", "A", "9", "B"], ["Bob", "3", "C", "5", "D"]]  # fmt: skip
    strong = [Row(n, row, strong={*range(5 * (n < 3))}) for n, row in enumerate(rows, 1)]
    assert written(strong)[0] == (
        "Name: Ann; Arts Songs: 7; Arts Grade: A; Sums Cubes: 9; Sums Grade: B"
    )
