"""Tables with rules in a PDF: what is drawn is not all a rule, and not all rules are drawn."""

from itertools import pairwise

from tests.unit.retrieval.formats.pdf_files import lines, rule, words
from tests.unit.retrieval.formats.test_pdf import box, table, text_of

LEFT, MIDDLE, RIGHT = 70, 160, 250


def grid(*edges: int, columns: tuple[int, ...] = (LEFT, MIDDLE, RIGHT), end: int = 0) -> str:
    """Rules at these heights, and between columns from the first to the last, or to an end."""
    level = "".join(rule(columns[0], y, columns[-1], y) for y in edges)
    return level + "".join(rule(x, edges[0], x, end or edges[-1]) for x in columns)


def test_what_marks_words_is_no_rule():
    rows = (("Room", "Seats"), ("Blue", "12"), ("Green", "40"))
    marked = box(74, 683.9, 20, 9.3) + box(74, 669.9, 27.8, 9.3)  # as high and long as the words
    assert text_of(marked + grid(711, 697, 683, 669) + table(74, 700, *rows)) == (
        "Room: Blue; Seats: 12\nRoom: Green; Seats: 40"
    )
    items = "".join(words(80, y, text) for y, text in ((700, "one"), (686, "two"), (672, "three")))
    bullets = "".join(words(72, y, "\u2022") for y in (700, 686, 672))
    marked = "".join(box(80, y - 2.1, width, 9.3) for y, width in ((700, 16.7), (686, 16.7)))
    assert text_of(marked + items + bullets) == "- one\n- two\n- three"


def test_items_in_a_cell_are_one_text():
    tasks = "".join(words(166, y, "-") + words(180, y, task) for y, task in (
        (686, "counts"), (672, "writes"), (658, "reads")))  # fmt: skip
    page = grid(711, 697, 655) + table(74, 700, ("Who", "What"), font="F2") + tasks
    page += words(74, 686, "Ada")
    assert text_of(page) == "Who: Ada; What: - counts - writes - reads"


def test_names_may_stand_above_the_rules():
    columns = (LEFT, MIDDLE, RIGHT, 340)
    rows = (("Room", "Seats", "Floor"), ("Blue", "12", "1"), ("Green", "40", "2"))
    below = grid(697, 683, 669, columns=columns)
    assert text_of(below + table(74, 700, *rows)) == (
        "Room: Blue; Seats: 12; Floor: 1\nRoom: Green; Seats: 40; Floor: 2"
    )
    ticked = words(74, 700, "Room") + words(164, 700, "Seats") + table(74, 686, *(
        row[:2] for row in rows[1:]))  # fmt: skip
    assert text_of(below + ticked) == "Room: Blue; Seats: 12\nRoom: Green; Seats: 40"
    above = words(74, 714, "Hall") + words(164, 714, "of") + words(254, 714, "1st")
    assert "of Seats" not in text_of(above + below + table(74, 700, *rows))


def test_a_last_row_may_have_no_rule_below_it():
    rows = (("Room", "Seats"), ("Blue", "12"), ("Green", "40"))
    assert text_of(grid(711, 697, 683, end=669) + table(74, 700, *rows)) == (
        "Room: Blue; Seats: 12\nRoom: Green; Seats: 40"
    )


def test_lines_that_stand_in_columns_are_parted_where_a_rule_is_missing():
    page = "".join(rule(LEFT, y, 340, y) for y in (711, 697, 669, 655))
    page += "".join(rule(x, 711, x, 655) for x in (LEFT, MIDDLE, 340))
    page += rule(RIGHT, 711, RIGHT, 697) + rule(RIGHT, 669, RIGHT, 655)
    rows = (("Time", "Talk", "By"), ("9:30", "Maps of", "Ada"), ("", "floods", "Lovelace"))
    assert text_of(page + table(74, 700, *rows, ("9:45", "Break", "all"))) == (
        "Time: 9:30; Talk: Maps of floods; By: Ada Lovelace\nTime: 9:45; Talk: Break; By: all"
    )


def test_a_row_goes_on_over_a_page():
    columns = (LEFT, MIDDLE, RIGHT, 340)

    def page(*rows: tuple[str, ...]) -> str:
        edges = [711 - 14 * n for n in range(len(rows) + 1)]
        return grid(*edges, columns=columns) + table(74, 700, *rows)

    head = ("Task", "Done when", "Shown by")
    first = page(head, ("Tests", "90 % of lines", "a report"), ("Style", "the guide", "a run"))
    for goes_on in (("", "holds", ""), ("", "", "of CI")):
        last = "the guide holds" if goes_on[1] else "the guide"
        by = "a run of CI" if goes_on[2] else "a run"
        assert text_of(first, page(head, goes_on, ("Deploy", "it starts", "a log"))) == (
            "Task: Tests; Done when: 90 % of lines; Shown by: a report\n"
            f"Task: Style; Done when: {last}; Shown by: {by}\n\n"
            "Task: Deploy; Done when: it starts; Shown by: a log"
        )
    begun = page(head, ("Tests", "Nine lines", "Report"), ("Style and", "All of the", "A run"))
    ended = page(("Form", "guide holds", ""), ("Deploy", "It starts", "A log"))
    assert text_of(begun, ended).splitlines()[1:] == [
        "Task: Style and Form; Done when: All of the guide holds; Shown by: A run", "",
        "Task: Deploy; Done when: It starts; Shown by: A log",
    ]  # fmt: skip
    assert text_of(first, page(("Deploy", "it starts", "a log"))).endswith(
        "Task: Deploy; Done when: it starts; Shown by: a log"
    )


def test_labels_in_the_middle_of_a_column_are_no_levels():
    rows = [("Toastmaster", 78), ("Joke Master", 80), ("Timer", 96), ("Ah Counter", 83)]
    page = grid(711, 697, 683, 669, 655, 641)
    page += table(74, 700, ("Role", "Who"), font="F2")
    for number, (name, x) in enumerate(rows):
        page += words(x, 686 - 14 * number, name) + words(164, 686 - 14 * number, f"p{number}")
    assert [line.partition(";")[0] for line in text_of(page).splitlines()] == [
        "Role: Toastmaster", "Role: Joke Master", "Role: Timer", "Role: Ah Counter"
    ]  # fmt: skip


def test_a_pages_paper_and_the_frame_around_it_are_no_tables():
    page = words(72, 730, "Rooms to let") + words(300, 600, "as of May") + grid(711, 697, 669, 641)
    page += table(
        74, 700, ("Room", "Seats"), ("Blue and", "12 of"), ("white", "oak"), ("Red", "40")
    )
    read = text_of(page)
    assert "Room: Blue and white; Seats: 12 of oak\nRoom: Red; Seats: 40\n\nas of May" in read
    paper = box(0, 0, 612, 792)
    bars = box(20, 20, 2, 752) + box(590, 20, 2, 752) + box(20, 20, 572, 2) + box(20, 770, 572, 2)
    for around in (paper, bars, paper + bars, "20 20 572 752 re S\n", "0 0 612 792 re S\n"):
        assert text_of(around + page) == read
    met = bars + rule(20, 700, 592, 700) + "".join(rule(x, 770, x, 22) for x in (220, 420))
    for y, row in ((740, ("Room", "Seats", "Floor")), (600, ("Blue", "12", "1"))):
        met += "".join(words(x, y, text) for x, text in zip((74, 320, 500), row, strict=True))
    assert text_of(met) == "Room: Blue; Seats: 12; Floor: 1"


def shaded(left: float, bottom: float, right: float, top: float) -> str:
    """A cell of one line as Word shades it: above, at the left and right, below, and the line."""
    parts = (
        (left, top - 3, right, top),
        (left, bottom + 3, left + 5, top - 3),
        (right - 5, bottom + 3, right, top - 3),
        (left, bottom, right, bottom + 3),
        (left + 5, bottom + 3, right - 5, top - 3),
    )
    return "".join(box(x1, y1, x2 - x1, y2 - y1) for x1, y1, x2, y2 in parts)


def test_a_cells_shading_in_parts_is_one():
    columns = (70, 160, 250, 340)
    edges = (720, 696, 672, 648)
    page = "".join(
        shaded(left + 0.5, bottom, right - 0.5, top)
        for left, right in pairwise(columns)
        for top, bottom in pairwise(edges[:3])
    )
    page += grid(*edges, columns=columns)
    cells = (("Room", "Seats", "Floor"), ("Blue", "12", "1"), ("Green", "40", "2"))
    for y, row in zip((704, 680, 656), cells, strict=True):
        page += table(76, y, row)
    assert text_of(page) == "Room: Blue; Seats: 12; Floor: 1\nRoom: Green; Seats: 40; Floor: 2"


def test_rules_between_rows_may_go_beyond_the_only_one_between_columns():
    edges = (711, 683, 655, 627, 599)
    page = rule(MIDDLE, edges[0], MIDDLE, edges[-1]) + rule(LEFT, edges[0], LEFT, edges[-1])
    page += "".join(rule(LEFT, y, 340 if y in edges[1:-1] else MIDDLE, y) for y in edges)
    for y, name, *text in ((700, "Cleaning", "All rooms are cleaned", "at our expense"),
                           (672, "Staging", "Furniture is lent", "for six weeks"),
                           (644, "Photos", "Taken by day", "and by night"),
                           (616, "Support", "From the visit", "to the keys")):  # fmt: skip
        page += (
            words(74, y - 5, name, font="F2") + words(164, y, text[0]) + words(164, y - 12, text[1])
        )
    assert text_of(page) == (
        "Cleaning: All rooms are cleaned at our expense\nStaging: Furniture is lent for six weeks\n"
        "Photos: Taken by day and by night\nSupport: From the visit to the keys"
    )


def test_a_turned_name_of_rows_is_with_each_of_them():
    columns = (50, LEFT, MIDDLE, RIGHT)
    page = "".join(rule(LEFT, y, RIGHT, y) for y in (711, 697, 683, 669, 655, 641))
    page += "".join(rule(50, y, LEFT, y) for y in (711, 697, 669, 641))
    page += "".join(rule(x, 711, x, 641) for x in columns)
    page += table(74, 700, ("Fee", "Amount"), font="F2")
    page += table(74, 686, ("Entry", "600"), ("Card", "150"), ("Books", "900"), ("Sports", "25"))
    page += "".join(
        f"BT /F1 8 Tf 0 1 -1 0 62 {y} Tm ({text}) Tj ET\n"
        for y, text in ((672, "Once"), (644, "Year"))
    )
    assert text_of(page) == (
        "Once; Fee: Entry; Amount: 600\nOnce; Fee: Card; Amount: 150\n"
        "Year; Fee: Books; Amount: 900\nYear; Fee: Sports; Amount: 25"
    )


def test_names_stand_in_columns_where_rules_are_missing():
    page = grid(711, 670, 600, columns=(LEFT, MIDDLE, 430))
    head = ((250, "CURRENT"), (340, "REVISED"), (160, "FIRST"))
    page += "".join(words(x + 4, 698, text, font="F2") for x, text in head[2:])
    page += "".join(words(x + 4, 686, text, font="F2") for x, text in ((160, "BUDGET"), *head[:2]))
    page += "".join(words(x + 4, 674, "PLAN", font="F2") for x in (250, 340))
    page += (
        rule(250, 670, 250, 600) + rule(340, 670, 340, 600) + words(74, 686, "OFFICE", font="F2")
    )
    for y, row in ((655, ("Fire", "12", "13", "14")), (641, ("Law", "22", "23", "24")),
                   (627, ("Labor", "32", "33", "34"))):  # fmt: skip
        page += table(74, y, row)
    assert text_of(page).splitlines()[0] == (
        "OFFICE: Fire; FIRST BUDGET: 12; CURRENT PLAN: 13; REVISED PLAN: 14"
    )


def test_lines_of_a_cell_may_have_several_values():
    columns = (LEFT, MIDDLE, RIGHT, 400)
    page = grid(711, 697, 641, columns=columns)
    page += table(74, 700, ("Office", "Plan", "Over, under"), font="F2")
    for y, row in (
        (686, ("Fire", "12", "1")),
        (672, ("Law", "22", "3")),
        (658, ("Labor", "32", "5")),
    ):
        page += table(74, y, row) + words(330, y, "9")
    assert text_of(page).splitlines() == [
        f"Office: {name}; Plan: {plan}; Over, under: {over} 9"
        for name, plan, over in (("Fire", 12, 1), ("Law", 22, 3), ("Labor", 32, 5))
    ]


def test_frames_side_by_side_of_their_own_heights_are_no_table():
    page = ""
    for x, tops in ((70, (700, 610, 570, 500, 440)), (290, (700, 660, 590, 540, 440))):
        for number, (top, bottom) in enumerate(pairwise(tops)):
            page += rule(x, top, x + 220, top) + rule(x, bottom, x + 220, bottom)
            page += rule(x, top, x, bottom) + rule(x + 220, top, x + 220, bottom)
            page += lines(x + 6, top - 14, f"Notice {x}{number} of the parish:", "all are welcome")
    text = text_of(page)
    assert text.index("Notice 703") < text.index("Notice 2900")
    assert "Notice 2900 of the parish:; " not in text
