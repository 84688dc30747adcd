"""Numbers, dates and times as a workbook's number formats show them.

Format: ECMA-376, part 1, 18.8.30 and 18.17.4. Days, months and years that are all numbers are
written as `2031-05-01`: in which order they are shown depends on the reader's country.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal

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
