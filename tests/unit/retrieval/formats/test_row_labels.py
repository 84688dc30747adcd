"""Schedules, rubrics and figures with their names are read as a person reads them."""

from qa_service.retrieval.formats.cells import Cell, Row
from tests.unit.retrieval.formats.grid_text import merged, written


def test_words_below_numbers_are_their_names():
    rows = [["36.00", "9"], ["TOTAL HOURS", "DAYS WORKED"]]
    assert written(rows) == ["TOTAL HOURS: 36.00; DAYS WORKED: 9"]
    assert written([["2019", "2020"], ["Held", "Not held"]]) == ["2019: Held; 2020: Not held"]
    assert written([["0", "5"], ["None.", "All found."]]) == ["0: None.; 5: All found."]


def test_a_row_with_a_sentence_for_a_label_is_none_of_the_head():
    criterion = "Responsiveness to what others wrote, and a will to move the discussion forward"
    rows = [["Criteria", "Good", "Poor"], [criterion, "Two principles", "None"],
            ["Points", "2", "0"]]  # fmt: skip
    assert written(rows)[1] == "Criteria: Points; Good: 2; Poor: 0"


def test_keys_and_values_that_are_set_off_are_the_titles_of_the_rows_below():
    def talk(topic: str, speaker: str) -> Row:
        return Row(0, [f"Topic: {topic}", "", f"Speaker: {speaker}"], strong={0, 2})

    names, times = Row(0, ["Central", "Eastern", "India"]), Row(0, ["9:00", "10:00", "19:30"])
    late = Row(0, ["10:00", "11:00", "20:30"])
    rows = [talk("Graphs", "Ann"), names, times, talk("Robots", "Ben"), names, late]
    assert written(rows) == [
        "Topic: Graphs; Speaker: Ann", "Central: 9:00; Eastern: 10:00; India: 19:30",
        "Topic: Robots; Speaker: Ben", "Central: 10:00; Eastern: 11:00; India: 20:30",
    ]  # fmt: skip


def test_a_time_is_that_of_rows_without_one_below_it():
    rows = [["9:00 - 9:30 am", "Welcome"], ["", "Motivation"], ["1 pm", "Lunch"]]
    text = ["9:00 - 9:30 am: Welcome", "9:00 - 9:30 am: Motivation", "1 pm: Lunch"]
    assert written(rows) == text


def test_a_day_in_a_head_is_that_of_the_rows_above_the_next_day():
    rows = merged(
        ["Time", "Tuesday, March 10", "By"], ["9:30 AM", "Welcome", "Ann"],
        [Cell("10:50 AM Coffee", columns=3)], ["11:00 AM", "Maps", "Ben"],
        [Cell("Wednesday, March 11", columns=2), ""], ["9:30 AM", "Data", "Ben"],
    )  # fmt: skip
    assert written(rows) == [
        "Tuesday, March 10", "Time: 9:30 AM; Welcome; By: Ann", "Time: 10:50 AM Coffee",
        "Time: 11:00 AM; Maps; By: Ben", "Wednesday, March 11", "Time: 9:30 AM; Data; By: Ben",
    ]  # fmt: skip


def test_a_key_next_to_another_is_none_of_its_values():
    rows = [["Rent:", "How long?"], ["Date:", "Phone: ( )"], ["Name:", "Ann"]]
    assert written(rows) == ["Rent:; How long?", "Date:; Phone: ( )", "Name: Ann"]


def test_a_title_may_be_two_rows_high():
    rows = merged(
        ["Employee:", Cell("Henry Sy", columns=3, rows=2)], ["E002"],
        ["Date", "In", "Out", "Hours"], ["2023-01-01", "10:00", "18:00", "8:00"],
    )  # fmt: skip
    assert written(rows) == ["Employee: Henry Sy", "E002: Henry Sy",
                             "Date: 2023-01-01; In: 10:00; Out: 18:00; Hours: 8:00"]  # fmt: skip


def test_merged_cells_above_one_over_all_columns_name_none():
    rows = merged(
        [Cell("YEAR", rows=2), Cell("STATEMENT", columns=3)], [Cell("COMPANY", columns=3)],
        [Cell("Enter data below.", columns=4)],
        ["", "JAN", "FEB", "MAR"], ["Sales", "5", "6", "7"], ["Costs", "1", "2", "3"],
    )  # fmt: skip
    assert written(rows)[-2:] == ["Sales; JAN: 5; FEB: 6; MAR: 7", "Costs; JAN: 1; FEB: 2; MAR: 3"]


def test_a_head_above_an_empty_row_names_those_below_a_section():
    rows = [["Task", "Days", "Least", "Most"], [], ["Milestone: Buy"],
            ["Research", "0", "0", "1"], ["Contract", "2", "1", "3"]]  # fmt: skip
    assert written(rows)[-1] == "Task: Contract; Days: 2; Least: 1; Most: 3"


def test_a_colon_in_a_cell_of_its_own_is_the_keys():
    rows = [["1", "Vessel", ":", "Ada"], ["2", "Goods:", ":", "Tea"], ["3", "Value", ":", ""]]
    assert written(rows) == ["1; Vessel: Ada", "2; Goods: Tea", "3; Value:"]


def test_two_cells_that_each_hold_a_key_are_no_pair():
    signs = [["SUBMITTED BY Ann Date: ____", "APPROVED BY Ben Date: ____"]]
    assert written(signs) == ["SUBMITTED BY Ann Date: ____; APPROVED BY Ben Date: ____"]
