"""Tables with rules in a PDF: what is drawn is not all a rule, and not all rules are drawn."""

from tests.unit.retrieval.formats.pdf_files import rule, words
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
