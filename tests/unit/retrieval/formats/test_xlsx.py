"""Workbooks are read as Excel shows them."""

import io
import zipfile
from collections.abc import Sequence

import openpyxl
import pytest
from openpyxl.styles import Alignment, Color, Font, PatternFill
from openpyxl.worksheet.table import Table
from openpyxl.worksheet.worksheet import Worksheet

from qa_service.retrieval.documents import Document, UnreadableError
from qa_service.retrieval.formats.number_formats import BUILT_IN, shown
from qa_service.retrieval.passages import cut
from tests.support import present
from tests.unit.retrieval.formats import reading


def read(book: openpyxl.Workbook | bytes, name: str = "a.xlsx") -> Document:
    return reading.read(name, book if isinstance(book, bytes) else reading.saved(book))


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


def test_a_head_may_stand_on_grey():
    book, sheet = book_of(["Term", "Meaning"], ["fox", "an animal"])
    grey = PatternFill("solid", fgColor=Color(theme=0, tint=-0.15))
    sheet["A1"].fill = sheet["B1"].fill = grey
    assert read(book).text == "Term: fox; Meaning: an animal"
    grey = PatternFill("solid", fgColor=Color(theme=0))
    sheet["A1"].fill = sheet["B1"].fill = grey
    assert read(book).text == "Term: Meaning\nfox: an animal"


def test_escaped_characters_are_what_is_seen():
    book, _ = book_of(
        ["Plan", "EUR", "Note"], ["Solo", 5, "a_x000D_\nb_x0002__x005F_x000D_ _xD83D_"]
    )
    assert read(book).text == "Plan: Solo; EUR: 5; Note: a b_x000D_ _xD83D_"


def test_an_error_that_is_saved_as_text_is_none():
    book, sheet = book_of(["Plan", "EUR", "Sum"], ["Solo", 5, "=A2"])
    sheet["C2"] = "#N/A"
    data = changed(book, "xl/worksheets/sheet1.xml", 't="e"', 't="str"')
    assert read(data).text == "Plan: Solo; EUR: 5"


def test_a_workbook_of_excel_97_says_what_to_do():
    with pytest.raises(UnreadableError, match=r"save it anew as .*\.xlsx"):
        read(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))


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


def test_a_cell_without_a_reference_has_the_next_place():
    book, _ = book_of(["X", "Y", "Z"], ["North", 1, 2], ["South", 3, 4])
    kept = present(zipfile.ZipFile(io.BytesIO(changed(book, SHEET, "x", "x")))).read(SHEET).decode()
    row = kept[kept.index('<row r="1"') : kept.index("</row>")]
    cells = "".join(f'<c t="inlineStr"><is><t>{text}</t></is></c>' for text in ("", "Won", "Lost"))
    text = read(changed(book, SHEET, row, f'<row r="1">{cells}')).text
    assert text == "North; Won: 1; Lost: 2\nSouth; Won: 3; Lost: 4"


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


DAY = 47969.0  # 1 May 2031, a Thursday


@pytest.mark.parametrize(
    ("value", "code", "expected"),
    [
        (0.1 + 0.2, "General", "0.3"),
        (1 / 3, "General", "0.3333333333"),
        (12345678901234.0, "General", "12345678901234"),
        (1.5e300, "General", "1.5e+300"),
        (1e999, "0.00", "inf"),
        (1234.5, '"$"#,##0.00', "$1,234.50"),
        (-1234.5, '"$"#,##0.00', "-$1,234.50"),
        (-1234.5, '"$"#,##0.00_);("$"#,##0.00)', "($1,234.50)"),
        (1234.5, '_("$"* #,##0.00_);_("$"* (#,##0.00);_("$"* "-"??_);_(@_)', "$1,234.50"),
        (0, '_("$"* #,##0.00_);_("$"* (#,##0.00);_("$"* "-"??_);_(@_)', "$-"),
        (1234.5, "[$€-407] #,##0.00;[Red]-[$€-407] #,##0.00", "€ 1,234.50"),
        (1234.5, "#,##0.00\\ [$EUR]", "1,234.50 EUR"),
        (2.5, '0.0 "kg"', "2.5 kg"),
        (123, "00000", "00123"),
        (0.1234, "0.0%", "12.3%"),
        (0.125, "0.##%", "12.5%"),
        (0.005, "0.00", "0.01"),
        (2.675, "0.00", "2.68"),
        (-0.001, "0.00", "0.00"),
        (7, "0.##", "7"),
        (1234567, '#,##0.0,,"M"', "1.2M"),
        (5551234567, "(000) 000-0000", "(555) 123-4567"),
        (123456789, "000-00-0000", "123-45-6789"),
        (12345, "0.00E+00", "1.23E+04"),
        (0.5, "# ?/?", "0.5"),
        (5, 'General\\ "units"', "5 units"),
        (5, "@", "5"),
        (1, '"yes";"yes";"no"', "yes"),
        (0, '"yes";"yes";"no"', "no"),
        (5, "", "5"),
        (5, ";;;", ""),
        (DAY, "m/d/yyyy", "2031-05-01"),
        (DAY + 0.5, "dd/mm/yy hh:mm", "2031-05-01 12:00"),
        (DAY, "d mmmm yyyy", "1 May 2031"),
        (DAY, "[$-409]dddd, mmmm d, yyyy;@", "Thursday, May 1, 2031"),
        (DAY, "mmm-yy", "May-2031"),
        (DAY, "yyyy", "2031"),
        (0.53125, "h:mm AM/PM", "12:45 PM"),
        (0.53125, "hh:mm:ss", "12:45:00"),
        (1.5, "[h]:mm", "36:00"),
        (1e14, "yyyy-mm-dd", "100000000000000"),
    ],
)
def test_a_number_is_shown_in_its_format(value, code, expected):
    assert shown(value, code) == expected


def test_days_are_counted_from_1904_where_the_workbook_says_so():
    assert shown(DAY - 1462, BUILT_IN[14], is_1904=True) == "2031-05-01"


@pytest.mark.parametrize(
    "code", ['"' * 300, "[" * 300, "0" * 300, "." * 300, ";" * 9, "\\", "0_", "E+"]
)
def test_a_broken_format_shows_the_number(code):
    assert isinstance(shown(-5.25, code), str)


def test_a_tables_title_goes_with_its_sections_and_with_what_follows_an_empty_row():
    book, sheet = book_of(
        ["Cases of 2020"],
        ["State", "Cases", "Quashed"],
        ["Utopia:"],
        ["Amaurot", 26, 3],
        ["Lands:"],
        ["Narnia", 35, 4],
        [],
        ["Total", 61, 7],
        [],
        ["Notes"],
        ["Year", "By", "Where", "Why"],
        ["2020", "The clerk", "Amaurot", "Asked"],
    )
    sheet.merge_cells("A3:C3")
    sheet.merge_cells("A5:C5")
    document = read(book)
    headings = {
        document.text[passage.start : passage.end].split(";")[0]: passage.heading
        for passage in cut(document, 12)
    }
    title = "Cases of 2020"
    assert headings["State: Amaurot"] == f"{title} > Utopia:"
    assert headings["State: Narnia"] == f"{title} > Lands:"
    assert headings["State: Total"] == title
    assert headings["Year: 2020"] == "Notes"


def test_what_stands_next_to_a_declared_table_is_no_part_of_it():
    book, sheet = book_of(
        ["Firm", None, None, None, "Notes"], ["Journal", None, None, 1, "Started with cash"],
        ["Date", "Item", None, 2, "Paid into the bank"], ["May", "Nuts", None, 3, "Bought a van"],
        ["June", "Bolts"])  # fmt: skip
    sheet.add_table(Table(displayName="Journal", ref="A3:B5"))
    assert read(book).text.split("\n\n") == [
        "Firm",
        "Journal\nDate: May; Item: Nuts\nDate: June; Item: Bolts",
        "Notes\n1; Started with cash\n2; Paid into the bank\n3; Bought a van",
    ]


def test_declared_tables_side_by_side_are_parted():
    book, sheet = book_of(
        ["Yes or no", None, "Kind", "Pay"], ["Yes", None, "Sick", 1], ["No", None, "Off", 0],
        [None, None, "Other", 1])  # fmt: skip
    sheet.add_table(Table(displayName="Answers", ref="A1:A3"))
    sheet.add_table(Table(displayName="Kinds", ref="C1:D4"))
    assert read(book).text.split("\n") == [
        "Yes or no: Yes", "Yes or no: No", "",
        "Kind: Sick; Pay: 1", "Kind: Off; Pay: 0", "Kind: Other; Pay: 1",
    ]  # fmt: skip
    book, sheet = book_of(["Item", "EUR", None, None], ["Nut", 5, None, 30], ["Bolt", 6, None, 40])
    sheet.add_table(Table(displayName="Items", ref="A1:B3"))
    assert read(book).text == "Item: Nut; EUR: 5; 30\nItem: Bolt; EUR: 6; 40"


def test_a_text_in_the_colour_of_its_ground_is_left_out():
    book, sheet = book_of(["see cell B2", "Plan", "EUR"], [None, "Solo", 5], [None, "Team", 18])
    white, green = Font(color="FFFFFFFF"), Font(color="FF00AA00")
    sheet["A1"].font = sheet["B1"].font = white
    sheet["C1"].font = green
    assert "see cell" not in read(book).text
    for cell in ("B1", "C1"):
        sheet[cell].fill = PatternFill("solid", fgColor="FF0000AA")
    assert read(book).text == "Plan: Solo; EUR: 5\nPlan: Team; EUR: 18"
    sheet["C1"].fill = PatternFill("solid", fgColor="FF00AA00")
    assert "EUR" not in read(book).text
    sheet.add_table(Table(displayName="Plans", ref="B1:C3"))
    assert read(book).text == "Plan: Solo; EUR: 5\nPlan: Team; EUR: 18"
