"""What long documents have: clauses, running heads, tables on several pages."""

import pytest

from tests.unit.retrieval.formats import reading
from tests.unit.retrieval.formats.pdf_files import content, lines, pdf_of, rule, words

PROSE = (
    "The committee met in spring and agreed on a new way of counting the",
    "visitors that come to the old town hall in each of the months.",
)


def text_of(*pages: str) -> str:
    return reading.read("a.pdf", pdf_of([content(page) for page in pages])).text


def row(y: float, *cells: tuple[float, str]) -> str:
    return "".join(words(x, y, cell) for x, cell in cells)


def test_clauses_whose_numbers_stand_apart_are_no_table():
    page = ""
    for n, number in enumerate(("4.1.", "4.1.1.", "4.2.")):
        page += words(72, 700 - 40 * n, number) + lines(140, 700 - 40 * n, *PROSE)
    clause = " ".join(PROSE)
    assert text_of(page) == f"4.1. {clause}\n\n4.1.1. {clause}\n\n4.2. {clause}"


@pytest.mark.parametrize("marks", [("A.", "B.", "C.", "D."), ("3.1", "•", "•", "3.2")])
def test_items_whose_marks_stand_apart_are_no_table(marks):
    texts = ("Low voltage", "Long refresh time", "Flexible", "Friendly")
    placed = [(100 if mark == "•" else 72, mark) for mark in marks]
    page = "".join(
        row(700 - 14 * n, mark, (150, text))
        for n, (mark, text) in enumerate(zip(placed, texts, strict=True))
    )
    shown = [line for line in text_of(page).splitlines() if line]
    assert [line.replace("-", "•").split()[0] for line in shown] == list(marks)


def test_a_large_line_that_most_pages_begin_with_is_a_running_head():
    head = words(72, 760, "Secretary of State", size=18)
    pages = [head + lines(72, 700, f"County {n}.", *PROSE) for n in range(4)]
    assert text_of(*pages).count("Secretary of State") == 1


def test_a_caption_and_a_record_at_pages_ends_are_no_running_heads():
    record = "Survey record: surveys/{} is kept for the years to come"
    pages = []
    for n in range(5):
        records = (lines(72, y, record.format(n * 900 + y), *PROSE) for y in range(700, 300, -90))
        pages.append(words(72, 740, f"Table {n + 1}: What is counted") + "".join(records))
    text = text_of(*pages)
    assert [text.count(f"Table {n + 1}:") for n in range(5)] == [1] * 5
    assert text.count("Survey record") == 25


def test_a_line_below_others_that_only_this_page_has_is_no_running_head():
    pages = [
        lines(72, 740, f"Event {name}", f"Place: {name}", "Rules of the event:", *PROSE)
        + lines(72, 400, f"The {name} ends at noon.", f"Ask for the {name} officer.")
        for name in ("relay", "rifle", "march", "swim")
    ]
    assert text_of(*pages).count("Rules of the event:") == 4
    assert text_of(*(words(72, 752, "Sports day") + page for page in pages)).count("Sports") == 1


def test_a_running_head_may_be_below_what_only_this_page_has():
    pages = [
        lines(72, 760, f"All of {name}", "The handbook")
        + lines(72, 700, *PROSE, f"It ends with {name}.")
        + lines(72, 60, "High Street", f"Form of {name}")
        for name in ("leave", "pay", "travel", "gifts")
    ]
    text = text_of(*pages)
    assert [text.count(head) for head in ("The handbook", "High Street", "All of")] == [1, 1, 4]


def test_contents_may_say_page_before_each_number():
    listed = words(72, 740, "Table of Contents", font="F2")
    for n, name in enumerate(("Dues", "Privacy", "Plant sales", "Reports")):
        listed += row(700 - 14 * n, (72, f"{n + 1}. {name}........."), (300, f"Page {n + 1}"))
    pages = [lines(72, 700, f"What is said of {name}.") for name in ("dues", "privacy")]
    text = text_of(listed, *pages)
    assert text == "Table of Contents\n\nWhat is said of dues.\n\nWhat is said of privacy."


def test_two_entries_with_their_amounts_are_two_paragraphs():
    page = row(700, (72, "Liability insurance"), (300, "$943.00"))
    page += row(686, (72, "Licences and permits"), (300, "20.00"))
    shown = "Liability insurance $943.00\n\nLicences and permits 20.00"
    assert text_of(page + words(72, 600, "Total")).startswith(shown)


def table_of_taxa(first: int) -> str:
    names = (300, "Reef"), (370, "Base"), (440, "Middle"), (510, "Source")
    page = row(740, (72, "Taxon"), *names)
    for n in range(8):
        values = ((x, str(10 * n + x)) for x, _ in names)
        page += row(720 - 14 * n, (72, f"Kind {'abcdefghijklmnop'[first + n]}"), *values)
    return page


def test_columns_names_that_each_page_has_are_no_running_head():
    text = text_of(*(table_of_taxa(first) for first in (0, 4, 8)))
    assert text.count("Reef: ") == 24


def test_a_table_goes_on_in_the_columns_of_the_page_before():
    head = row(700, (72, "County"), (130, "Candidate"), (300, "Votes"), (355, "Percent"))
    rows = [((130, name), (300, f"1,{n}16"), (360, f"{n}4.5%")) for n, name in enumerate("ABCD")]
    first = head + words(72, 680, "BARTON", font="F2")
    first += "".join(row(660 - 15 * n, *cells) for n, cells in enumerate(rows))
    second = words(72, 720, "BOURBON", font="F2")
    second += "".join(row(700 - 15 * n, *cells) for n, cells in enumerate(rows))
    assert text_of(first, second).count("Candidate: C; Votes: 1,216; Percent: 24.5%") == 2


def test_a_power_is_no_mark_of_a_note():
    assert text_of(words(72, 700, "3x10") + words(93, 704, "11", size=6)) == "3x10^11"


def test_capital_letters_before_items_are_marks():
    texts = ("A. to be treated with respect;", "B. to be safe;", "C. to vote;")
    page = lines(72, 700, "The rights of all are:") + lines(90, 680, *texts)
    assert text_of(page).splitlines()[1:] == list(texts)
    bold = words(72, 700, "A. Wages", font="F2") + lines(72, 680, *PROSE)
    document = reading.read("a.pdf", pdf_of([content(bold)]))
    assert [one.text for one in document.headings] == ["A. Wages"]


def test_a_text_below_a_row_of_its_frame_is_no_cell():
    xs = (60, 180, 300, 420, 540)
    frame = "".join(rule(60, y, 540, y) for y in (760, 740, 100))
    frame += "".join(rule(x, 760, x, 740) for x in xs) + rule(60, 740, 60, 100)
    frame += rule(540, 740, 540, 100)
    head = row(746, *zip((64, 184, 304, 424), ("Methods", "2011", "Revised", "Page"), strict=True))
    text = text_of(frame + head + lines(80, 700, "A. Take your board.", *PROSE, *PROSE))
    assert "\nA. Take your board.\n" in text


def test_short_cells_painted_in_rows_are_no_columns():
    page = ""
    for n, (place, day) in enumerate((("Barn", "Mondays"), ("Green", "Fridays"))):
        y = 700 - 40 * n
        page += words(72, y, f"Summer market at the {place}") + words(400, y, f"{day}, 4-7 PM")
        page += words(72, y - 13, "One Place, Exeter, RI 02822") + words(
            400, y - 13, "Jun 3 - Aug 26"
        )
    assert "Summer market at the Barn: Mondays, 4-7 PM\n" in text_of(page)


def test_a_rule_says_which_columns_a_name_is_for():
    columns = (
        (170, "Habitat"),
        (240, "No."),
        (300, "Long"),
        (360, "Low"),
        (420, "Area"),
        (480, "Site"),
    )
    head = row(720, (282, "Survey of 9"), (470, "Place")) + rule(238, 715, 380, 715)
    head += rule(418, 715, 500, 715) + row(700, (72, "Platform"), *columns)
    body = "".join(
        row(680 - 14 * n, (72, name), (170, "Base"), *((x, f"{n}{x}") for x, _ in columns[1:]))
        for n, name in enumerate(("Irene", "Holly", "Gail"))
    )
    assert text_of(head + body).splitlines()[0] == (
        "Platform: Irene; Habitat: Base; Survey of 9 No.: 0240; Survey of 9 Long: 0300; "
        "Survey of 9 Low: 0360; Place Area: 0420; Place Site: 0480"
    )


def test_names_that_touch_are_cut_where_their_rules_end():
    columns = (200, "Min"), (260, "Max"), (320, "Low"), (380, "High")
    head = words(190, 720, "sizes in all the years weights in the years") + rule(190, 715, 281, 715)
    head += rule(284, 715, 400, 715) + row(700, (72, "Name"), *columns)
    body = "".join(
        row(680 - 14 * n, (72, name), *((x, f"{n}{x}") for x, _ in columns))
        for n, name in enumerate(("Irene", "Holly", "Gail"))
    )
    assert text_of(head + body).startswith("Name: Irene; sizes in all the years Min: 0200; ")


def test_a_rule_through_names_says_nothing_of_the_one_above_it():
    years = (380, "2019"), (440, "2020"), (500, "(2019)")
    head = row(707, (380, "Growth rate"), (500, "Gain")) + rule(180, 704, 470, 704)
    head += row(700, (72, "Name"), (200, "Apr 2019"), (290, "Apr 2020")) + row(694, *years)
    body = "".join(
        row(676 - 14 * n, (72, name), *((x, f"{n}{x}") for x in (200, 290, 380, 440)))
        for n, name in enumerate(("Irene", "Holly", "Gail"))
    )
    assert text_of(head + body).startswith(
        "Name: Irene; Apr 2019: 0200; Apr 2020: 0290; Growth rate"
    )


def test_rows_of_known_kinds_without_a_label_have_that_of_the_row_above():
    rows = (("Irene", "Base"), ("", "Midwater"), ("Holly", "Midwater"), ("Gail", "Base"))
    head = row(700, (72, "Site"), (160, "Habitat"), (260, "Surveys"), (330, "Depth"))
    body = "".join(
        row(
            680 - 14 * n,
            *([(72, site)] if site else []),
            (160, kind),
            (260, f"{n}2"),
            (330, f"{n}7"),
        )
        for n, (site, kind) in enumerate(rows)
    )
    assert "Site: Irene; Habitat: Midwater; Surveys: 12" in text_of(head + body)


def test_dots_that_touch_a_number_lead_to_it():
    rows = ("1. Driver, single ........$44.35 per hour", "2. Driver, doubles ....$44.80 per hour")
    page = lines(72, 700, *rows, "3. Sorters..............$43.48 per hour")
    assert text_of(page).splitlines() == [
        "1. Driver, single: $44.35 per hour", "2. Driver, doubles: $44.80 per hour",
        "3. Sorters: $43.48 per hour",
    ]  # fmt: skip
    assert text_of(words(72, 700, "How do we?.....How can we?")) == "How do we?.....How can we?"


def test_a_line_with_dots_is_an_entry_also_where_days_stand_wide_between():
    page, y = "", 700
    for day in ("Monday, March 2", "Tuesday, March 3"):
        page += words(200, y, day)
        for n, what in enumerate(("Doors open", "First round", "Lunch for all", "Final round")):
            page += words(72, y - 24 - 12 * n, f"{8 + n}:30 am ..............") + words(
                160, y - 24 - 12 * n, what
            )
        y -= 84
    assert text_of(page).count("First round") == 2
    assert "9:30 am: First round\n" in text_of(page)


def test_a_label_halfway_down_its_group_is_that_of_all_its_rows():
    page = row(720, (72, "Isolate"), (150, "Method"), (240, "Beetles"), (320, "Died"))
    ys = (700, 688, 670, 658, 646, 634)
    page += "".join(
        row(y, (150, f"Kind {n}"), (240, f"{n}1"), (320, f"{n}7")) for n, y in enumerate(ys)
    )
    page += words(72, 694, "PNG") + words(72, 652, "MALB")
    shown = text_of(page).splitlines()
    assert [line.partition(";")[0] for line in shown] == ["Isolate: PNG"] * 2 + [
        "Isolate: MALB"
    ] * 4


def test_the_last_cell_of_a_table_has_its_second_line():
    rows = (("1.", "A person of the city", "Chair"), ("2.", "A teacher", "Member"))
    page = "".join(
        row(700 - 16 * n, *zip((72, 110, 300), cells, strict=True))
        for n, cells in enumerate((*rows, ("3.", "A technologist who has", "Member")))
    )
    page += words(110, 656, "been a member before")
    assert text_of(page).splitlines() == [
        "1.; A person of the city; Chair", "2.; A teacher; Member",
        "3.; A technologist who has been a member before; Member",
    ]  # fmt: skip


def test_clauses_of_which_one_is_justified_are_no_table():
    page = words(72, 700, "1.1.1") + lines(120, 700, *PROSE)
    page += words(72, 660, "1.1.2") + lines(120, 660, *PROSE)
    texts = ("Probation.", "A", "warning", "given", "to", "a", "student", "whose")
    page += words(72, 620, "1.1.3")
    page += row(620, *zip((120, 180, 200, 255, 300, 325, 345, 400), texts, strict=True))
    page += words(120, 608, "performance falls below what is required of all students.")
    page += words(72, 580, "1.1.4") + lines(120, 580, *PROSE)
    assert "; " not in text_of(page)
    assert text_of(page).count("\n\n1.1.") == 3


def test_labels_in_the_middle_of_their_column_are_not_indented():
    rows = ((116, "Operating warmth", "-20", "60"), (121, "Storage warmth", "-40", "70"))
    edges = [711 - 14 * n for n in range(4)]
    page = "".join(rule(70, y, 400, y) for y in edges)
    page += "".join(rule(x, edges[0], x, edges[-1]) for x in (70, 240, 320, 400))
    page += row(700, (143, "Value"), (250, "Min"), (330, "Max"))
    for n, (left, label, low, high) in enumerate(rows, 1):
        page += row(700 - 14 * n, (left, label), (250, low), (330, high))
    assert text_of(page).splitlines()[-1] == "Value: Storage warmth; Min: -40; Max: 70"


def test_a_label_that_ends_open_goes_on_in_the_next_line():
    head = row(720, (72, "Name"), (260, "Survey"), (330, "Least"))
    page = head + row(700, (72, "Quietula y-cauda (Jenkins)"), (260, "64"), (330, "22"))
    page += words(72, 686, "Citharichthys (Jordan &")
    page += row(674, (82, "Gilbert, 1882)"), (260, "48"), (330, "17"))
    page += row(660, (72, "Pleuronichthys ritteri"), (260, "24"), (330, "78"))
    assert "Name: Citharichthys (Jordan & Gilbert, 1882); Survey: 48; Least: 17" in text_of(page)
