"""What a person sees in a table is found in a grid of cells."""

import pytest

from qa_service.retrieval.documents import BlockList, Kind
from qa_service.retrieval.formats.cells import MAX_COLUMNS, Cell, Row
from qa_service.retrieval.formats.grids import add_grid
from tests.unit.retrieval.formats.grid_text import merged, written


def test_a_column_of_row_numbers_needs_no_name():
    rows = [["", "Plan", "EUR"], ["1", "Solo", "5"], ["2", "Team", "18"]]
    assert written(rows) == ["1; Plan: Solo; EUR: 5", "2; Plan: Team; EUR: 18"]


def test_titles_stand_above_a_head():
    rows = [["Plans"], ["Date", "1 May"], [], ["Plan", "EUR", "Users", "GB"], ["Solo", *"512"]]
    assert written(rows) == ["Plans", "Date: 1 May", "Plan: Solo; EUR: 5; Users: 1; GB: 2"]
    rows.pop(2)
    rows[1].extend(["", ""])
    rows[2].append("Seats")
    rows[3].append("3")
    assert written(rows)[:2] == ["Plans", "Date: 1 May"]


def test_times_that_count_up_in_each_row_are_no_head():
    rows = [["Bus", "T1", "T2", "T3", "T4"], ["1", "6:00", "7:00", "8:00", "9:00"],
            ["2", "6:30", "7:30", "8:30", ""]]  # fmt: skip
    assert written(rows)[1] == "Bus: 2; T1: 6:30; T2: 7:30; T3: 8:30"


@pytest.mark.parametrize(
    "labels", [("I.", "II.", "III."), ("a)", "b)", "c)"), ("9:00a", "9:00a", "10:30 a.m.")]
)
def test_items_numbers_and_times_at_the_left_are_of_rows(labels):
    texts = (("Opening", "Ann"), ("Minutes", "Ben"), ("Any other business", "Cy"))
    rows = [[label, *text] for label, text in zip(labels, texts, strict=True)]
    assert written(rows) == ["; ".join(row) for row in rows]


def test_of_rows_in_bold_one_whose_value_recurs_is_no_head():
    races = [["Race", "First", "Second"], ["5 July", "Ann", "Ben"], ["Junior", "Cy", "Di"],
             ["18 July", "Ann", "Eve"], ["25 July", "Cy", "Fay"], ["Herreshoff", "Ed", "Gus"],
             ["8 August", "Di", "Ben"], ["Open", "Flo", "Ann"]]  # fmt: skip
    rows = [Row(0, cells, strong={0, 1, 2}) for cells in races]
    assert written(rows)[0] == "Race: 5 July; First: Ann; Second: Ben"
    assert written(rows[1:])[0] == "5 July; Ann; Ben"


def test_a_section_does_not_end_below_a_row_that_spaces_indent():
    rows = [Row(0, cells, indent=indent) for indent, cells in (
        (0.0, ["Office", "North", "South"]), (0.0, ["Mayor", "", ""]), (6.0, ["Blanks", "1", "2"]),
        (0.0, ["Ada Smith", "30", "40"]), (0.0, ["Bob Jones", "50", "60"]))]  # fmt: skip
    assert written(rows)[1:] == [
        "Office: Blanks; North: 1; South: 2",
        "Office: Ada Smith; North: 30; South: 40",
        "Office: Bob Jones; North: 50; South: 60",
    ]


def test_a_legends_codes_side_by_side_are_no_pairs():
    rows = [["(BB) Big Book", "(C) Closed"], ["(CF) Child-Friendly", "(D) Discussion"]]
    assert written(rows) == ["; ".join(row) for row in rows]


def test_a_currencys_sign_with_a_dash_is_a_value():
    rows = [["Deposit", "$ -", "$ 1,250"], ["Land", "23,102", "12,299"], ["All", "5", "6"]]
    assert written(rows)[0] == "Deposit; $ -; $ 1,250"


def test_a_form_has_keys_in_its_rows_and_no_head():
    rows = [["Name:", "Ann", "Born:", "1 May"], ["Street:", "", "City:", "Ulm"], ["Phone:", "12"]]
    assert written(rows) == ["Name: Ann; Born: 1 May", "Street:; City: Ulm", "Phone: 12"]


def test_a_form_has_keys_that_are_set_off_in_more_columns_than_one():
    cells = [
        ["Project", "Barley", "", ""],
        ["Lead", "Ann", "Date", "1 May"],
        ["Budget", "", "Until", ""],
    ]
    rows = [Row(n, row, strong={0, 2}) for n, row in enumerate(cells, 1)]
    assert written(rows) == ["Project: Barley", "Lead: Ann; Date: 1 May", "Budget; Until"]
    rows[2] = rows[2]._replace(strong={0})  # what is set off here and there is no key
    assert written(rows)[2] == "Budget: Until"


def test_an_empty_form_has_keys_before_empty_cells_and_no_head():
    rows = merged(["Name", Cell("", columns=3)], ["Born", "", "Sex", ""], ["Faith", "", "Town", ""],
                  ["Number", Cell("if known", columns=3)])  # fmt: skip
    assert written(rows) == ["Name", "Born; Sex", "Faith; Town", "Number: if known"]
    assert written([["Plan", "", "EUR", ""], ["Solo", "", "5", ""]]) == ["Plan: Solo; EUR: 5"]


def test_the_names_of_a_table_without_values_are_written():
    rows = [["", "Mon", "Tue"], ["morning", "", ""], ["evening", "", ""]]
    made = [Row(n, row, strong={0, *(1, 2)[: 2 * (n == 1)]}) for n, row in enumerate(rows, 1)]
    assert written(made) == ["Mon; Tue", "morning", "evening"]


def test_words_and_numbers_by_turns_are_keys_and_values():
    rows = [["A", "100% to 93%", "B+", "< 90%"], ["A-", "< 93%", "B", "< 87%"], ["F", "< 60%"]]
    assert written(rows) == ["A: 100% to 93%; B+: < 90%", "A-: < 93%; B: < 87%", "F: < 60%"]
    rows[1][3] = "good"
    assert written(rows)[0] == "A; 100% to 93%; B+; < 90%"


def test_cells_of_a_key_and_its_value_each_are_titles_above_a_head():
    rows = [["Date: 1 May", "", "Auditor: Ann"], ["Clause", "Result", "Notes"],
            ["4.1", "C", "Done"], ["4.2", "NC", "Open"]]  # fmt: skip
    assert written(rows) == [
        "Date: 1 May; Auditor: Ann",
        "Clause: 4.1; Result: C; Notes: Done",
        "Clause: 4.2; Result: NC; Notes: Open",
    ]


def test_a_table_goes_on_below_its_head_on_a_further_page():
    def further(*rows: list[str]) -> list[str]:
        head = [["Prices"], ["Plan", "EUR"], ["Solo", "5"], ["Team", "18"]]
        above = add_grid(BlockList(), [Row(0, row) for row in head])
        add_grid(out := BlockList(), [Row(0, row) for row in rows], above=above)
        return [block.text for block in out.blocks]

    assert further(["Firm", "40"], ["Club", "50"]) == ["Plan: Firm; EUR: 40", "Plan: Club; EUR: 50"]
    assert further(["Plan", "EUR"], ["Firm", "40"]) == ["Plan: Firm; EUR: 40"]
    assert further(["Town", "Seats"], ["Ulm", "3"]) == ["Town: Ulm; Seats: 3"]
    assert further(["Firm", "large"]) == ["Firm: large"]


def test_the_title_next_to_a_table_is_its_caption():
    out = BlockList()
    grid = [["Plans"], ["Prices in EUR"], ["Plan", "EUR", "Users"], ["Solo", "5", "1"]]
    add_grid(out, [Row(n, cells) for n, cells in enumerate(grid, 1)])
    kinds = [(block.kind, block.text) for block in out.blocks]
    assert kinds == [
        (Kind.PARAGRAPH, "Plans"),
        (Kind.CAPTION, "Prices in EUR"),
        (Kind.ROW, "Plan: Solo; EUR: 5; Users: 1"),
    ]


def test_a_long_note_may_stand_between_a_table_and_its_title():
    note = (
        "[In thousands, rounded. " + "What was reported after June is not counted here. " * 5 + "]"
    )
    out = BlockList()
    rows = [["Table 4. Guests"], [note], ["Month", "Adults", "Children"], ["May", "12", "5"]]
    add_grid(out, [Row(n, row) for n, row in enumerate(rows, 1)])
    assert [(block.kind, block.text) for block in out.blocks] == [
        (Kind.PARAGRAPH, note),
        (Kind.CAPTION, "Table 4. Guests"),
        (Kind.ROW, "Month: May; Adults: 12; Children: 5"),
    ]


def test_keys_and_values_above_a_head_are_titles():
    rows = [["Time sheet"], ["Employee :-", "Ann"], ["Month:- May"], ["Day", "Task", "Hours"],
            ["1 May", "Plan", "4"]]  # fmt: skip
    assert written(rows)[1:] == [
        "Employee :-: Ann",
        "Month:- May",
        "Day: 1 May; Task: Plan; Hours: 4",
    ]
    names = ["Town:", "Staff:", "Budget:"]
    assert written([names, ["Ulm", "12", "50"]]) == ["Town: Ulm; Staff: 12; Budget: 50"]


def test_a_title_that_is_set_off_stands_above_a_head():
    top = Row(1, ["Updated", "1 May"], strong={0, 1})
    names = ["Town", "Staff", "Budget", "Area", "Votes"]
    rows = [top, Row(2, names, strong=set(range(5))), Row(3, ["Ulm", *"1234"])]
    assert written(rows)[1] == "Town: Ulm; Staff: 1; Budget: 2; Area: 3; Votes: 4"
    rows[0] = Row(1, ["Towns", "", "", "page 1"], strong={0, 3})
    assert written(rows)[1] == "Town: Ulm; Staff: 1; Budget: 2; Area: 3; Votes: 4"
    steps = ["Steps", "Plan", "", "Build", "", "", ""]
    lines = written([steps, ["Bills", *"123456"], ["Costs", *"543219"]])
    assert lines[0] == "Steps: Bills; Plan: 1; 2; Build: 3; 4; 5; 6"


def test_a_head_names_the_rows_below_an_empty_row():
    names = ["Part", "Model", "Cost"]
    parts = [["Case", "C4", "2.80"], [], ["Board", "B1", "9.50"]]
    lines = ["Part: Case; Model: C4; Cost: 2.80", "Part: Board; Model: B1; Cost: 9.50"]
    assert written([names, [], *parts]) == lines
    assert written([["Parts"], names, [], *parts]) == ["Parts", *lines]
    upper = ["", "Sales", "Costs"]
    assert (
        written([upper, ["Town", "of 2019", "of 2020"], [], ["Ulm", "5", "6"], ["Bonn", "7", "8"]])[
            0
        ]
        == "Town: Ulm; Sales of 2019: 5; Costs of 2020: 6"
    )
    other = [["Town", "Staff"], ["Ulm", "12"]]
    assert written([names, [], *other]) == ["Part; Model; Cost", "Town: Ulm; Staff: 12"]
    assert written([["Total", "12.30"], [], ["Ann", "5"], ["Bob", "6"]])[0] == "Total: 12.30"


Q1 = "Region: North; Q1 Sales: 1; Q1 Cost: 2; Q2 Sales: 3; Q2 Cost: 4"
NAMES = ["Sales", "Cost", "Sales", "Cost"]


def test_two_head_rows_are_joined():
    head = [Cell("Region", rows=2), Cell("Q1", columns=2), Cell("Q2", columns=2)]
    assert written(merged([*head], [*NAMES], ["North", *"1234"])) == [Q1]
    head[0] = Cell("Region")
    assert written(merged([*head], ["", *NAMES], ["North", *"1234"])) == [Q1]
    assert written([["", "Q1", "", "Q2"], ["Region", *NAMES], ["North", *"1234"]]) == [Q1]
    upper: list[Cell | str] = ["", Cell("Votes", columns=2), Cell("Seats", columns=2)]
    rows = merged(upper, ["Town"], ["Ulm", *"1234"])
    assert written(rows) == ["Town: Ulm; Votes: 1; Votes: 2; Seats: 3; Seats: 4"]
    rows = merged(upper, ["North"], ["Ulm", *"1234"], ["South"], ["Bonn", *"5678"])
    assert written(rows)[0] == "North"
    lines = [["Region", "Number of", "Cost"], ["", "seats", "(EUR)"], ["North", "1", "2"]]
    assert written(lines) == ["Region: North; Number of seats: 1; Cost (EUR): 2"]


def test_years_and_ranges_name_columns():
    rows = [["", "2019", "2020"], ["North", "5", "6"], ["South", "7", "8"]]
    assert written(rows) == ["North; 2019: 5; 2020: 6", "South; 2019: 7; 2020: 8"]
    assert written([["2019", "5", "7"], ["2020", "6", "8"]]) == ["2019; 5; 7", "2020; 6; 8"]


@pytest.mark.parametrize("names", [
    ("2019 Budget", "2020 BC"), ("2019 Q4", "2020 Q1"), ("2014 *", "2015 **"),
    ("2019-05-01", "2019-06-01"), ("1/5/2019", "1/6/2019"), ("9:00", "10:30 am"),
    ("2004", "2014"),
])  # fmt: skip
def test_years_with_words_dates_and_times_name_columns(names: tuple[str, str]):
    first, second = names
    rows = [["Town", first, second], ["Ulm", "5", "6"], ["Bonn", "7", "8"], ["Kiel", "9", "10"]]
    assert written(rows)[1] == f"Town: Bonn; {first}: 7; {second}: 8"
    rows = [["Opening", first, "Ann"], ["Close", second, "Bob"], ["Clean", first, "Cleo"]]
    assert written(rows)[0] == f"Opening; {first}; Ann"


def test_a_few_values_like_years_are_no_years():
    values = ["4100", "2017", "5600", "8200", "7700"]
    rows = [["Town", "2004", "2014"], *[["Ulm", one, "90"] for one in values]]
    assert written(rows)[1] == "Town: Ulm; 2004: 2017; 2014: 90"


def test_days_in_order_name_columns():
    days = ["29", "30", "1", "2"]
    rows = [["", *days], ["Ann", "late", "", "early", "off"]]
    assert written(rows) == ["Ann; 29: late; 1: early; 2: off"]
    upper = Row(1, ["", *["May"] * 4], strong={1, 2, 3, 4})
    names = Row(2, ["Name", *"6789"], strong={0, 1, 2, 3, 4})
    assert written([upper, names, ["Ann", *["late"] * 4]]) == [
        "Name: Ann; May 6: late; May 7: late; May 8: late; May 9: late"
    ]
    rows = [["Town", "A", "B", "C"], ["Ulm", *"123"], ["Bonn", *"579"]]
    assert written(rows) == ["Town: Ulm; A: 1; B: 2; C: 3", "Town: Bonn; A: 5; B: 7; C: 9"]


def test_dates_beside_an_empty_corner_name_columns():
    rows = [["", "1 Year: May 2010", "Sept. 30, 2011"], ["Data sets", "272,768", "389,933"],
            ["Nations", "6", "21"]]  # fmt: skip
    assert written(rows) == [
        "Data sets; 1 Year: May 2010: 272,768; Sept. 30, 2011: 389,933",
        "Nations; 1 Year: May 2010: 6; Sept. 30, 2011: 21",
    ]


def test_a_name_may_begin_with_a_digit_and_is_short():
    rows = [["Feature", "3Com", "Acme"], ["Price", "low", "high"], ["Use", "home", "work"]]
    assert written(rows)[0] == "Feature: Price; 3Com: low; Acme: high"
    rows = [["Went well", "word " * 60], ["Ideas", "more"]]
    made = [Row(n, row, strong={0, 1}) for n, row in enumerate(rows)]
    assert written(made)[1] == "Ideas: more"


def test_numbers_with_words_name_columns_of_numbers():
    rows = [["Origin", "3-Year-Olds", "4-Year-Olds"], ["Town", "37.4%", "51.6%"],
            ["Country", "32.8%", "-"]]  # fmt: skip
    assert written(rows)[0] == "Origin: Town; 3-Year-Olds: 37.4%; 4-Year-Olds: 51.6%"
    rows[2][2] = "5 guests"
    assert written(rows)[1] == "Town; 37.4%; 51.6%"


@pytest.mark.parametrize("cells", [
    ("EUR 1,234", "EUR 1,100", "900", "800"),
    ("8 hours", "7 hours", "8", "7.5"),
    ("2.50 per kilo", "300 boxes", "2.10", "200"),
])  # fmt: skip
def test_the_first_numbers_below_names_may_have_the_unit_of_all(cells: tuple[str, ...]):
    first, second = ["Rent", *cells[:2]], ["Tax", *cells[2:]]
    lines = written([["Item", "New", "Old"], first, second, ["Fees", "20", "30"]])
    assert lines[0] == f"Item: Rent; New: {cells[0]}; Old: {cells[1]}"


@pytest.mark.parametrize("below", ["", "-", "5 kg"])
def test_numbers_with_words_over_no_plain_numbers_are_a_row(below: str):
    rows = [["Hall", "3 May 2024", "Ann"], ["Roof", below, "Bob"], ["Yard", below, "Cleo"]]
    assert written(rows)[0] == "Hall; 3 May 2024; Ann"


def test_numbers_with_words_below_a_name_of_several_columns_name_them():
    head = [Cell("Origin"), Cell("Share", columns=2)]
    rows = merged(head, ["Town", "3-Year-Olds", "4-Year-Olds"], ["Ulm", "37.4%", "51.6%"])
    assert written(rows)[0].endswith("Share 3-Year-Olds: 37.4%; Share 4-Year-Olds: 51.6%")


def test_ranges_of_amounts_name_columns():
    rows = [["Student", "$5,000–9,999", "$10,000–$14,999"], ["Total", "10.3", "27.0"],  # noqa: RUF001
            ["Public", "10.2", "26.9"]]  # fmt: skip
    assert written(rows)[0] == "Student: Total; $5,000–9,999: 10.3; $10,000–$14,999: 27.0"  # noqa: RUF001


def test_a_head_that_is_repeated_below_names_columns_too():
    rows = [["Homes", "2019", "2020"], *[[f"Type {n}", "5", "6"] for n in range(5)]]
    lines = written([*rows, ["Offices"], *rows])
    assert lines.count("Homes: Type 1; 2019: 5; 2020: 6") == 2


def test_a_label_that_is_indented_has_those_above_before_it():
    rows = [Row(0, ["Group", "2019"]), Row(0, ["All", "9"])]
    rows += [
        Row(0, [name, "5"], indent=at) for name, at in (("Men", 6.1), ("Old", 12), ("Boys", 6))
    ]
    rows.append(Row(0, ["Total", "9"], indent=12))
    assert written(rows, has_head=True) == [
        f"Group: {name}; 2019: {value}"
        for name, value in (("All", 9), ("All, Men", 5), ("All, Men, Old", 5), ("All, Boys", 5),
                            ("Total", 9))
    ]  # fmt: skip


@pytest.mark.parametrize("names", ["All 5 9", "a b c d e f g"])
def test_columns_of_numbers_and_centred_labels_are_no_outline(names):
    labels = names.split()
    rows = [Row(0, [name, "5", "x"], indent=3.0 * n) for n, name in enumerate(labels)]
    assert written(rows) == [f"{name}; 5; x" for name in labels]


def test_a_groups_label_is_that_of_the_rows_below_it():
    rows = [["Area", "Step", "Role"], ["Planning", "Scope", "A"], ["", "Sprints", "R"],
            ["", "Review", "C"], ["Risks", "Analysis", "A"], ["", "Watch", "R"],
            ["", "Total", "5"]]  # fmt: skip
    assert [line.partition("; Role")[0] for line in written(rows)] == [
        "Area: Planning; Step: Scope", "Area: Planning; Step: Sprints",
        "Area: Planning; Step: Review", "Area: Risks; Step: Analysis", "Area: Risks; Step: Watch",
        "Step: Total",
    ]  # fmt: skip
    rows = [["Mark", "Task", "Days"], ["late", "Plan", "1"], ["", "Build", "2"],
            ["late", "Test", "3"], ["", "Ship", "4"], ["", "Sell", "5"]]  # fmt: skip
    assert written(rows)[1] == "Task: Build; Days: 2"
    rows = [["Kind", "Use", "Size"], ["Oak", "Desk", "1"], ["Elm", "Door", "2"], ["", "Bed", "3"],
            ["", "Box", "4"]]  # fmt: skip
    assert written(rows)[2] == "Use: Bed; Size: 3"


@pytest.mark.parametrize("value", ["7", "", "$7.50", "n/a"])
def test_a_table_goes_on_below_an_empty_row(value):
    rows = [["Plan", "From", "EUR"], ["Solo", "May", "5"], [], ["Team", "June", value]]
    last = "; EUR: " * bool(value) + value
    expected = ["Plan: Solo; From: May; EUR: 5", f"Plan: Team; From: June{last}"]
    assert written(rows) == expected


def test_a_table_goes_on_below_a_title():
    rows = [["Item", "EUR", "When"], ["Rent", "500", "monthly"], [], ["Travel"], [],
            ["Train", "80", "once"]]  # fmt: skip
    assert written(rows)[1:] == ["Travel", "Item: Train; EUR: 80; When: once"]


def test_another_table_begins_below_an_empty_row():
    rows = [["Plan", "EUR"], ["Solo", "5"], [], ["City", "Staff"], ["Ulm", "12"]]
    assert written(rows) == ["Plan: Solo; EUR: 5", "City: Ulm; Staff: 12"]
    rows[3:] = [["Contact", "Ann"], ["Mail", "a@example.org"]]
    assert written(rows)[1:] == ["Contact: Ann", "Mail: a@example.org"]


def test_keys_are_written_before_their_values():
    rows = [["Company", "ACME"], ["Staff", "12"], ["City", "Ulm"]]
    assert written(rows) == ["Company: ACME", "Staff: 12", "City: Ulm"]
    rows = [["Staff:", "12"], ["Age:", "3"]]
    assert written(rows) == ["Staff: 12", "Age: 3"]
    assert written([["Name:", "Ann", "Age:", "3"]]) == ["Name: Ann; Age: 3"]
    keys = [Row(0, [key, "5"], strong={0}) for key in ("Width", "Height")]
    assert written(keys) == ["Width: 5", "Height: 5"]
    assert written([["Name", "Size"], ["fox", "3"], ["hare", "2"]])[0] == "Name: fox; Size: 3"


def test_what_is_set_off_or_declared_is_the_head():
    rows = [Row(0, ["Term", "Meaning"], strong={0, 1}), Row(0, ["fox", "animal"])]
    assert written(rows) == ["Term: fox; Meaning: animal"]
    rows[0] = Row(0, ["Term", "Meaning"], is_head=True)
    assert written(rows) == ["Term: fox; Meaning: animal"]
    upper = Row(0, ["", "Dose", "Dose", "Risk"], from_left={2}, strong={1, 2, 3})
    names = Row(0, ["Site", "1y", "5y", "1y"], is_head=True)
    line = "Site: Head; Dose 1y: 0.01; Dose 5y: 0.02; Risk 1y: 3"
    assert written([upper, names, ["Head", "0.01", "0.02", "3"]]) == [line]


def test_merged_cells_down_a_column_are_in_each_row():
    rows = merged(["Region", "Plan", "EUR"], [Cell("North", rows=2), "Solo", "5"], ["Team", "9"])
    assert written(rows)[1] == "Region: North; Plan: Team; EUR: 9"
    wide: list[Cell | str] = [Cell("Both", columns=2), "3"]
    assert written(merged(["A", "B", "Sum"], ["x", "y", "2"], wide))[1] == "A: Both; Sum: 3"
    rows = merged(["A", "B"], [Cell("x", columns=2)], [Cell("", columns=2, goes_on=True)])
    assert [list(row.cells) for row in rows[1:]] == [["x", "x"], ["x", "x"]]


def test_a_row_of_one_cell_names_the_rows_below():
    rows = [["Name", "Age", "City"], ["Europe"], ["Ann", "3", "Ulm"], ["* as of May"]]
    assert written(rows) == ["Europe", "Name: Ann; Age: 3; City: Ulm", "* as of May"]
    assert written(rows[:2], has_head=True) == ["Name: Europe"]


def test_a_row_that_names_others_is_the_caption_of_their_rows():
    rows = [["Plans"], ["Name", "Age", "City"], ["Europe"], ["Ann", "3", "Ulm"], ["Asia"],
            ["Bob", "4", "Goa"], ["5-Aug-2023"], ["* as of May"]]  # fmt: skip
    out = BlockList()
    add_grid(out, [Row(n, cells) for n, cells in enumerate(rows, 1)])
    kinds = [(block.kind, block.text, block.line) for block in out.blocks]
    assert kinds == [
        (Kind.CAPTION, "Plans", 1),
        (Kind.CAPTION, "Europe", 3),
        (Kind.ROW, "Name: Ann; Age: 3; City: Ulm", 4),
        (Kind.CAPTION, "Asia", 5),
        (Kind.ROW, "Name: Bob; Age: 4; City: Goa", 6),
        (Kind.ROW, "Name: 5-Aug-2023", 7),
        (Kind.PARAGRAPH, "* as of May", 8),
    ]
    pairs = [["Item", "EUR"], ["Staff"], ["Ann", "5"], ["Bob", "6"]]
    made = [Row(n, cells, strong={0} if n == 1 else set()) for n, cells in enumerate(pairs)]
    assert written(made)[:2] == ["Staff", "Item: Ann; EUR: 5"]


def test_rows_that_are_set_off_below_a_full_head_are_rows():
    cells = [["", "Step", "Done"], ["1", "Plan"], ["2", "Build"], ["", "Test"]]
    made = [Row(n, row, strong={0, 1, 2}) for n, row in enumerate(cells, 1)]
    assert written(made) == ["1; Step: Plan", "2; Step: Build", "Step: Test"]


def test_a_head_that_is_repeated_is_no_row():
    head = ["Plan", "EUR"]
    assert written([head, ["Solo", "5"], head, ["Team", "9"]])[1] == "Plan: Team; EUR: 9"


def test_a_grid_is_bounded():
    rows = merged([Cell("a", columns=10**9), "b"], [Cell("", columns=10**9, goes_on=True)])
    assert [len(row.cells) for row in rows] == [MAX_COLUMNS] * 2


def test_a_row_below_a_bold_head_that_is_not_bold_is_none_of_its_names():
    rows = [["Entry", "EUR 10 (once)"], ["Deposit", "EUR 20 (paid back)"], ["Day", "18"]]
    made = [Row(1, ["Fees", "Cost"], strong={0, 1}), *(Row(n, row) for n, row in enumerate(rows))]
    assert written(made) == [
        "Fees: Entry; Cost: EUR 10 (once)",
        "Fees: Deposit; Cost: EUR 20 (paid back)",
        "Fees: Day; Cost: 18",
    ]


def test_a_bold_cell_alone_below_a_head_names_the_rows_below():
    head = Row(1, ["Parts", "Number", "EUR"], strong={0, 1, 2})
    rows = [head, Row(2, ["Cannon", "", ""], strong={0}), Row(3, ["Magnet", "2", "30"])]
    assert written(rows) == ["Cannon", "Parts: Magnet; Number: 2; EUR: 30"]


def test_a_word_in_a_column_of_values_names_the_rows_below():
    rows = [["No", "Oil", "Size", "EUR"], ["", "", "WINTER OILS", ""], ["1", "Pine", "450ml", "59"],
            ["2", "Fir", "200ml", "27"]]  # fmt: skip
    assert written(rows)[:2] == ["WINTER OILS", "No: 1; Oil: Pine; Size: 450ml; EUR: 59"]


def test_tables_side_by_side_are_two():
    rows = [["Budget", "Plan", "Real", "", "Income", "Plan", "Real"],
            ["Staff", "5", "6", "", "Sales", "9", "8"], ["Rent", "2", "2", "", "Grants", "3", "3"],
            ["", "", "", "", "Gifts", "1", "0"], ["", "", "", "", "Dues", "4", "4"],
            [], ["Sum", "7", "8"]]  # fmt: skip
    assert written(rows) == [
        "Budget: Staff; Plan: 5; Real: 6",
        "Budget: Rent; Plan: 2; Real: 2",
        "Income: Sales; Plan: 9; Real: 8",
        "Income: Grants; Plan: 3; Real: 3",
        "Income: Gifts; Plan: 1; Real: 0",
        "Income: Dues; Plan: 4; Real: 4",
        "Budget: Sum; Plan: 7; Real: 8",
    ]


def test_an_empty_column_within_a_table_is_no_gap_between_two():
    rows = [["Town", "Staff", "", "Mayor", "Votes"], ["Ulm", "5", "", "Ann", "9"],
            ["Bonn", "2", "", "Bob", "3"], ["Trier", "1", "", "Cleo", "4"]]  # fmt: skip
    assert written(rows)[0] == "Town: Ulm; Staff: 5; Mayor: Ann; Votes: 9"


def test_notes_at_the_right_of_a_table_are_none_of_its_cells():
    rows = [["Part", "Number", "EUR"], ["Pipe", "1", "12", "", "Knife robot"],
            ["Bolt", "3", "6", "", "List of parts"], ["Blade", "1", "15", "", "May 2024"],
            ["Motor", "4", "10"], ["Glue", "1", "4"]]  # fmt: skip
    assert written(rows)[0] == "Part: Pipe; Number: 1; EUR: 12"
    assert written(rows)[5:] == ["Knife robot", "List of parts", "May 2024"]


def test_a_head_in_a_tables_rows_names_the_rows_below():
    rows = [["Fee", "EUR", ""], ["Entry", "10", ""], ["Lunch", "4", ""]]
    made = [Row(n, row) for n, row in enumerate(rows, 1)]
    made += [Row(4, ["Class", "Half day", "Full day"], strong={0, 1, 2}), Row(5, ["Olive", *"57"])]
    assert written(made)[1:] == ["Fee: Lunch; EUR: 4", "Class: Olive; Half day: 5; Full day: 7"]


def test_keys_and_values_above_a_wider_head_are_titles():
    rows = [["Sprint1", "4 to 15 May"], ["Goal:", "Log in"], ["Day", "Plan", "Build", "Test"],
            ["1", "0%", "10%", "0%"]]  # fmt: skip
    assert written(rows) == [
        "Sprint1: 4 to 15 May",
        "Goal: Log in",
        "Day: 1; Plan: 0%; Build: 10%; Test: 0%",
    ]


def test_times_that_go_on_by_a_step_are_names():
    rows = [["Name", "9:00", "10:00", "11:00"], ["Ann", "", "L", "11:20"], ["Bob", "9:30", "L", ""]]
    assert written(rows)[0] == "Name: Ann; 10:00: L; 11:00: 11:20"


def test_a_cell_over_all_columns_below_a_head_names_the_rows_below():
    head = ("Title", "Year", "Price")
    rows = merged(head, [Cell("Main wall", columns=3)], ("Apple day", "2026", "18"))
    assert written(rows) == ["Main wall", "Title: Apple day; Year: 2026; Price: 18"]


def test_a_number_and_a_cell_over_the_rest_below_a_head_are_a_row():
    section: list[Cell | str] = ["1", Cell("Start", columns=2)]
    rows = merged(["ID", "Task", "Days"], section, ["1.1", "Plan", "3"], ["1.2", "Tell", "4"])
    assert written(rows)[:2] == ["ID: 1; Task: Start", "ID: 1.1; Task: Plan; Days: 3"]


def test_a_title_above_rows_that_go_on_is_kept():
    rows = [["Item", "2025", "2026"], ["Sales", "5", "6"], [], ["Costs"], ["Staff", "3", "4"]]
    assert written(rows)[1:] == ["Costs", "Item: Staff; 2025: 3; 2026: 4"]


def test_a_title_above_a_further_head_goes_with_it():
    cells = [["Club", "Town", "Fee"], ["Chess", "Ulm", "5"], ["Staff"], ["Name", "Post", "Room"],
             ["Ann", "Head", "B 2"], ["Bob", "Cook", "A 1"]]  # fmt: skip
    heads = {1, 4}
    rows = [
        Row(n, row, strong={0, 1, 2} if n in heads else set()) for n, row in enumerate(cells, 1)
    ]
    assert written(rows)[1:3] == ["Staff", "Name: Ann; Post: Head; Room: B 2"]
    declared = [Row(n, row, is_head=n in heads) for n, row in enumerate(cells, 1)]
    assert written(declared)[1:3] == ["Staff", "Name: Ann; Post: Head; Room: B 2"]


def test_where_all_rows_are_set_off_the_first_is_the_head():
    cells = [["Kind", "Group", "Report"], ["Assets", "Current", "Balance"],
             ["Equity", "Capital", "Balance"], ["Sales", "Revenue", "Income"],
             ["Rent", "Costs", "Income"], ["Tax", "Costs", "Income"]]  # fmt: skip
    rows = [Row(n, row, strong={0, 1, 2}) for n, row in enumerate(cells, 1)]
    assert written(rows)[0] == "Kind: Assets; Group: Current; Report: Balance"
    assert len(written(rows)) == len(cells) - 1


@pytest.mark.parametrize("labels", ["8:00 8:20 9:10", "K-01 K-02 K-03", "2.1 2.1.1 2.2"])
def test_rows_whose_labels_differ_in_numbers_alone_have_no_head(labels):
    cells = [
        [label, word] for label, word in zip(labels.split(), ("Plan", "Talk", "Vote"), strict=True)
    ]
    rows = [Row(n, row, strong={0, 1} if n != 2 else set()) for n, row in enumerate(cells, 1)]
    first, *_ = labels.split()
    assert written(rows)[0] in {f"{first}; Plan", f"{first}: Plan"}


def test_numbers_below_a_name_have_a_head():
    rows = [["Code", "Kind"], ["1", "Staff"], ["2", "Travel"], ["3", "Rent"]]
    assert written(rows)[1] == "Code: 2; Kind: Travel"


def test_a_number_over_several_columns_names_them():
    head = [Cell("1 3/4 x 9", columns=2), Cell("1 3/4 x 11", columns=2)]
    rows = merged(head, ["Feet", "EUR", "Feet", "EUR"], ["8", "20.64", "8", "25.36"], [*"9876"])
    assert written(rows)[0] == (
        "1 3/4 x 9 Feet: 8; 1 3/4 x 9 EUR: 20.64; 1 3/4 x 11 Feet: 8; 1 3/4 x 11 EUR: 25.36"
    )


def test_rows_keep_their_names_below_others_that_have_none():
    rows = [["No", "Course", "Fee"], ["1", "1) Safety", "$30"], ["", "2) Trust", "$20"], [],
            ["Total", "", "", "", "9"], [],
            ["2", "1) Health and safety at work", "$40"]]  # fmt: skip
    assert written(rows)[-1] == "No: 2; Course: 1) Health and safety at work; Fee: $40"


def test_tables_side_by_side_with_the_same_names_are_parted():
    names = ["Date", "Item", "EUR"]
    rows = [["", "", "In", "", "", "", "Out"], [*names, "", *names],
            ["1 May", "Sales", "5", "", "2 May", "Rent", "9"], ["3 May", "Fees", "6"]]  # fmt: skip
    lines = ["In", "Date: 1 May; Item: Sales; EUR: 5", "Date: 3 May; Item: Fees; EUR: 6",
             "Out", "Date: 2 May; Item: Rent; EUR: 9"]  # fmt: skip
    assert written(rows) == lines
    close = [[cell for n, cell in enumerate(row) if n != 3] for row in rows]
    assert written(close) == lines
    rows[1][-2:] = ["Note", "EUR"]
    assert written(rows[1:])[0].startswith("Date: 1 May; Item: Sales; EUR: 5; Date: 2 May")


def test_names_that_others_part_above_them_are_of_one_table():
    upper = [Cell("2019", columns=3), Cell("2020", columns=3)]
    rows = merged(upper, ["Town", "Staff", "EUR"] * 2, ["Ulm", "1", "5", "Ulm", "2", "6"])
    assert written(rows) == [
        "2019 Town: Ulm; 2019 Staff: 1; 2019 EUR: 5; 2020 Town: Ulm; 2020 Staff: 2; 2020 EUR: 6"
    ]


def test_a_row_below_a_title_with_a_name_of_its_column_is_a_further_head():
    rows = [["History"], ["Version", "Author", "Date", "Note"], ["2", "Ann", "1 May", "New"],
            ["Approval"], ["Position", "Name", "Date", "Sign"],
            ["Head", "Bob", "2 May", "B."]]  # fmt: skip
    assert written(rows) == [
        "History",
        "Version: 2; Author: Ann; Date: 1 May; Note: New",
        "Approval",
        "Position: Head; Name: Bob; Date: 2 May; Sign: B.",
    ]
    rows[4][2] = "Day"
    assert written(rows)[-1] == "Version: Head; Author: Bob; Date: 2 May; Note: B."


def test_totals_below_prices_have_no_columns_name():
    rows = [["Item", "Number", "Price", "EUR"], ["Nut", "2", "3", "6"], ["Bolt", "1", "4", "4"],
            ["", "", "Subtotal:", "10"], ["", "Tax:", "8 %", "1"], ["", "", "Total", "11"],
            ["See the terms", "", "Paid:", "11"]]  # fmt: skip
    assert written(rows)[2:] == [
        "Subtotal: 10",
        "Tax:; Price: 8 %; EUR: 1",
        "Total: 11",
        "Item: See the terms; Paid: 11",
    ]
    keys = merged(["No.", Cell("Results", columns=2)], ["1", "Mean:", "5"], ["2", "Range:", "7"])
    assert written(keys)[0] == "No.: 1; Results: Mean:; Results: 5"


def test_a_form_with_lines_between_its_keys_has_no_head():
    street = Row(2, ["", "Oak Street 5", "", "", "Elm 7"], strong={1, 4})
    rows: list[Row | list[str]]
    rows = [["To:", "Firm", "", "Ship to:", "Shop"], street,
            ["Phone:", "12", "", "Fax:", "13"], ["Date:", "", "", "Terms:", "net"]]  # fmt: skip
    assert written(rows) == [
        "To: Firm; Ship to: Shop",
        "Oak Street 5; Elm 7",
        "Phone: 12; Fax: 13",
        "Date:; Terms: net",
    ]


def test_a_pair_below_a_wide_table_takes_none_of_its_names():
    rows = [["Year", "2019", "2020", "2021"], ["Cash", "1", "2", "3"], ["Costs", "4", "5", "6"], []]
    assert written([*rows, ["Return", "10%"]])[-1] == "Return: 10%"
    assert written([*rows, ["Total", "10"]])[-1] == "Year: Total; 2019: 10"


def test_a_section_merged_below_a_head_is_none_of_the_names():
    head = [Cell(name, is_strong=True) for name in ("Type", "Detail", "Price")]
    number = Cell("No.", rows=2, is_strong=True)
    section = Cell("Fillers", columns=3, is_strong=True)
    rows = merged([number, *head], [section], ["1", "Lips", "1 ml", "IDR99,000"],
                  ["2", "Chin", "2 ml", "IDR98,000"])  # fmt: skip
    assert written(rows) == [
        "No.; Type: Fillers",
        "No.: 1; Type: Lips; Detail: 1 ml; Price: IDR99,000",
        "No.: 2; Type: Chin; Detail: 2 ml; Price: IDR98,000",
    ]


def test_cells_merged_over_no_column_but_one_are_no_sections():
    rows = merged(["Name", "Date", Cell("Issues", columns=4)], ["", "", Cell("- costs", columns=4)],
                  ["", "", Cell("- staff", columns=4)])  # fmt: skip
    assert written(rows) == ["Issues: - costs", "Issues: - staff"]


def test_a_row_at_the_left_of_all_below_it_is_their_title():
    rows = [["", "", "Account", "Debit"], ["1 May", "J1", "", ""], ["", "", "Books", "35"],
            ["", "", "Bank", "20"], [], ["2 May", "J2", "", ""], ["", "", "Books", "9"],
            ["", "", "Freight", "5"]]  # fmt: skip
    assert written(rows)[-3:] == [
        "2 May: J2", "Account: Books; Debit: 9", "Account: Freight; Debit: 5"
    ]  # fmt: skip


def test_keys_and_values_above_a_further_head_are_its_titles():
    head = Row(0, ["Date", "Start", "End"], strong={0, 1, 2})
    first = [Row(0, ["2 May", "9:00", "17:00"]), Row(0, ["3 May", "8:00", "16:00"])]
    about = [Row(0, ["Name:", "Bob"]), Row(0, ["Code:", "E2"])]
    rows = [Row(0, ["Name:", "Ann"]), head, *first, *about, head, *first]
    assert written(rows)[3:] == [
        "Name: Bob",
        "Code: E2",
        "Date: 2 May; Start: 9:00; End: 17:00",
        "Date: 3 May; Start: 8:00; End: 16:00",
    ]


def test_a_total_alone_below_a_table_is_its_columns():
    rows = [["Day", "Hours", "EUR"], ["1 May", "8", "€ 80"], ["2 May", "7", "€ 70"],
            ["", "", "€ 150"]]  # fmt: skip
    assert written(rows)[-1] == "EUR: € 150"


def test_three_tables_side_by_side_are_told_by_names_that_are_repeated():
    names = {0, 1, 3, 4, 6, 7}
    head = Row(1, ["Bag 1", "Qty", "", "Bag 2", "Qty", "", "Bag 3", "Qty"], strong=names)
    rows = [head, *(Row(0, cells) for cells in (
        ["Wheel", "2", "", "Screw", "4", "", "Diode", "1"],
        ["Ring", "1", "", "Nut", "3", "", "Pin", "6"],
        ["Axle", "1", "", "Bolt", "9", "", "Lamp", "5"], ["", "", "", "", "", "", "Fuse", "8"],
        ["", "", "", "", "", "", "Wire", "8"], ["", "", "", "", "", "", "Knob", "8"],
    ))]  # fmt: skip
    text = written(rows)
    assert text[:2] == ["Bag 1: Wheel; Qty: 2", "Bag 1: Ring; Qty: 1"]
    assert text[3:5] == ["Bag 2: Screw; Qty: 4", "Bag 2: Nut; Qty: 3"]


def test_tables_side_by_side_below_titles_of_their_own_are_parted():
    rows = merged(
        [Cell("Parts", 3), "", Cell("Tools", 3)],
        ["Value", "Size", "Pack", "", "Kind", "Size", "Pack"],
        ["10", "603", "1", "", "7", "20", "2"],
        ["20", "805", "3", "", "8", "30", "4"],
    )
    assert written(rows) == [
        "Parts", "Value: 10; Size: 603; Pack: 1", "Value: 20; Size: 805; Pack: 3",
        "Tools", "Kind: 7; Size: 20; Pack: 2", "Kind: 8; Size: 30; Pack: 4",
    ]  # fmt: skip


def test_a_row_alone_with_a_name_of_its_column_is_none_of_the_table_above():
    rows = [["Coach", "Phone", "Mail"], ["Ann", "12", "a@b.c"], [], ["Helper", "Phone", "Town"]]
    assert written(rows) == ["Coach: Ann; Phone: 12; Mail: a@b.c", "Helper; Phone; Town"]


def test_labels_next_to_a_groups_label_have_those_that_they_are_indented_below():
    cells = [["", "Fare", "2030", "2031"], ["Who", "Adult", "", ""], ["", "Cash", "7", "8"],
             ["", "Pass", "5", "6"], ["", "Sub-total", "12", "14"], ["", "Child", "", ""],
             ["", "Cash", "1", "2"], ["", "Pass", "3", "4"], ["Where", "Bus", "9", "9"],
             ["", "Tram", "3", "5"]]  # fmt: skip
    indents = [0.0, 0.0, 15.0, 12.0, 6.0, 0.0, 15.0, 12.0, 9.0, 0.0]
    rows = [Row(n, row, indent=indents[n]) for n, row in enumerate(cells)]
    assert written(rows)[7] == "Where; Fare: Bus; 2030: 9; 2031: 9"
    assert written(rows)[1:7] == [
        "Who; Fare: Adult, Cash; 2030: 7; 2031: 8",
        "Who; Fare: Adult, Pass; 2030: 5; 2031: 6",
        "Fare: Sub-total; 2030: 12; 2031: 14",
        "Who; Fare: Child",
        "Who; Fare: Child, Cash; 2030: 1; 2031: 2",
        "Who; Fare: Child, Pass; 2030: 3; 2031: 4",
    ]


def test_a_key_of_a_form_has_none_before_it_however_it_is_indented():
    rows = [["Firm:", "Ulm Toys", "Phone:", "12"], ["For:", "Ann", "Fax:", "13"]]
    made = [Row(n, row, indent=9.0 * n) for n, row in enumerate([*rows, ["Street:", "Mill 1"]])]
    assert written(made) == ["Firm: Ulm Toys; Phone: 12", "For: Ann; Fax: 13", "Street: Mill 1"]


def test_keys_and_values_without_colons_stand_above_a_head():
    title, name = Cell("Marks", columns=5, is_strong=True), {"is_strong": True}
    keys = [Cell("Class", columns=2, **name), Cell("5B"), Cell("Date"), Cell("29-04-2024")]
    rows = merged([title], keys, ["No", "Name", "Urdu", "Maths", "Total"], ["1", "Ali", *"358"])
    assert written(rows) == [
        "Marks", "Class: 5B; Date: 29-04-2024", "No: 1; Name: Ali; Urdu: 3; Maths: 5; Total: 8"
    ]  # fmt: skip


@pytest.mark.parametrize("above", [["Classes", "2015-11-03"], ["", "50%"]])
def test_a_few_cells_with_a_date_or_a_share_above_the_names_are_a_title(above):
    rows = [["", *above], ["No", "Title", "Day", "Points", "Room", "Staff", "Fee"],
            ["A1", "Law", "Fri", "3", "115", "Ann", "20"]]  # fmt: skip
    line = "No: A1; Title: Law; Day: Fri; Points: 3; Room: 115; Staff: Ann; Fee: 20"
    assert written(rows)[-1] == line


def test_a_date_over_one_of_columns_with_the_same_names_is_of_their_names():
    rows = [["", "1-Jan-2024", "", "", "2-Jan-2024", "", ""], ["Name", *["In", "Out", "Hours"] * 2],
            ["Ann", "9", "5", "8", "9", "4", "7"]]  # fmt: skip
    assert written(rows)[0].startswith("Name: Ann; 1-Jan-2024 In: 9")


def test_a_text_over_a_declared_head_is_a_title():
    head = Row(2, ["Income", *["Jan", "Feb"] * 2], strong={0, 1, 2, 3, 4}, is_head=True)
    company = Row(1, ["Year", *["ACME"] * 4], from_left={2, 3, 4}, strong={0, 1, 2, 3, 4})
    groups = Row(1, ["", *["Plan"] * 2, *["Real"] * 2], from_left={2, 4}, strong={1, 2, 3, 4})
    sales = Row(3, ["Sales", *"5678"])
    assert written([company, head, sales])[0] == "Year: ACME"
    assert written([groups, head, sales])[0].startswith("Income: Sales; Plan Jan: 5; Plan Feb: 6")


def test_of_labels_and_values_by_turns_a_row_all_in_bold_is_the_head():
    rows = [Row(1, ["Region", "Count", "", "Area", "Price"], strong={0, 1, 3, 4})]
    rows += [Row(2, [place, "56", "", place, "$203"], strong={0, 3}) for place in ("North", "East")]
    assert written(rows)[0] == "Region: North; Count: 56; Area: North; Price: $203"


def test_keys_at_the_left_of_a_tables_names_are_a_form_of_their_own():
    over = set(range(1, 6))
    rows = [
        Row(1, ["Take home pay"] * 6, from_left=over, strong={0} | over),
        Row(2, ["Name", "Carol", "", "Date", "In", "Out"], strong={0, 3, 4, 5}),
        Row(3, ["Rate", "$16.25", "", "4 Oct", "8:00", "15:30"], strong={0}),
        Row(4, ["Status", "Single", "", "5 Oct", "8:00", "13:00"], strong={0}),
    ]
    assert written(rows) == [
        "Take home pay", "Name: Carol", "Rate: $16.25", "Status: Single",
        "Date: 4 Oct; In: 8:00; Out: 15:30", "Date: 5 Oct; In: 8:00; Out: 13:00",
    ]  # fmt: skip


def test_a_legend_under_its_own_title_is_apart_from_the_table_at_its_left():
    rows = merged(
        [Cell("Marks", columns=2), "", Cell("Result", columns=2)],
        ["Name", "Mark", "", Cell("< 33% = Fail", columns=2)],
        ["Ann", "5", "", Cell("Grade", columns=2)],
        ["Ben", "6", "", "A", "> 8"],
        ["Cy", "7"],
        ["Di", "8"],
    )
    lines = written(rows)
    assert lines[:2] == ["Marks", "Name: Ann; Mark: 5"]
    assert lines[-4:] == ["Result", "< 33% = Fail", "Grade", "A: > 8"]


def test_a_sum_over_rows_of_keys_names_no_columns():
    total = [Cell("Total", columns=2, is_strong=True), Cell("8,100", columns=2, is_strong=True)]
    rows = merged(total, ["Cash", "900", "Debit", "0"], ["Today", "4,000", "Debit", "0"])
    assert written(rows)[0] == "Total: 8,100"


def test_rows_below_an_empty_one_may_have_a_last_cell_without_a_name():
    rows = [["No", "Title", "Day", "Points"], ["", "All classes"], [],
            ["A1", "Law", "Fri", "3 PTS", "22947"]]  # fmt: skip
    assert written(rows)[-1] == "No: A1; Title: Law; Day: Fri; Points: 3 PTS; 22947"
