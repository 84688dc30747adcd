"""Numbers are written as a workbook shows them."""

from __future__ import annotations

import pytest

from qa_service.retrieval.formats.number_formats import BUILT_IN, shown

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
        (5, ";;;", "5"),
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
