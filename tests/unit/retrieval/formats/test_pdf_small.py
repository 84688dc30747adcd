"""What small PDFs have: invoices' cards, statements' sections, agendas, menus, winners' lists."""

from tests.unit.retrieval.formats import reading
from tests.unit.retrieval.formats.pdf_files import content, pdf_of, rule, words

Cells = tuple[tuple[float, str], ...]


def text_of(*pages: str) -> str:
    return reading.read("a.pdf", pdf_of([content(page) for page in pages])).text


def row(y: float, *cells: tuple[float, str], font: str = "F1") -> str:
    return "".join(words(x, y, cell, font=font) for x, cell in cells)


def rows(top: float, *cells: Cells, step: float = 14) -> str:
    return "".join(row(top - step * n, *line) for n, line in enumerate(cells))


def test_values_in_bold_below_keys_are_theirs():
    page = row(700, (72, "Company"), (250, "Address"))
    page += row(686, (72, "Acme Ltd"), (250, "100 Test Street,"), font="F2")
    page += row(674, (250, "Cardiff"), font="F2")
    assert text_of(page) == "Company: Acme Ltd; Address: 100 Test Street, Cardiff"


def test_lines_of_one_style_below_each_other_are_no_keys():
    page = row(700, (72, "Ada Smith"), (250, "Bob Jones"))
    page += row(686, (72, "Treasurer"), (250, "Secretary"))
    assert "Ada Smith: " not in text_of(page)


def test_a_section_ends_where_rows_are_indented_no_more():
    page = row(714, (72, "Account"), (300, "2025"), (400, "Total"), font="F2")
    page += rows(
        700,
        ((72, "Expense"),),
        ((84, "Bank fees"), (300, "4.00"), (400, "4.00")),
        ((84, "Upkeep"),),
        ((96, "Mowing"), (300, "52.00"), (400, "52.00")),
        ((96, "Total for upkeep"), (300, "52.00"), (400, "52.00")),
        ((84, "Insurance"), (300, "21.75"), (400, "21.75")),
        ((72, "Net income"), (300, "77.75"), (400, "77.75")),
    )
    assert text_of(page).split("\n\n") == [
        "Expense\nAccount: Bank fees; 2025: 4.00; Total: 4.00",
        "Expense, Upkeep\nAccount: Mowing; 2025: 52.00; Total: 52.00\n"
        "Account: Total for upkeep; 2025: 52.00; Total: 52.00",
        "Expense\nAccount: Insurance; 2025: 21.75; Total: 21.75",
        "Account: Net income; 2025: 77.75; Total: 77.75",
    ]


def test_items_with_values_are_rows_of_an_agenda():
    page = rows(
        700,
        ((72, "I."), (110, "Call to Order")),
        ((110, "A. Attendance"), (400, "Bocarsly")),
        step=12,
    )
    page += rows(
        668,
        ((72, "II."), (110, "Allocations")),
        ((110, "A. Travel Grants"), (400, "El-Farra")),
        ((110, "B. Culture"), (400, "Mason")),
        step=12,
    )
    assert text_of(page).splitlines() == [
        "I.: Call to Order",
        "A. Attendance: Bocarsly",
        "II.: Allocations",
        "A. Travel Grants: El-Farra",
        "B. Culture: Mason",
    ]


def test_a_menus_descriptions_are_no_names_of_columns():
    page = rows(
        700,
        ((72, "Burritos"), (300, "One 7"), (360, "Two 9")),
        ((72, "Made with farm fresh eggs, our own salsa and cheese"),),
        ((72, "Casserole"), (300, "One 6"), (360, "Two 8")),
        ((72, "Served with your choice of meat or of vegetables"),),
        ((72, "Toast"), (365, "9")),
    )
    text = text_of(page)
    assert "Burritos; One 7; Two 9" in text or "Burritos: One 7; Two 9" in text
    assert "Toast: 9" in text


def test_dots_lead_to_values_not_to_names():
    page = rows(
        700,
        ((72, "Latte ..................... $4 (regular)"),),
        ((72, "Mocha ..................... $5 (regular)"),),
        ((72, "Espresso ................................ $3"),),
    )
    assert text_of(page).splitlines() == [
        "Latte: $4 (regular)",
        "Mocha: $5 (regular)",
        "Espresso: $3",
    ]


def test_ordinals_that_go_on_name_columns_and_a_row_may_say_the_same_of_each():
    lefts, tops = (72, 150, 290, 430, 570), [700 - 30 * n for n in range(9)]
    page = "".join(rule(72, top, 570, top) for top in tops)
    page += "".join(rule(left, tops[-1], left, tops[0]) for left in lefts)
    lines = (
        ("Race", "1st place", "2nd place", "3rd place"),
        ("", "Boat", "Boat", "Boat"),
        ("", "", "", ""),
        ("Open", "Seal", "Toro", "Eagle"),
        ("Junior", "Seal", "Eagle", "Trinket"),
        ("July", "Cancelled", "", ""),
        ("Coffin", "Seal", "Eagle", "Toro"),
        ("Late", "Toro", "Eagle", "Seal"),
    )
    for top, line in zip(tops, lines, strict=False):
        cells = [(left + 4, cell) for left, cell in zip(lefts, line, strict=False) if cell]
        page += row(top - 20, *cells, font="F2")
    assert text_of(page).splitlines()[0] == (
        "Race: Open; 1st place Boat: Seal; 2nd place Boat: Toro; 3rd place Boat: Eagle"
    )


def test_a_table_below_one_with_an_empty_row_is_read():
    lefts, page = (72, 200, 330), ""
    for top, first in ((700, ("Kind", "Price")), (560, ("Large", "$12.99"))):
        tops = [top - 20 * n for n in range(4)]
        page += "".join(rule(72, one, 330, one) for one in tops)
        page += "".join(rule(left, tops[-1], left, tops[0]) for left in lefts)
        for y, cells in ((top - 14, first), (top - 54, ("Small", "$10.99"))):
            page += row(y, (76, cells[0]), (204, cells[1]))
    assert "Large: $12.99" in text_of(page)


def test_a_line_that_names_the_values_below_it_begins_a_table():
    page = ""
    for top, office in ((700, "Mayor"), (560, "Clerk")):
        page += words(72, top, office, font="F2", size=12)
        page += rows(
            top - 20,
            ((72, "Precincts"), (200, "22")),
            ((72, "Reporting"), (200, "22"), (240, "100%")),
            ((72, "Votes"), (100, "1,636")),
            ((260, "Total"), (330, "Early"), (400, "Mail")),
            ((72, "Ada Smith"), (260, "763"), (330, "678"), (400, "85")),
            ((72, "Bob Jones"), (260, "844"), (330, "757"), (400, "87")),
        )
    assert text_of(page).count("\nBob Jones; Total: 844; Early: 757; Mail: 87") == 2


def test_lines_of_one_cell_between_rows_do_not_end_a_table():
    page = row(714, (72, "Date"), (140, "Activity"), (260, "Time"), (340, "Place"), font="F2")
    page += row(700, (72, "12th"), (140, "Games night"), (260, "7:30pm"), (340, "Hall"))
    for y, x, text in (
        (688, 340, "Reserve,"),
        (677, 340, "Airport West"),
        (665, 140, "Honey Eater"),
        (653, 140, "and Campfire"),
    ):
        page += words(x, y, text)
    page += row(639, (72, "26th"), (140, "Movie night"), (260, "8:00pm"), (340, "Cinema"))
    page += row(625, (72, "28th"), (140, "Car night"), (260, "9:00pm"), (340, "Garage"))
    assert "Date: 28th; Activity: Car night; Time: 9:00pm; Place: Garage" in text_of(page)


def test_lines_with_times_between_rules_are_rows_of_their_label():
    lefts, tops = (72, 120, 190, 240, 400), (720, 700, 650, 620)
    page = "".join(rule(72, top, 400, top) for top in tops)
    page += "".join(rule(left, 620, left, 700) for left in lefts) + rule(72, 620, 72, 720)
    page += rule(400, 620, 400, 720) + rule(240, 700, 240, 720)
    page += words(76, 706, "Sunday 30th June") + words(244, 706, "Intentions")
    for column, lines in (
        (76, ("Tues", "2nd")),
        (124, ("9.30am", "10am", "5.30pm")),
        (194, ("CTK", "CTK", "TT")),
        (244, ("Rosary", "Mass for Ada Smith", "Mass")),
    ):
        page += "".join(words(column, 688 - 14 * n, text) for n, text in enumerate(lines))
    page += row(630, (76, "Wed"), (124, "7.15am"), (194, "TT"), (244, "Mass"))
    shown = text_of(page).splitlines()
    assert shown[1] == "Sunday 30th June: Tues 2nd; 10am; CTK; Intentions: Mass for Ada Smith"
    assert shown[-1].endswith("Wed; 7.15am; TT; Intentions: Mass")


def test_times_in_lines_that_are_near_are_of_rows():
    texts = ("Nuts and Bolts", "Happy Hour", "Brown Bag", "Rovers", "Serendipity")
    page, y = "", 700
    for n, text in enumerate(texts):
        page += row(y, (72, f"{n + 1}:15p"), (120, text), (300, "(O, D)"))
        page += words(120, y - 10, f"{n + 10} Oak Bay Road, Port Hadlock")
        y -= 20 if n == 1 else 24
    shown = text_of(page).splitlines()
    assert shown[2] == "3:15p; Brown Bag 12 Oak Bay Road, Port Hadlock; (O, D)"
