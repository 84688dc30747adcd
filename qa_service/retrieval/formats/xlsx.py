"""Excel's workbooks, from their XML: of each sheet its tables, a row a line of `Column: value`s.

Format: ECMA-376, part 1, 18: 18.8.30 for number formats, 18.17.4 for dates. What is hidden is left
out: sheets, rows, columns. Of a formula there is the value that was saved with it. Days, months and
years that are all numbers are written as `2031-05-01`: in which order they are shown depends on
the reader's country.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree as Xml

from qa_service.retrieval.documents import BlockList, Document, Parsed
from qa_service.retrieval.formats.bounded import read_package, reading
from qa_service.retrieval.formats.cells import ERROR, MAX_COLUMNS, Row, indent_of
from qa_service.retrieval.formats.grids import add_grid
from qa_service.retrieval.formats.office_package import (
    OfficePackage,
    attribute,
    child,
    descendants,
    is_on,
    name_of,
    number,
)
from qa_service.retrieval.layout import lay_out, says_something, title_of

_INDENT_POINTS = 9.0
"""Of a step of a cell's indent."""
_MAX_MERGED_CELLS = 1_000_000
"""Of a sheet; a file of a few bytes may merge them all."""
GENERAL = "General"
BUILT_IN = {
    1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00",
    14: "yyyy-mm-dd", 15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy", 18: "h:mm AM/PM",
    19: "h:mm:ss AM/PM", 20: "h:mm", 21: "h:mm:ss", 22: "yyyy-mm-dd h:mm", 37: "#,##0;(#,##0)",
    38: "#,##0;(#,##0)", 39: "#,##0.00;(#,##0.00)", 40: "#,##0.00;(#,##0.00)", 41: "#,##0",
    42: '"$"#,##0', 43: "#,##0.00", 44: '"$"#,##0.00', 45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss",
    48: "##0.0E+0", **dict.fromkeys(range(5, 7), '"$"#,##0;("$"#,##0)'),
    **dict.fromkeys(range(7, 9), '"$"#,##0.00;("$"#,##0.00)'),
    **dict.fromkeys([*range(27, 37), *range(50, 59)], "yyyy-mm-dd"),
}  # fmt: skip
"""The formats that a workbook names by number alone; those of the languages of East Asia as ISO."""

_PART = re.compile(
    r'"(?P<quoted>[^"]*)"?|\\(?P<escaped>.)|_.|\*.|\[\$(?P<currency>[^\]-]*)[^\]]*\]'
    r"|\[(?P<elapsed>h+|m+|s+)\]|\[[^\]]*\]|(?P<general>General)|(?P<half>AM/PM|A/P)"
    r"|(?P<date>y+|m+|d+|h+|s+)|(?P<power>E[+-])|(?P<digit>[0#?.,])|(?P<share>%)|@|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
_SECTION = re.compile(r'((?:"[^"]*"|\\.|\[[^\]]*\]|[^;])*)(?:;|$)', re.DOTALL)
_ESCAPED = re.compile(r"_x(?:(000[9AD]|005F)|00[01][\dA-F])_", re.IGNORECASE)
"""A character that XML cannot hold; of those there are a tab, the ends of lines and `_` to see."""
_FRACTION = re.compile(r"[0#?]\s*/\s*[0-9#?]")
_LITERALS = frozenset({"quoted", "escaped", "currency", "share", "other"})
_MAX_FORMAT_CHARS = 255
_MAX_DECIMALS = 10
_MAX_EXACT = 10**15
"""Excel keeps fifteen digits of a number."""
_EPOCH = datetime.datetime(1899, 12, 30)
_DAYS_TO_1904 = 1462
_DAY_S = 86_400

_Parts = list[tuple[str, str]]
"""The kinds and texts of a format's parts."""


def read_xlsx(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads the sheets that are shown."""
    data = read_package(stream, max_bytes)
    out = BlockList()
    with reading("a workbook"):
        package = OfficePackage(data)
        _Workbook(package).read(out)
        title = package.title()
    yield lay_out(Parsed(out.blocks, title if says_something(title) else title_of(name)), name)


class _Format(NamedTuple):
    """How a cell is shown: its number's format, whether it is set off as heads are, its indent."""

    code: str
    is_strong: bool
    indent: float = 0.0


_PLAIN = _Format(GENERAL, is_strong=False)


class _Workbook:
    def __init__(self, package: OfficePackage) -> None:
        self._package = package
        self._book = package.document("workbook")
        self._is_1904 = attribute(child(self._book, "workbookPr"), "date1904") in {"1", "true"}
        self._formats = _formats(package.part("styles"))
        self._strings = [_string(one) for one in package.part("sharedStrings")]

    def read(self, out: BlockList) -> None:
        """Adds the sheets' tables, each sheet's below its name."""
        parts = self._package.relations(self._package.main)
        sheets = [
            (attribute(one, "name"), parts[attribute(one, "id")][1])
            for one in descendants(self._book, "sheet")
            if attribute(one, "state") in {"", "visible"}
            and parts.get(attribute(one, "id"), ("", ""))[0] == "worksheet"
        ]
        for title, part in sheets:
            out.part = f"sheet {title}"
            if len(sheets) > 1 or says_something(title):
                out.heading(1, title)
            add_grid(out, self._rows(part))

    def _rows(self, part: str) -> list[Row]:
        """A sheet's rows, with an empty one wherever the sheet has some."""
        rows, hidden, merged, last = list[Row](), set[int](), list[str](), 0
        heads = _heads(self._package, part)
        with self._package.open(part) as stream:
            for _, element in Xml.iterparse(stream):
                name = name_of(element)
                if name == "row":
                    before, last = last, number(element, "r") or last + 1
                    if last > before + 1:
                        rows.append(Row(0, []))
                    if element.get("hidden") not in {"1", "true"}:
                        rows.append(self._row(element, last, heads.get(last, [])))
                    element.clear()
                elif name == "col" and element.get("hidden") in {"1", "true"}:
                    first, end = number(element, "min") or 1, number(element, "max") or 0
                    hidden.update(range(first - 1, min(end, MAX_COLUMNS)))
                elif name == "mergeCell":
                    merged.append(attribute(element, "ref"))
        return list(_filled(rows, merged, hidden))

    def _row(self, element: Xml.Element, line: int, heads: Sequence[range]) -> Row:
        texts, strong, indent, column = list[str](), set[int](), 0.0, -1
        for cell in element:
            reference = cell.get("r")
            column = _column(reference.rstrip("0123456789")) if reference else column + 1
            if column >= MAX_COLUMNS:
                continue
            form = self._formats.get(cell.get("s", "0"), _PLAIN)
            shown_text = self._text(cell, form)
            if text := shown_text.strip():
                if not any(texts):
                    indent = form.indent + indent_of(shown_text)
                texts += [""] * (column + 1 - len(texts))
                texts[column] = text
                if form.is_strong:
                    strong.add(column)
        return Row(line, texts, strong=strong, is_head=bool(heads), indent=indent, heads=heads)

    def _text(self, cell: Xml.Element, form: _Format) -> str:
        """A cell's value as it is shown; of an error nothing."""
        kind = cell.get("t", "n")
        if kind == "inlineStr":
            return _string(cell)
        held = next((one.text or "" for one in cell if name_of(one) == "v"), "")
        if kind == "n" and held:
            return shown(float(held), form.code, is_1904=self._is_1904)
        if kind == "s" and held:
            return self._strings[int(held)]
        if kind == "b":
            return {"0": "FALSE", "1": "TRUE"}.get(held, "")
        return held if kind in {"str", "d"} and not ERROR.fullmatch(held) else ""


def _string(element: Xml.Element) -> str:
    """A string's runs; how it is pronounced is left out."""
    parts = list[str]()
    for one in element:
        if (name := name_of(one)) == "t":
            parts.append(_ESCAPED.sub(lambda found: chr(int(found[1] or "0", 16)), one.text or ""))
        elif name in {"r", "is"}:
            parts.append(_string(one))
    return "".join(parts)


def _formats(styles: Xml.Element) -> dict[str, _Format]:
    """How cells are shown, by the numbers that cells have."""
    codes = {number(one, "numFmtId"): attribute(one, "formatCode")
             for one in descendants(styles, "numFmt")}  # fmt: skip
    fonts = [is_on(child(one, "b")) for one in child(styles, "fonts") or ()]
    fills = [child(one, "patternFill") for one in child(styles, "fills") or ()]
    strong_fills = [
        attribute(one, "patternType") == "solid"
        and attribute(colour, "rgb")[2:].upper() != "FFFFFF"
        and (attribute(colour, "theme") != "0" or attribute(colour, "tint").strip("-0.") != "")
        for one, colour in ((one, child(one, "fgColor")) for one in fills)
    ]
    found = dict[str, _Format]()
    for place, one in enumerate(child(styles, "cellXfs") or ()):
        code = number(one, "numFmtId") or 0
        is_strong = _at(fonts, number(one, "fontId")) or _at(strong_fills, number(one, "fillId"))
        indent = _INDENT_POINTS * (number(child(one, "alignment"), "indent") or 0)
        code_text = codes.get(code) or BUILT_IN.get(code, GENERAL)
        found[str(place)] = _Format(code_text, is_strong, indent)
    return found


def _at(flags: Sequence[bool], place: int | None) -> bool:
    return place is not None and place < len(flags) and flags[place]


def _heads(package: OfficePackage, sheet: str) -> dict[int, list[range]]:
    """The rows that the sheet's tables declare as their heads, and the columns of each table."""
    found = defaultdict[int, list[range]](list)
    for table in (package.read(name) for name in package.related(sheet, "table")):
        if attribute(table, "headerRowCount") != "0":
            (row, first), (_, last) = map(_place, (attribute(table, "ref").split(":") * 2)[:2])
            found[row].append(range(first, last + 1))
    return found


@functools.lru_cache(maxsize=MAX_COLUMNS)
def _column(letters: str) -> int:
    """A column's place, from 0."""
    place = 0
    for letter in letters[:4].upper():
        place = 26 * place + ord(letter) - ord("A") + 1
    return place - 1


def _place(reference: str) -> tuple[int, int]:
    """The row's number, from 1, and the column's place, from 0, of a cell such as `B3`."""
    letters = reference.rstrip("0123456789")
    return int(reference[len(letters) :]), _column(letters)


def _filled(rows: list[Row], merged: list[str], hidden: set[int]) -> Iterator[Row]:
    """The rows with the text of each merged cell in all of its places that are shown."""
    by_line = {row.line: row for row in rows if row.line}
    lines = sorted(by_line)
    from_left, from_above, strong = (defaultdict[int, set[int]](set) for _ in range(3))
    budget = _MAX_MERGED_CELLS
    for reference in merged:
        (top, first), (bottom, end) = map(_place, (reference.split(":") * 2)[:2])
        columns = [c for c in range(first, min(end + 1, MAX_COLUMNS)) if c not in hidden]
        inside = lines[bisect_left(lines, top) : bisect_right(lines, bottom)]
        text = by_line[top].at(first) if top in by_line else ""
        budget -= len(inside) * len(columns)
        if not text or budget < 0:
            continue
        for line, column in itertools.product(inside, columns):
            cells = by_line[line].cells
            cells.extend([""] * (column + 1 - len(cells)))
            cells[column] = text
            for marks, is_marked in (
                (from_left, column != columns[0]), (from_above, line != top),
                (strong, first in by_line[top].strong),
            ):  # fmt: skip
                if is_marked:
                    marks[line].add(column)
    for row in rows:
        cells = ["" if n in hidden else cell for n, cell in enumerate(row.cells)]
        marked = row.strong | strong.get(row.line, set())
        left, above = from_left.get(row.line, set()), from_above.get(row.line, set())
        texts = cells if hidden else row.cells
        yield Row(row.line, texts, left, above, marked, row.is_head, row.indent, row.heads)


def shown(value: float, code: str, *, is_1904: bool = False) -> str:
    if not abs(value) < _MAX_EXACT:
        return general(value)
    sections = _SECTION.findall(code[:_MAX_FORMAT_CHARS])
    place = 1 if value < 0 else 2 if value == 0 else 0
    section = sections[place] if place < len(sections) - 1 else sections[0]
    parts = [
        (found.lastgroup, found[found.lastgroup])
        for found in _PART.finditer(section)
        if found.lastgroup
    ]
    kinds = {kind for kind, _ in parts}
    if kinds & {"date", "elapsed"}:
        return _date(value + _DAYS_TO_1904 * is_1904, parts)
    if not kinds & {"digit", "general"}:
        literals = "".join(text for kind, text in parts if kind in _LITERALS)
        return " ".join(literals.split()) if ";" in code else general(value)
    if _FRACTION.search(section):
        return general(value)
    has_own_section = value < 0 and section is not sections[0]
    return _number(abs(value) if has_own_section else value, parts)


def general(value: float) -> str:
    """A number without a format: all of a whole number, else ten digits."""
    return str(int(value)) if abs(value) < _MAX_EXACT and value == int(value) else f"{value:.10g}"


def _number(value: float, parts: _Parts) -> str:
    """A number between what stands before and after its digits."""
    places = [n for n, (kind, _) in enumerate(parts) if kind in {"digit", "general", "power"}]
    first, last = places[0], places[-1] + 1
    within = parts[first:last]
    digits = "".join(text for kind, text in within if kind == "digit")
    power = next((n for n, (kind, _) in enumerate(within) if kind == "power"), None)
    shares = sum(kind == "share" for kind, _ in parts)
    if parts[first][0] == "general":
        body = general(abs(value))
    elif power is not None:
        decimals = "".join(text for _, text in within[:power]).partition(".")[2]
        body = f"{abs(value):.{min(len(decimals), _MAX_DECIMALS)}E}"
    else:
        body = _in_digits(Decimal(repr(abs(value))) * 100**shares, digits, within)
    sign = "-" if value < 0 and any(sign in body for sign in "123456789") else ""
    before, after = (
        "".join(text for kind, text in some if kind in _LITERALS)
        for some in (parts[:first], parts[last:])
    )
    return " ".join(f"{sign}{before.lstrip()}{body}{after}".split())


def _in_digits(value: Decimal, digits: str, within: _Parts) -> str:
    """A number of nine by `#,##0.00`, or its digits between other characters by `000-0000`."""
    integer, _, decimals = digits.partition(".")
    thousands = len(integer) - len(integer.rstrip(",")) + decimals.count(",")
    most = min(_MAX_DECIMALS, len(decimals.replace(",", "")))
    rounded = (value / 1000**thousands).quantize(Decimal(1).scaleb(-most), ROUND_HALF_UP)
    whole, _, fraction = f"{rounded:f}".partition(".")
    fraction = fraction.rstrip("0").ljust(min(most, decimals.count("0")), "0")
    whole = whole.zfill(integer.count("0"))
    if whole == "0" and "0" not in integer and not fraction:
        return ""
    if "," in integer.rstrip(","):
        whole = f"{int(whole):,}"
    elif not decimals and any(kind != "digit" for kind, _ in within):
        whole = _between(whole, within)
    return f"{whole}.{fraction}" if fraction else whole


def _between(whole: str, within: _Parts) -> str:
    """Digits put into their places from the right; those left over stand in the first place."""
    made, left = list[str](), list(whole)
    for kind, text in reversed(within):
        if kind != "digit":
            made.append(text)
        elif left:
            made.append(left.pop())
    return "".join([*left, *reversed(made)])


def _date(days: float, parts: _Parts) -> str:
    """A day and a time; a span of time in its largest unit."""
    try:
        moment = _EPOCH + datetime.timedelta(seconds=round(days * _DAY_S))
    except OverflowError:
        return general(days)
    units = [(kind, text.lower()) for kind, text in parts if kind in {"date", "elapsed"}]
    letters = {text[0] for _, text in units}
    has_words = any(text[0] in "md" and len(text) > 2 for _, text in units)
    if letters >= {"y", "m", "d"} and not has_words:
        has_time = letters & {"h", "s"} and moment.time() != datetime.time()
        return f"{moment:%Y-%m-%d %H:%M}" if has_time else f"{moment:%Y-%m-%d}"
    written = iter(_units(moment, days, units, is_half=any(kind == "half" for kind, _ in parts)))
    words = [
        next(written) if kind in {"date", "elapsed"} else f"{moment:%p}" if kind == "half" else text
        for kind, text in parts
        if kind in _LITERALS | {"date", "elapsed", "half", "digit"}
    ]
    return " ".join("".join(words).split())


def _units(
    moment: datetime.datetime, days: float, units: _Parts, *, is_half: bool
) -> Iterator[str]:
    """The parts of a date as its format has them; `m` is minutes between hours and seconds."""
    hour = moment.hour if not is_half else (moment.hour + 11) % 12 + 1
    seconds = round(days * _DAY_S)
    for place, (kind, text) in enumerate(units):
        letter, width = text[0], len(text)
        is_after_hours = place > 0 and units[place - 1][1][0] == "h"
        if letter == "m" and (
            is_after_hours or [one[0] for _, one in units[place + 1 :]][:1] == ["s"]
        ):
            letter = "n"
        if kind == "elapsed":
            yield str(seconds // {"h": 3600, "m": 60, "n": 60, "s": 1}[letter])
        elif letter in "md" and width > 2:
            name = f"{moment:%B}" if letter == "m" else f"{moment:%A}"
            yield name[:3] if width == 3 else name
        elif letter == "y":
            yield str(moment.year)
        else:
            values = {"m": moment.month, "d": moment.day, "h": hour, "n": moment.minute}
            yield f"{values.get(letter, moment.second):0{width}}"
