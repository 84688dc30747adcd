"""Workbooks are read as Excel shows them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

import openpyxl
import pytest
from openpyxl.styles import Alignment, Font
from openpyxl.worksheet.table import Table
from openpyxl.worksheet.worksheet import Worksheet

from qa_service.retrieval.documents import Document, UnreadableError
from qa_service.retrieval.formats import FORMATS
from tests.support import all_of, present


def read(book: openpyxl.Workbook | bytes, name: str = "a.xlsx") -> Document:
    data = io.BytesIO(book if isinstance(book, bytes) else b"")
    if isinstance(book, openpyxl.Workbook):
        book.save(data)
        data.seek(0)
    (document,) = all_of(Document, list(FORMATS[".xlsx"](data, name, 1 << 24)))
    return document


def book_of(*rows: Sequence[str | float | None]) -> tuple[openpyxl.Workbook, Worksheet]:
    book = openpyxl.Workbook()
    sheet = book.active
    assert isinstance(sheet, Worksheet)
    for row in rows:
        sheet.append(row)
    return book, sheet


def test_what_is_hidden_is_left_out():
    book, sheet = book_of(["Plan", "Cost", "EUR"], ["Solo", 1, 5], ["Old", 2, 9], ["Team", 3, 18])
    sheet.row_dimensions[3].hidden = True
    sheet.column_dimensions["B"].hidden = True
    assert read(book).text == "Plan: Solo; EUR: 5\nPlan: Team; EUR: 18"


def test_a_merged_cell_is_in_each_of_its_rows():
    head = ["Region", "Q1", None, "Q2", None]
    book, sheet = book_of(head, [None, "Sales", "Cost", "Sales", "Cost"], ["North", 1, 2, 3, 4],
                          [None, 5, 6, 7, 8])  # fmt: skip
    for cells in ("A1:A2", "B1:C1", "D1:E1", "A3:A4"):
        sheet.merge_cells(cells)
    assert read(book).text == (
        "Region: North; Q1 Sales: 1; Q1 Cost: 2; Q2 Sales: 3; Q2 Cost: 4\n"
        "Region: North; Q1 Sales: 5; Q1 Cost: 6; Q2 Sales: 7; Q2 Cost: 8"
    )


def test_an_indented_label_has_the_one_above_before_it():
    book, sheet = book_of(["Item", "EUR"], ["Staff", 9], ["Wages", 7], ["   Travel", 2])
    sheet["A3"].alignment = Alignment(indent=1)
    assert read(book).text.splitlines()[1:] == [
        "Item: Staff, Wages; EUR: 7",
        "Item: Staff, Travel; EUR: 2",
    ]


def test_merged_cells_of_hidden_columns_keep_their_text():
    book, sheet = book_of(["Plan", "Notes", None, "EUR"], ["Solo", "cheap", None, 5])
    sheet.merge_cells("B2:C2")
    sheet.column_dimensions["B"].hidden = True
    assert "cheap" in read(book).text


def test_numbers_are_shown_in_their_formats():
    book, sheet = book_of(["Plan", "Price", "Weight", "Zip", "Share", "Sum"],
                          ["Solo", 1234.5, 2.5, 123, 0.125, 0.1 + 0.2])  # fmt: skip
    for cell, code in zip(sheet[2][1:5], ('"$"#,##0.00', '0.0 "kg"', "00000", "0.0%"), strict=True):
        cell.number_format = code
    assert read(book).text == (
        "Plan: Solo; Price: $1,234.50; Weight: 2.5 kg; Zip: 00123; Share: 12.5%; Sum: 0.3"
    )


def test_a_head_is_what_is_set_off_or_a_tables():
    book, sheet = book_of(["Term", "Meaning"], ["fox", "an animal"])
    sheet.add_table(Table(displayName="Terms", ref="A1:B2"))
    assert read(book).text == "Term: fox; Meaning: an animal"
    book, sheet = book_of(["Term", "Meaning"], ["fox", "an animal"])
    sheet["A1"].font = sheet["B1"].font = Font(bold=True)
    assert read(book).text == "Term: fox; Meaning: an animal"


def test_an_empty_row_ends_no_table_and_rows_keep_their_numbers():
    book, _ = book_of(["Plan", "From", "EUR"], ["Solo", "May", 5], [], ["Team", "June", 18])
    document = read(book)
    assert document.text == "Plan: Solo; From: May; EUR: 5\n\nPlan: Team; From: June; EUR: 18"
    assert [block.line for block in document.blocks] == [2, 4]


def test_a_sheet_that_nobody_named_hides_nothing():
    book, sheet = book_of(["Plan", "EUR"], ["Solo", 5])
    sheet.title = "Sheet1"
    document = read(book, "prices_2026.xlsx")
    assert (document.title, document.text) == ("prices 2026", "Plan: Solo; EUR: 5")
    sheet.title = "Prices"
    book.properties.title = "Untitled 1"
    document = read(book, "prices_2026.xlsx")
    assert (document.title, document.text) == ("prices 2026", "Prices\n\nPlan: Solo; EUR: 5")


def changed(book: openpyxl.Workbook, name: str, old: str, new: str) -> bytes:
    """A workbook with other words in one of its parts."""
    made, data = io.BytesIO(), io.BytesIO()
    book.save(made)
    with zipfile.ZipFile(made) as source, zipfile.ZipFile(data, "w") as archive:
        for entry in source.namelist():
            part = source.read(entry)
            if entry == name:
                assert old.encode() in part
                part = part.replace(old.encode(), new.encode())
            archive.writestr(entry, part)
    return data.getvalue()


SHEET = "xl/worksheets/sheet1.xml"


def test_cells_of_all_kinds_are_read():
    book, _ = book_of(["Plan", "EUR", "Is"], ["Solo", 5, True])
    inline = '<c t="inlineStr"><is><r><t>So</t></r><r><t xml:space="preserve">lo </t></r></is></c>'
    cells = f'{inline}<c t="e"><v>#REF!</v></c><c r="C2" t="b"><v>1</v></c>'
    kept = present(zipfile.ZipFile(io.BytesIO(changed(book, SHEET, "x", "x")))).read(SHEET).decode()
    row = kept[kept.index('<row r="2"') : kept.index("</row>", kept.index('<row r="2"'))]
    assert read(changed(book, SHEET, row, f'<row r="2">{cells}')).text == "Plan: Solo; Is: TRUE"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<sheetData>", "<sheetData"),
        ('r="A1"', 'r="A99999999999999999999"'),
        ('r="A1"', 'r="ÄÄÄÄÄ1"'),
        ("<v>5</v>", "<v>five</v>"),
        ('t="n"><v>5</v>', 't="s"><v>99</v>'),
        ("</sheetData>", '</sheetData><mergeCells><mergeCell ref="x"/></mergeCells>'),
        ("</sheetData>", '</sheetData><mergeCells><mergeCell ref="A2:XFD1048576"/></mergeCells>'),
        ("<sheetData>", '<cols><col min="1" max="999999999" hidden="1"/></cols><sheetData>'),
    ],
)
def test_a_broken_sheet_is_named_or_read(old, new):
    book, _ = book_of(["Plan", "EUR"], ["Solo", 5])
    try:
        read(changed(book, SHEET, old, new))
    except UnreadableError as error:
        assert "not a workbook" in str(error)
