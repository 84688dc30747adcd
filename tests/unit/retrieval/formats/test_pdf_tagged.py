"""What a file says of a PDF's contents: tables, headings and items that do not look like it."""

from collections.abc import Sequence

import pytest

from qa_service.retrieval.documents import Document
from tests.unit.retrieval.formats.pdf_files import Tagged, rule, tagged_pdf, words
from tests.unit.retrieval.formats.reading import read

LEFTS = (74, 164, 254)
PLAIN = "No room may be used for a night without a word to the warden"


def document(*pages: Sequence[Tagged]) -> Document:
    return read("a.pdf", tagged_pdf(*pages))


def text(kind: str, y: float, *lines: str, x: float = 74, font: str = "F1") -> Tagged:
    painted = (words(x, y - 12 * n, line, font=font) for n, line in enumerate(lines))
    return Tagged(kind, ["".join(painted)])


def row(y: float, *cells: str, lefts: Sequence[float] = LEFTS, head: bool = False) -> Tagged:
    """A row; lines of a cell are parted by slashes."""
    font, kind = ("F2", "TH") if head else ("F1", "TD")
    return Tagged("TR", [
        Tagged(kind, [text("P", y, *cell.split("/"), x=left, font=font)] if cell else [])
        for cell, left in zip(cells, lefts, strict=False)
    ])  # fmt: skip


def test_cells_of_several_lines_are_one_each():
    page = [
        text("P", 740, "What members pay:"),
        Tagged("Table", [
            row(700, "Kind", "Fee", "Place", head=True),
            row(680, "Family/with two/children", "240", "Kept for/a year"),
            row(630, "Child", "40", "None"),
        ]),
    ]  # fmt: skip
    assert document(page).text == (
        "What members pay:\n"
        "Kind: Family with two children; Fee: 240; Place: Kept for a year\n"
        "Kind: Child; Fee: 40; Place: None"
    )


def test_cells_that_are_left_out_shift_no_others():
    """A spreadsheet's program names none of the empty cells, and sums are at the right."""
    table = Tagged("Table", [
        row(700, "Room", "Seats", "Floor", head=True),
        row(686, "Blue", "12", lefts=(74, 254)),
        row(672, "Green", "40", "2"),
        row(658, "90", lefts=(164,)),
    ])  # fmt: skip
    assert document([table]).text == (
        "Room: Blue; Floor: 12\nRoom: Green; Seats: 40; Floor: 2\nSeats: 90"
    )


def test_tables_at_the_sides_of_empty_cells_are_one():
    """A spreadsheet's program names what is left and right of an empty cell one by one."""
    lefts = (*LEFTS, 344)
    left = Tagged("Table", [
        row(700, "Room", "Seats", head=True), row(686, "Blue", "12"), row(672, "Green", "40"),
    ])  # fmt: skip
    right = Tagged("Table", [
        row(700, "Floor", "Price", lefts=lefts[2:], head=True),
        row(686, "2", "75", lefts=lefts[2:]),
        row(672, "1", "90", lefts=lefts[2:]),
    ])  # fmt: skip
    assert document([left, right]).text == (
        "Room: Blue; Seats: 12; Floor: 2; Price: 75\nRoom: Green; Seats: 40; Floor: 1; Price: 90"
    )


def test_cells_go_over_columns_and_rows():
    over = [
        Tagged("TD", [text("P", 700, "Room", font="F2")], "/RowSpan 2"),
        Tagged("TD", [text("P", 700, "Seats", x=205, font="F2")], "/ColSpan 2"),
    ]
    table = Tagged("Table", [
        Tagged("TR", over),
        row(686, "Summer", "Winter", lefts=LEFTS[1:], head=True),
        row(672, "Blue", "12", "10"),
        row(658, "Green", "40", "38"),
    ])  # fmt: skip
    assert document([table]).text == (
        "Room: Blue; Seats Summer: 12; Seats Winter: 10\n"
        "Room: Green; Seats Summer: 40; Seats Winter: 38"
    )


def test_a_title_and_its_note_may_be_in_one_cell():
    note = "[In square metres. From the survey of the house.]"
    title = Tagged("TD", [text("P", 726, "Table 3. Rooms"), text("P", 714, note)], "/ColSpan 3")
    table = Tagged("Table", [
        Tagged("TR", [title]),
        row(700, "Room", "Seats", "Floor", head=True),
        row(686, "Blue", "12", "2"),
        row(672, "Green", "40", "1"),
    ])  # fmt: skip
    assert document([table]).text == (
        f"Table 3. Rooms\n\n{note}\n"
        "Room: Blue; Seats: 12; Floor: 2\nRoom: Green; Seats: 40; Floor: 1"
    )


def test_a_table_goes_on_over_a_page():
    first = [row(700, "Kind", "Fee", "Place", head=True), row(686, "Adult", "90", "Hall")]
    last = [row(700, "Child/under ten", "40", "Gym")]
    found = document([Tagged("Table", first)], [Tagged("Table", last)])
    assert found.text == (
        "Kind: Adult; Fee: 90; Place: Hall\n\nKind: Child under ten; Fee: 40; Place: Gym"
    )


def test_rules_say_which_cells_are_one():
    rows = [
        row(700, "Room", "Seats", head=True), row(686, "Blue", "12"), row(672, "", "14"),
        row(658, "Green", "40"),
    ]  # fmt: skip
    levels = [rule(70, y, 250, y) for y in (711, 697, 669, 655)] + [rule(160, 683, 250, 683)]
    upright = [rule(x, 711, x, 655) for x in (70, 160, 250)]
    page = [Tagged("Table", rows), Tagged("", [*levels, *upright])]
    assert document(page).text == (
        "Room: Blue; Seats: 12\nRoom: Blue; Seats: 14\nRoom: Green; Seats: 40"
    )


def test_what_only_arranges_texts_is_no_table():
    inner = Tagged("Table", [row(700, "Room", "Seats", head=True), row(686, "Blue", "12")])
    outer = Tagged("Table", [
        Tagged("TR", [Tagged("TD", [inner]), Tagged("TD", [text("P", 700, PLAIN[:30], x=300)])]),
        Tagged("TR", [Tagged("TD", [text("P", 640, "Open daily.")])]),
    ])  # fmt: skip
    assert "Room: Blue; Seats: 12" in document([outer]).text
    assert PLAIN[:30] not in document([outer]).text.partition("Room: Blue")[2].split("\n")[0]
    frame = [row(700, "Notes", "Dates"), row(640, "More", "Fewer")]
    strangers = Tagged("", [words(100, 680 - 12 * n, PLAIN[:30]) for n in range(3)])
    assert PLAIN[:30] in document([Tagged("Table", frame), strangers]).text


def test_a_heading_may_look_like_the_text():
    page = [
        text("H2", 740, "Rooms that the house has", "for guests"),
        text("P", 712, PLAIN, "of the house, who has the keys of all."),
        text("H2", 680, "Meals"),
        text("P", 666, "There are three a day."),
    ]
    headings = [part.text for part in document(page).headings]
    assert headings == ["Rooms that the house has for guests", "Meals"]


def test_items_marks_may_be_drawn_or_of_letters():
    drawn = [
        Tagged("LI", [Tagged("LBody", [text("P", y, item)])])
        for y, item in ((700, "Bring a coat"), (686, "Bring a lamp"), (672, "Leave the dog"))
    ]
    page = [text("P", 720, "For the walk:"), Tagged("L", drawn)]
    assert document(page).text == ("For the walk:\n- Bring a coat\n- Bring a lamp\n- Leave the dog")
    marked = [
        Tagged("LI", [text("Lbl", y, mark), Tagged("LBody", [text("P", y, item, x=110)])])
        for y, mark, item in ((700, "1.1.1", "The aims"), (686, "1.1.2", "The means"))
    ]
    assert document([Tagged("L", marked)]).text == "1.1.1 The aims\n1.1.2 The means"


def test_a_page_whose_lines_are_tagged_is_read_by_its_looks():
    lines = (PLAIN, "of the house, who has the keys of all,", "and must be asked for them a day",
             "ahead, in writing.")  # fmt: skip
    page = [text("LI", 740 - 12 * n, line) for n, line in enumerate(lines)]
    assert document(page).text == " ".join(lines)


@pytest.mark.parametrize("span", ["/ColSpan 1000000000", "/RowSpan 1000000000", "/ColSpan -4"])
def test_a_cell_that_goes_too_far_is_bounded(span):
    cells = [Tagged("TD", [text("P", 700, "Blue")], span)]
    cells += [Tagged("TD", [text("P", 700, "12", x=164)])]
    rows = [row(714, "Room", "Seats"), Tagged("TR", cells), row(686, "Red", "8")]
    found = document([Tagged("Table", rows)]).text
    assert all(word in found for word in ("Room", "Seats", "Blue", "12", "Red", "8"))


def test_deep_and_many_elements_are_bounded():
    deep: Tagged = text("P", 740, PLAIN)
    for _ in range(200):
        deep = Tagged("Div", [deep])
    cells = [row(700, *("x" for _ in range(200)), lefts=range(72, 272)) for _ in range(10)]
    found = document([deep, Tagged("Table", cells)])
    assert PLAIN in found.text
