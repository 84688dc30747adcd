"""What office documents are made of: names, and values of columns as offices write them.

`wordings/office.json` has kinds of tables, lists of names, and what people say in place of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


class Column(msgspec.Struct, frozen=True):
    """A kind of column: its names, its values, and how people ask for one: `{x}` is the row.

    Attributes:
        value: `kind` names what draws it (`_VALUES`); the rest is for that.
    """

    names: list[str]
    value: dict[str, Any]
    wordings: list[str]


class Kind(msgspec.Struct, frozen=True):
    """A kind of table.

    Attributes:
        labels: What its first column may be called.
        rows: The list that its rows' names are from.
    """

    labels: list[str]
    rows: str
    captions: list[str]
    columns: list[Column]


class Office(msgspec.Struct, frozen=True):
    """`wordings/office.json`.

    Attributes:
        said: What people say in place of a row's name.
    """

    said: dict[str, list[str]]
    lists: dict[str, list[str]]
    kinds: list[Kind]


OFFICE = msgspec.json.decode(
    (Path(__file__).parent / "wordings" / "office.json").read_bytes(), type=Office
)
LISTS = OFFICE.lists
"""Names of towns, products, people and other things."""


def _one_of(its: dict[str, Any], rng: random.Random) -> str:
    return str(rng.choice(its.get("options") or LISTS[its["list"]]))


def _number(its: dict[str, Any], rng: random.Random) -> str:
    return str(its["form"]).format(rng.randint(its["from"], its["to"]))


def _decimal(its: dict[str, Any], rng: random.Random) -> str:
    return str(its["form"]).format(rng.uniform(its["from"], its["to"]))


def _phone(_: dict[str, Any], rng: random.Random) -> str:
    a, b, c = rng.randint(201, 989), rng.randint(200, 999), rng.randint(1000, 9999)
    forms = (
        f"({a}) 555-{c}", f"+49 (0){a} {b}-{c % 100}", f"{a}-{b}-{c}", f"+44 {a} {b} {c}",
        f"ext. {c}", f"0{a} / {b}{c}",
    )  # fmt: skip
    return rng.choice(forms)


def _mail(_: dict[str, Any], rng: random.Random) -> str:
    user = rng.choice(LISTS["people"]).lower().replace(" ", ".")
    return rng.choice((f"{user}@example.org", f"{rng.choice(LISTS['towns']).lower()}@example.com"))


def _hours(_: dict[str, Any], rng: random.Random) -> str:
    begin, end = rng.randint(6, 10), rng.randint(3, 8)
    forms = (
        f"{begin} a.m. to {end} p.m.", f"Mon-Fri {begin}:00-{end + 12}:30",
        f"{begin:02}:30 - {end + 12}:00", f"daily, {begin} to {end}",
        f"Tue and Thu {begin}:15-12:00",
    )  # fmt: skip
    return rng.choice(forms)


def _date(_: dict[str, Any], rng: random.Random) -> str:
    day, number, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2009, 2027)
    month = _MONTHS[number - 1]
    forms = (
        f"{month} {day}, {year}", f"{year}-{number:02}-{day:02}", f"{number}/{day}/{year}",
        f"{day} {month} {year}", f"{day}.{number}.{year}",
    )  # fmt: skip
    return rng.choice(forms)


def _street(_: dict[str, Any], rng: random.Random) -> str:
    return f"{rng.randint(1, 240)} {rng.choice(LISTS['streets'])}"


_VALUES: dict[str, Callable[[dict[str, Any], random.Random], str]] = {
    "one of": _one_of, "number": _number, "decimal": _decimal, "phone": _phone, "mail": _mail,
    "hours": _hours, "date": _date, "street": _street,
}  # fmt: skip


def drawn_value(its: dict[str, Any], rng: random.Random) -> str:
    """A value of a kind: a price, a telephone number, a date."""
    return _VALUES[its["kind"]](its, rng)
