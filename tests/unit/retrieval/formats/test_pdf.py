"""A PDF's text is what a person reads on its pages, in the order in which it is read."""

import functools

import pypdfium2
import pytest

from qa_service.retrieval.formats.pdf_lines import NUMBERED, joined
from qa_service.retrieval.formats.pdf_page import PageReader
from tests.unit.retrieval.formats import reading
from tests.unit.retrieval.formats.pdf_files import (
    content,
    lines,
    number_after,
    pdf_of,
    rule,
    stream,
    words,
)

LEFT = (
    "The committee met in spring and",
    "agreed on a new way of counting",
    "the visitors that come to the old",
    "town hall in each of the months.",
)
RIGHT = (
    "All of the doors are open to the",
    "public between nine and five, and",
    "guides are there for groups which",
    "have told us that they are coming.",
)


read = functools.partial(reading.read, "a.pdf")


def text_of(*pages: str) -> str:
    return read(pdf_of([content(page) for page in pages])).text


def table(x: float, y: float, *rows: tuple[str, ...], font: str = "F1") -> str:
    """Cells in columns that are 90 points wide."""
    return "".join(
        words(x + 90 * column, y - 14 * row, cell, font=font)
        for row, cells in enumerate(rows)
        for column, cell in enumerate(cells)
    )


def box(x: float, y: float, width: float, height: float) -> str:
    return f"q 0.8 g {x} {y} {width} {height} re f Q\n"


def test_a_ruled_table_has_its_columns_names():
    rows = (("Room", "Seats"), ("Blue", "12"), ("Green", "40"))
    grid = "".join(rule(70, 711 - 14 * n, 250, 711 - 14 * n) for n in range(4))
    grid += "".join(rule(x, 711, x, 669) for x in (70, 160, 250))
    page = lines(72, 740, "The rooms of the house:") + grid + table(74, 700, *rows)
    assert text_of(page) == (
        "The rooms of the house:\nRoom: Blue; Seats: 12\nRoom: Green; Seats: 40"
    )


def test_a_merged_cell_stands_in_each_of_its_rows():
    grid = "".join(rule(70, y, 250, y) for y in (711, 697, 669))
    grid += rule(160, 683, 250, 683) + "".join(rule(x, 711, x, 669) for x in (70, 160, 250))
    cells = table(74, 700, ("House", "Room"), font="F2") + words(74, 680, "North")
    assert text_of(grid + cells + words(164, 686, "Blue") + words(164, 672, "Red")) == (
        "House: North; Room: Blue\nHouse: North; Room: Red"
    )


def test_a_shading_within_a_box_of_its_colour_is_no_cell():
    """As Word draws it: each cell's box, and a box around each of its lines."""
    rows = (("Room", "Seats"), ("Blue", "12"), ("Green", "40"))
    grid = "".join(rule(x, y, x + 90, y) for x in (70, 160) for y in (711, 683, 669, 655))
    grid += "".join(rule(x, 711, x, 655) for x in (70, 160, 250))
    shades = "".join(box(x, 683, 90, 28) + box(x + 6, 697, 78, 14) for x in (70, 160))
    names = words(80, 700, "Room") + words(80, 686, "name") + words(170, 700, "Seats")
    text = text_of(shades + grid + names + table(74, 672, *rows[1:]))
    assert text == "Room name: Blue; Seats: 12\nRoom name: Green; Seats: 40"


def test_shadings_within_a_box_are_no_cells_however_many_they_are():
    shades = "".join(box(76, 690 - 7 * n, 84, 6) for n in range(80))
    with pypdfium2.PdfDocument(pdf_of([content(box(70, 100, 300, 630) + shades)])) as pdf:
        assert len(PageReader().read(pdf[0]).rules) == 4


def test_rules_within_a_frame_that_is_one_path_are_rules():
    rows = (("Room", "Seats"), ("Blue", "12"), ("", "of 40"), ("Green", "40"))
    frame = "q 70 710 180 1 re 70 654 180 1 re 70 654 1 57 re 249 654 1 57 re f Q\n"
    rules = "".join(f"70 {y} 180 1 re f\n" for y in (696, 668)) + "160 654 1 57 re f\n"
    assert text_of(frame + rules + table(74, 700, *rows)) == (
        "Room: Blue; Seats: 12 of 40\nRoom: Green; Seats: 40"
    )


def test_amounts_with_words_below_names_are_no_head():
    page = words(162, 714, "1994") + words(252, 714, "1997")
    rows = [("Lowest", "$9 or less", "$22 or less"), ("Middle", "$10 - $17", "$23 - $29")]
    page += table(72, 700, *rows, ("Highest", "$18 - $99", "$30 - $99"))
    assert text_of(page).splitlines()[:2] == [
        "Lowest; 1994: $9 or less; 1997: $22 or less",
        "Middle; 1994: $10 - $17; 1997: $23 - $29",
    ]


def test_a_table_without_rules_is_seen_by_its_columns():
    page = table(72, 700, ("State", "2009", "2010"), ("Iowa", "1,210", "1,350"),
                 ("Ohio", "4,020", "4,115"), ("Utah", "980", "1,003"))  # fmt: skip
    assert text_of(page) == (
        "State: Iowa; 2009: 1,210; 2010: 1,350\n"
        "State: Ohio; 2009: 4,020; 2010: 4,115\n"
        "State: Utah; 2009: 980; 2010: 1,003"
    )


def test_keys_side_by_side_have_the_lines_below_them():
    rows = [("Applicant:", "Agent:"), ("Ann Day", "Bo Low"), ("12 High Street", "Old House"),
            ("Ulm", "Bonn")]  # fmt: skip
    page = words(72, 740, "Approved") + table(72, 700, *rows)
    assert text_of(page).splitlines()[-1] == (
        "Applicant: Ann Day 12 High Street Ulm; Agent: Bo Low Old House Bonn"
    )


def test_lines_that_are_all_titles_are_no_table():
    page = "".join(words(x, 700, name, size=14) for x, name in ((72, "A"), (180, "B"), (300, "C")))
    for y in (684, 672):
        page += words(72, y, "words that go over both of the columns") + words(300, y, "12")
    assert text_of(page).split()[:5] == ["A", "B", "C", "words", "that"]


def test_an_indented_label_has_the_one_above_before_it():
    page = table(72, 700, ("Group", "2009", "2010"), ("Adults", "12", "13"))
    page += table(78, 674, ("Men", "5", "6"), ("Women", "7", "7"))
    assert text_of(page).splitlines() == [
        "Group: Adults; 2009: 12; 2010: 13",
        "Group: Adults, Men; 2009: 5; 2010: 6",
        "Group: Adults, Women; 2009: 7; 2010: 7",
    ]


def test_a_name_over_the_middle_of_columns_is_joined_with_theirs():
    page = words(205, 714, "Sales") + words(375, 714, "Returns")
    page += table(72, 700, ("State", "Q1", "Q2", "Q1", "Q2"), ("Iowa", "12", "13", "1", "2"),
                  ("Ohio", "40", "41", "4", "3"), ("Utah", "9", "10", "0", "1"))  # fmt: skip
    assert text_of(page).startswith(
        "State: Iowa; Sales Q1: 12; Sales Q2: 13; Returns Q1: 1; Returns Q2: 2\n"
    )


def test_a_cell_of_several_lines_is_one():
    def row(y, name, *description):
        return words(72, y, name) + lines(172, y, *description)

    names = words(72, 700, "Item", font="F2") + words(172, 700, "Description", font="F2")
    page = names + row(680, "Tuition", "What a course costs, which",
               "varies from school to school.") + row(644, "Fees", "These depend on the school",
               "that you attend.") + row(608, "Room", "Rent and food.")  # fmt: skip
    assert text_of(page) == (
        "Item: Tuition; Description: What a course costs, which varies from school to school.\n"
        "Item: Fees; Description: These depend on the school that you attend.\n"
        "Item: Room; Description: Rent and food."
    )


def test_dots_that_lead_to_a_number_are_no_text():
    page = lines(72, 700, *(f"{name} . . . . . . ." for name in ("Fraud", "Arson", "Theft")))
    page += lines(300, 700, "14", "25", "36")
    assert text_of(page) == "Fraud: 14\nArson: 25\nTheft: 36"


def test_a_table_of_contents_is_left_out():
    rows = [("Welcome", "1"), ("Days off", "1"), ("Pay", "2"), ("Travel", "2"), ("Index", "3")]
    page = words(72, 730, "Table of Contents", size=14) + table(72, 700, *rows)
    assert text_of(page, lines(72, 700, "Welcome to us.")) == "Table of Contents\n\nWelcome to us."
    days = [("Years", "Days off"), ("1", "10"), ("5", "15"), ("9", "20"), ("12", "25")]
    text = text_of(lines(72, 730, "How many days off:") + table(72, 700, *days))
    assert text.endswith("Years: 12; Days off: 25")


def test_contents_without_a_heading_are_known_by_the_dots_before_their_pages():
    names = ("Scope", "Fees", "Members", "Meetings")
    listed = lines(72, 700, *(f"{name}.........{n}" for n, name in enumerate(names[:3], 1)))
    apart = lines(72, 664, "Meetings . . . . . .") + words(300, 664, "3")
    body = [lines(72, 700, f"What is said of {name}.") for name in names[:2]]
    assert text_of(listed + apart, *body) == "What is said of Scope.\n\nWhat is said of Fees."
    prices = lines(72, 700, *(f"{name}.........{n}" for n, name in enumerate(names, 1)))
    assert "Meetings" in text_of(prices)
    form = lines(72, 700, *(f"{n} {name}.........{n}" for n, name in enumerate(names[:3], 1)))
    assert all(name in text_of(form, *body) for name in names[:3])


def test_contents_in_a_ruled_table_are_left_out_too():
    rows = (("Scope", "1"), ("Fees", "2"), ("Members", "2"))
    grid = "".join(rule(70, 711 - 14 * n, 250, 711 - 14 * n) for n in range(4))
    grid += "".join(rule(x, 711, x, 669) for x in (70, 160, 250)) + rule(70, 704, 80, 704)
    page = words(72, 740, "Contents", size=14) + grid + table(74, 700, *rows)
    assert text_of(page, words(72, 700, "Fees are due.")) == "Contents\n\nFees are due."
    page = words(72, 740, "Rooms", size=14) + grid + table(74, 700, *rows)
    assert text_of(page) == "Rooms\nScope: 1\nFees: 2\nMembers: 2"


def test_a_table_goes_on_over_a_page_below_its_head():
    def page(*rows: tuple[str, ...]) -> str:
        edges = [711 - 14 * n for n in range(len(rows) + 1)]
        grid = "".join(rule(70, y, 250, y) for y in edges)
        grid += "".join(rule(x, 711, x, edges[-1]) for x in (70, 160, 250))
        return grid + table(74, 700, *rows)

    pages = (
        page(("Room", "Seats"), ("Blue", "12"), ("Green", "40")),
        page(("Red", "5"), ("Ivy", "9")),
    )
    assert text_of(*pages).splitlines()[2:] == ["", "Room: Red; Seats: 5", "Room: Ivy; Seats: 9"]


def test_names_at_a_pages_end_are_those_of_the_rows_on_the_next():
    rows = (("Blue", "A", "12"), ("Red", "B", "7"), ("Ivy", "C", "9"))
    first = lines(72, 740, *LEFT) + table(72, 100, ("Room", "Floor", "Seats"), font="F2")
    shown = [f"Room: {room}; Floor: {floor}; Seats: {seats}" for room, floor, seats in rows]
    assert text_of(first, table(72, 740, *rows)).splitlines()[-3:] == shown
    total = lines(72, 740, *LEFT) + table(
        72, 114, ("Sum", "D", "28"), ("All", "E", "28"), font="F2"
    )
    assert text_of(total, table(72, 740, *rows)).splitlines()[-1] == "Ivy; C; 9"


def test_an_underline_is_no_rule_and_a_space_between_cells_is_no_row():
    rows = (("Room", "Seats"), ("Blue", "12"), ("Green hall", "40"))
    page = "".join(box(x, 690 - 25 * n, 85, 20) for n in range(3) for x in (70, 160))
    page += rule(70, 710, 70, 640) + rule(70, 710, 245, 710) + rule(245, 710, 245, 640)
    for n, (room, seats) in enumerate(rows):
        page += words(74, 702 - 25 * n, room) + words(164, 702 - 25 * n, seats)
    page += words(74, 643, "of the town") + rule(74, 650.5, 150, 650.5)
    assert text_of(page) == "Room: Blue; Seats: 12\nRoom: Green hall of the town; Seats: 40"


def test_a_columns_name_may_be_turned():
    page = "".join(rule(70, y, 240, y) for y in (711, 640, 626, 612))
    page += "".join(rule(x, 711, x, 612) for x in (70, 160, 200, 240))
    page += words(74, 643, "Room", font="F2") + words(74, 630, "Blue") + words(74, 616, "Red")
    for x, name in ((180, "Seats"), (220, "Has a desk")):
        page += f"BT /F2 10 Tf 0 1 -1 0 {x} 644 Tm ({name}) Tj ET\n"
    page += words(174, 630, "12") + words(174, 616, "7") + lines(72, 560, *LEFT)
    rows = ["Room: Blue; Seats: 12", "Room: Red; Seats: 7"]
    assert text_of(page).splitlines()[:2] == rows
    assert text_of(page).endswith("\n\nHas a desk")
    page += words(214, 616, "x")
    assert text_of(page).splitlines()[:2] == [rows[0], f"{rows[1]}; Has a desk: x"]


def test_a_border_in_parts_is_one_rule():
    """As some programs draw it: the part below a row's rule is too short to be a rule."""
    rows = (("Room", "Seats"), ("Blue", "12"), ("Green", "40"))
    page = "".join(rule(70, 711 - 20 * n, 250, 711 - 20 * n) for n in range(4))
    page += "".join(
        rule(x, 705 - 20 * n, x, 691 - 20 * n) for x in (70, 160, 250) for n in range(3)
    )
    for n, (room, seats) in enumerate(rows):
        page += words(74, 697 - 20 * n, room) + words(164, 697 - 20 * n, seats)
    assert text_of(page) == "Room: Blue; Seats: 12\nRoom: Green; Seats: 40"


def test_a_ruled_row_of_a_label_and_a_long_list_is_no_table():
    def page(*texts: str) -> str:
        painted = "".join(rule(70, y, 400, y) for y in (711, 690, 500))
        painted += "".join(rule(x, 711, x, 500) for x in (70, 160, 400))
        painted += words(74, 697, "Topic", font="F2") + words(164, 697, "Notes", font="F2")
        return painted + words(74, 680, "Fees") + lines(164, 680, *(f"• {one}." for one in texts))

    short, long = page("Due in May", "Paid by card"), page(*LEFT, *RIGHT, *LEFT)
    assert text_of(short) == "Topic: Fees; Notes: • Due in May. • Paid by card."
    assert f"\n- {RIGHT[0]}.\n- {RIGHT[1]}." in text_of(long)


def test_a_cell_over_columns_may_have_no_name_for_the_first():
    rows = (("", "2030", "2031"), ("Ulm", "12", "14"), ("Bonn", "7", "9"))
    grid = "".join(rule(70, 711 - 14 * n, 340, 711 - 14 * n) for n in range(4))
    grid += "".join(rule(x, 697, x, 669) for x in (160, 250)) + rule(70, 711, 70, 669)
    page = grid + rule(340, 711, 340, 669) + table(74, 700, *rows)
    assert text_of(page) == "Ulm; 2030: 12; 2031: 14\nBonn; 2030: 7; 2031: 9"


def test_columns_below_a_wide_head_are_read_one_after_the_other():
    news = "News of the town for all who live in it, of the month of May in this year"
    head = words(72, 740, news)
    page = head + "".join(
        words(72, 700 - 12 * n, left) + words(320, 700 - 12 * n, right)
        for n, (left, right) in enumerate(zip(LEFT, RIGHT, strict=True))
    )
    assert text_of(page).split("\n\n")[1:] == [" ".join(LEFT), " ".join(RIGHT)]


def test_a_sentence_goes_on_over_a_page_without_what_stands_between():
    def page(number, *body):
        foot = words(72, 40, "Annual report of the society") + words(500, 40, str(number))
        return lines(72, 700, *body) + foot

    text = text_of(
        page(1, "The museum was founded by a few", "friends of the railway who had col-"),
        page(2, "lected engines for years. It is open", "on Sundays, which is all that can be"),
        page(3, "said of it by those who know it as"),
    )
    assert text == (
        "Annual report of the society 1\n\n"
        "The museum was founded by a few friends of the railway who had collected engines for "
        "years. It is open on Sundays, which is all that can be said of it by those who know it as"
    )


def test_a_notes_mark_is_no_part_of_a_number():
    page = words(72, 700, "In 2010, 56.7 million people") + words(203, 704, "8", size=6)
    page += words(210, 700, "lived on 10") + words(262, 704, "6", size=6)
    page += words(268, 700, "square miles.")
    assert text_of(page) == "In 2010, 56.7 million people lived on 10^6 square miles."


def test_a_number_at_a_lines_beginning_is_no_item():
    sentences = "Applications must have reached the office by June", "30. Later ones wait a year."
    assert text_of(lines(72, 700, *sentences)) == " ".join(sentences)


def test_lists_have_their_marks_and_depths():
    page = lines(72, 700, "1. Bring a coat.", "2. Bring boots:") + lines(
        90, 676, "a. of leather, or", "b. of rubber."
    )
    page += lines(72, 652, "3. Bring food.")
    assert text_of(page) == (
        "1. Bring a coat.\n2. Bring boots:\n  a. of leather, or\n  b. of rubber.\n3. Bring food."
    )


def test_items_of_an_outer_list_go_on_below_an_inner_one():
    page = lines(72, 700, "1.Bring boots:") + lines(90, 688, "a. of leather, for which see")
    page += lines(108, 676, "i. the shop, or") + lines(105.5, 664, "ii. the market;")
    page += lines(90, 652, "b. of rubber.") + lines(72, 640, "2.Bring food.")
    assert text_of(page) == (
        "1. Bring boots:\n  a. of leather, for which see\n    i. the shop, or\n"
        "    ii. the market;\n  b. of rubber.\n2. Bring food."
    )


def test_an_item_goes_on_below_its_text_after_a_full_stop():
    page = lines(72, 700, "1. Be at your place of work at nine every day.") + lines(
        90, 688, "Later arrivals are noted in the book."
    )
    assert text_of(page + lines(72, 676, "2. Wear your badge.")) == (
        "1. Be at your place of work at nine every day. Later arrivals are noted in the book.\n"
        "2. Wear your badge."
    )


def test_a_number_begins_a_line_where_the_one_above_has_room():
    last = "9:15 - First circle, in which all that the day will bring is told"
    page = lines(72, 700, "7:30 - Before care", "9:00 - Breakfast", last)
    assert text_of(page).splitlines() == ["7:30 - Before care", "", "9:00 - Breakfast", "", last]


def test_lines_of_scripts_without_spaces_are_joined_without_one():
    assert joined(["国民の食", "の安全", "Plan A", "の"]) == "国民の食の安全 Plan A の"
    assert NUMBERED.sub(r"\g<number>", "（１）") == "１"  # noqa: RUF001, wide signs


def test_an_o_that_is_set_apart_is_a_bullet():
    page = "".join(
        words(72, 700 - 12 * n, "o") + words(90, 700 - 12 * n, text)
        for n, text in enumerate(("Fire doors", "Exits", "Lamps"))
    )
    assert text_of(page) == "- Fire doors\n- Exits\n- Lamps"
    assert text_of(lines(72, 700, "o homem que veio", "o carro dele")) == (
        "o homem que veio o carro dele"
    )


def test_a_line_of_each_record_is_no_running_head():
    record = ("Kind of survey: yearly", "The birds on the island are counted.")
    page = "".join(lines(72, y, *record) for y in range(740, 140, -100))
    assert text_of(page, page, page).count("Kind of survey: yearly") == 18


def test_a_running_foot_of_several_lines_is_kept_in_its_order():
    foot = lines(72, 60, "The old town hall", "Open from nine to five")
    text = text_of(lines(72, 700, "One.") + foot, lines(72, 700, "Two.") + foot)
    assert text == "The old town hall\n\nOpen from nine to five\n\nOne.\n\nTwo."


def test_a_table_of_words_whose_head_alone_is_set_apart_has_rows():
    rows = (("Pinus", "nigra"), ("Abies", "alba"), ("Larix", "decidua"), ("Taxus", "baccata"))
    names = ("Genus", "Species", "Code")
    page = table(72, 720, names)
    for n, row in enumerate(rows):
        page += table(72, 700 - 12 * n, (*row, row[0][:2].upper()))
    assert text_of(page).splitlines() == [
        "Genus: Pinus; Species: nigra; Code: PI", "Genus: Abies; Species: alba; Code: AB",
        "Genus: Larix; Species: decidua; Code: LA", "Genus: Taxus; Species: baccata; Code: TA",
    ]  # fmt: skip


def test_short_lines_that_each_begin_and_end_are_paragraphs():
    prose = "The office of the society is open in the mornings of all days but Sunday"
    names = ("Ann Lee, president", "Bob Roy, secretary", "12 High Street", "Ulm")
    page = lines(72, 700, prose, "and may be reached by letter.") + lines(72, 660, *names)
    assert text_of(page).splitlines()[2:] == [
        "Ann Lee, president", "", "Bob Roy, secretary", "", "12 High Street", "", "Ulm"
    ]  # fmt: skip


def test_texts_that_touch_are_one_word_though_pdfium_breaks_the_line_between():
    page = words(72, 700, "Room ") + words(104, 700, "1") + words(109.56, 704, "st", size=5.5)
    data = pdf_of([content(page)])
    assert pypdfium2.PdfDocument(data)[0].get_textpage().get_text_range() == "Room 1\r\nst"
    assert read(data).text == "Room 1st"


def test_letters_that_are_spaced_out_are_words():
    assert text_of(words(72, 700, "M A I N   W A L L")) == "MAIN WALL"
    assert text_of(words(72, 700, "Marks are A B C D E")) == "Marks are A B C D E"


def test_large_and_bold_lines_are_headings():
    page = words(72, 720, "Opening hours", size=16) + lines(72, 700, *LEFT)
    page += words(72, 640, "Holidays", font="F2") + lines(72, 626, *RIGHT)
    document = read(pdf_of([content(page)]))
    assert [(h.level, h.text) for h in document.headings] == [(1, "Opening hours"), (2, "Holidays")]


def test_a_sections_number_is_apart_from_its_heading():
    page = words(72, 720, "1.2", size=16) + words(94, 720, "What is new", size=16, font="F2")
    assert text_of(page + lines(72, 700, *LEFT)).startswith("1.2 What is new\n\nThe committee")


def test_a_page_that_is_turned_is_read_as_it_is_shown():
    painted = "".join(
        f"BT /F1 10 Tf 0 1 -1 0 {100 + 12 * n} 72 Tm ({line}) Tj ET\n"
        for n, line in enumerate(LEFT)
    )
    expected = " ".join(LEFT)
    assert read(pdf_of([content(painted)], page_entries="/Rotate 90")).text == expected
    assert read(pdf_of([content(painted)])).text == expected


def test_a_forms_values_and_notes_are_read():
    page = [content(words(72, 700, "Name:"))]
    first = number_after(page)
    box = "/BBox [0 0 100 12] /Type /XObject /Subtype /Form /Resources 6 0 R"
    value = stream(b"BT /F1 10 Tf 2 3 Td (Ada Lovelace) Tj ET", box)
    note = stream(b"BT /F1 10 Tf 2 3 Td (Sign here) Tj ET", box)
    objects = (
        b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (name) /V (Ada Lovelace) /F 4"
        b" /Rect [110 697 210 709] /AP << /N %d 0 R >> >>" % (first + 1),
        value,
        b"<< /Type /Annot /Subtype /FreeText /Contents (Sign here) /F 4"
        b" /Rect [72 600 172 612] /AP << /N %d 0 R >> >>" % (first + 3),
        note,
    )
    data = pdf_of(
        page,
        page_entries=f"/Annots [{first} 0 R {first + 2} 0 R]",
        form=f"/AcroForm << /Fields [{first} 0 R] >>",
        more=objects,
    )
    assert read(data).text == "Name: Ada Lovelace\n\nSign here"


def test_a_ligature_that_the_file_names_by_its_last_letter_is_whole():
    page = [content(lines(72, 700, "it is in the \x01le o\x02ce \x03e hill", font="F3"))]
    first = number_after(page)
    widths = " ".join(str({1: 500, 2: 833, 3: 1100}.get(code, 500)) for code in range(97))
    rest = "556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 278"
    mapping = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /M def"
        b" /CMapType 2 def 1 begincodespacerange <00> <FF> endcodespacerange"
        b" 4 beginbfrange <01> <02> <0069> <02> <02> <0069> <03> <03> <0068> <20> <7A> <0020>"
        b" endbfrange endcmap end end"
    )
    font = (
        f"<< /Type /Font /Subtype /TrueType /BaseFont /Corporate /FirstChar 0 /LastChar 116"
        f" /Widths [{widths} {rest}] /ToUnicode {first + 1} 0 R >>"
    )
    assert read(pdf_of(page, more=(font.encode(), stream(mapping)))).text == (
        "it is in the file office The hill"
    )


def test_a_word_that_is_spaced_out_has_no_ligatures():
    plain = lines(72, 700, "the nights that he is first in are long; it is a shift after hills")
    page = [content(plain, words(72, 680, "Weihnachtsfeier)", font="F3"))]
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding"
    wide = f"{font} /FirstChar 32 /LastChar 126 /Widths [{95 * '800 '}] >>"
    assert read(pdf_of(page, more=(wide.encode(),))).text.endswith("Weihnachtsfeier)")


def test_a_documents_blocks_know_their_page():
    rows = (("State", "2009"), ("Iowa", "1,210"), ("Ohio", "4,020"))
    document = read(pdf_of([content(lines(72, 700, *LEFT)), content(table(72, 700, *rows))]))
    assert [block.page for block in document.blocks] == [1, 2, 2]


def test_a_drawings_lines_are_no_table():
    crosses = "".join(
        rule(x, y, x + 9, y) + rule(x, y, x, y + 9)
        for x in range(0, 600, 6)
        for y in range(0, 600, 6)
    )
    assert text_of(crosses + words(72, 700, "A map")) == "A map"


@pytest.mark.parametrize("count", [1, 40])
def test_the_first_of_the_running_heads_is_kept(count):
    pages = [lines(72, 760, "Handbook") + lines(72, 700, *LEFT) for _ in range(count)]
    assert text_of(*pages).count("Handbook") == 1


def test_bold_lines_with_numbers_are_headings_and_bold_items_are_items():
    page = words(72, 720, "1. Object And Definitions", size=12, font="F2")
    page += words(72, 700, "1.1 Purpose.", font="F2") + lines(72, 680, *LEFT)
    page += words(72, 600, "2. Meetings", size=12, font="F2") + lines(72, 580, *RIGHT)
    page += words(72, 500, "1. Masks", font="F2") + words(72, 486, "2. Gloves", font="F2")
    page += lines(72, 466, *LEFT)
    document = read(pdf_of([content(page)]))
    assert [(one.text, one.level) for one in document.headings] == [
        ("1. Object And Definitions", 1), ("1.1 Purpose.", 2), ("2. Meetings", 1),
    ]  # fmt: skip
    assert "\n1. Masks\n2. Gloves\n" in document.text


def test_rows_of_many_cells_may_be_far_apart():
    def row(y: float, *cells: str) -> str:
        return "".join(words(72 + 90 * n, y, cell) for n, cell in enumerate(cells))

    page = row(700, "", "Budget", "Spent", "Left", "Due") + row(660, "Land", "48", "40", "8", "3")
    page += row(645, "Earlier", "36", "30", "6", "1") + row(600, "Sales", "17", "9", "8", "2")
    assert text_of(page) == (
        "Land; Budget: 48; Spent: 40; Left: 8; Due: 3\n"
        "Earlier; Budget: 36; Spent: 30; Left: 6; Due: 1\n"
        "Sales; Budget: 17; Spent: 9; Left: 8; Due: 2"
    )


def test_a_table_has_the_names_of_the_one_above_if_its_columns_are_the_same():
    def ruled(top: float, *rows: tuple[str, ...], right: float = 340) -> str:
        edges = [top + 11 - 14 * n for n in range(len(rows) + 1)]
        rules = "".join(rule(70, y, right, y) for y in edges)
        rules += "".join(rule(x, edges[0], x, edges[-1]) for x in (70, 160, 250, right))
        return rules + table(74, top, *rows)

    first = ruled(
        700, ("What", "When", "Minutes"), ("Lunch", "12:00", "45"), ("Talk", "13:00", "60")
    )
    rows = (("Closing", "15:00", "30"), ("Thanks", "15:30", "5"))
    second = words(74, 630, "Day 2") + ruled(600, *rows)
    assert text_of(first + second).endswith(
        "What: Closing; When: 15:00; Minutes: 30\nWhat: Thanks; When: 15:30; Minutes: 5"
    )
    assert "When: 15:00" not in text_of(
        first + words(74, 630, "Day 2") + ruled(600, *rows, right=390)
    )
    named = (("Place", "Seats", "Floor"), ("Hall", "80", "1"), ("Attic", "12", "3"))
    assert text_of(first + ruled(600, *named)).endswith("Place: Attic; Seats: 12; Floor: 3")


def test_items_below_one_another_are_rows_though_others_are_set_apart():
    page = words(72, 700, "Others are to be paid here")
    items = (686, "3. Medical"), (674, "4. Board"), (662, "5. Panes"), (650, "6. All")
    for y, name in (*items, (626, "Tuition"), (600, "Food")):
        page += words(72, y, name) + words(250, y, f"N{y} each")
    assert "3. Medical: N686 each\n4. Board: N674 each\n5. Panes: N662 each" in text_of(page)


def test_two_records_of_a_page_are_no_running_foot():
    def record(y: int, number: int) -> str:
        return words(72, y, f"Class {number}{y}") + words(72, y - 40, f"Total N79, {number}50 :00")

    read = text_of(*(record(700, number) + record(301, number) for number in range(1, 5)))
    assert [read.count(f"Total N79, {n}50 :00") for n in range(1, 5)] == [2, 2, 2, 2]
