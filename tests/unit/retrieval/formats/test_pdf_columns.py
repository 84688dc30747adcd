"""Columns of a PDF's page are read one after another, and a table's cells row by row."""

from tests.unit.retrieval.formats import reading
from tests.unit.retrieval.formats.pdf_files import content, pdf_of, words

FOOD = (("Soup of the day", "4.50"), ("Green salad", "6.00"), ("Fish pie", "11.20"),
        ("Roast chicken", "12.00"), ("Veal", "14.80"), ("Rice and peas", "7.40"))  # fmt: skip
DRINKS = (("Tea", "2.10"), ("Coffee", "2.60"), ("Lemonade", "3.00"), ("Cider", "4.20"),
          ("House wine", "5.50"), ("Port", "6.10"))  # fmt: skip


def text_of(page: str) -> str:
    return reading.read("a.pdf", pdf_of([content(page)])).text


def priced(x: float, y: float, step: float, rows: tuple[tuple[str, str], ...]) -> str:
    return "".join(
        words(x, y - step * n, name) + words(x + 150, y - step * n, price)
        for n, (name, price) in enumerate(rows)
    )


def test_lists_with_prices_side_by_side_are_read_one_after_the_other():
    text = text_of(priced(60, 700, 17, FOOD) + priced(330, 694, 22, DRINKS))
    written = [": ".join(row) for row in (*FOOD, *DRINKS)]
    assert [line for line in text.splitlines() if line] == written


def test_rows_of_a_table_that_is_painted_by_columns_are_kept():
    page = priced(60, 700, 17, FOOD) + priced(330, 700, 17, DRINKS)
    assert "; ".join((*FOOD[2], *DRINKS[2])) in text_of(page).replace(": ", "; ")


def test_a_currencys_sign_at_its_columns_left_is_of_the_number():
    rows = (("Checking", "$", "146,074", "$", "131,806"), ("Savings", "", "12,500", "", "9,900"),
            ("Total assets", "$", "158,574", "$", "141,706"))  # fmt: skip
    page = words(220, 714, "2007") + words(340, 714, "2006")
    for n, row in enumerate(rows):
        places = zip((60, 190, 210, 310, 330), row, strict=True)
        page += "".join(words(x, 700 - 14 * n, cell) for x, cell in places if cell)
    assert text_of(page).splitlines() == [
        "Checking; 2007: $ 146,074; 2006: $ 131,806",
        "Savings; 2007: 12,500; 2006: 9,900",
        "Total assets; 2007: $ 158,574; 2006: $ 141,706",
    ]
