"""What a paragraph of Word is by its style and numbering: a heading, an item, and with what number.

Format: ECMA-376, part 1, 17.3.1 (paragraphs), 17.7 (styles) and 17.9 (numbering).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from xml.etree import ElementTree as Xml

from qa_service.retrieval.formats.office_package import attribute, child, name_of, number

_MAX_CHAIN = 20
"""Styles that are based on one another; more are a circle."""
_MAX_LEVELS = 9
_NUM_HEADING_LEVELS = 9
_HEADING = re.compile(
    r"(?:heading|überschrift|titre|título|titulo|titolo|kop|rubrik|overskrift|otsikko|nagłówek|"
    r"nadpis|заголовок|标题|見出し|제목) ?(\d)",
    re.IGNORECASE,
)
_TITLE = re.compile(r"title|titel|titre|título|titolo", re.IGNORECASE)
_LIST = re.compile(r"list (?P<kind>bullet|number)?(?: (?P<depth>\d))?", re.IGNORECASE)
_CONTENTS = re.compile(r"(?:toc|table of figures|verzeichnis|index) ?\d*", re.IGNORECASE)
_ROMAN = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"),
    (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip
_MAX_ROMAN = 5000
_MAX_LETTERS = 26 * 20
_MIN_INDENT = 144
"""A tenth of an inch, in twentieths of a point; what begins further to the right is within."""


Counted = tuple[dict[str, list[int | None]], set[str]]
"""The numbers of each list's levels, and the lists that have begun."""


class Role(NamedTuple):
    """What a paragraph is.

    Attributes:
        heading: Its level, 1 for the highest; 0 if it is none.
        depth: How many lists it is in.
        mark: Its number as Word shows it, or "-" for a bullet.
        known_as: The `numId` of its list; "" if it is in none that has one.
        left: Where the text of an item begins, in twentieths of a point.
        is_title: Whether it is the document's title.
        is_contents: Whether it is an entry of a table of contents.
    """

    heading: int = 0
    depth: int = 0
    mark: str = ""
    known_as: str = ""
    left: int = 0
    is_title: bool = False
    is_contents: bool = False


class Styles:
    """The styles of paragraphs and tables.

    Attributes:
        of_paragraphs: The name of the style of those that name none.
    """

    def __init__(self, part: Xml.Element) -> None:
        self._styles = {attribute(one, "styleId"): one for one in part if name_of(one) == "style"}
        defaults = (
            attribute(style, "styleId")
            for style in self._styles.values()
            if attribute(style, "default") == "1" and attribute(style, "type") == "paragraph"
        )
        self.of_paragraphs = next(defaults, "")

    def named(self, name: str) -> Iterator[Xml.Element]:
        for _ in range(_MAX_CHAIN):
            style = self._styles.get(name)
            if style is None:
                return
            yield style
            name = attribute(child(style, "basedOn"))


class _Level(NamedTuple):
    start: int
    format: str
    text: str
    style: str
    left: int | None = None

    @classmethod
    def of(cls, level: Xml.Element) -> _Level:
        start = number(child(level, "start"))
        return cls(
            1 if start is None else start,
            attribute(child(level, "numFmt")) or "decimal",
            attribute(child(level, "lvlText")),
            attribute(child(level, "pStyle")),
            _left(level),
        )


class Roles:
    """Says of each paragraph, in the order of the document, what it is; counts lists' numbers.

    Args:
        part: The document's numbering.
    """

    def __init__(self, styles: Styles, part: Xml.Element) -> None:
        self._styles = styles
        self._lists = dict[str, dict[int, _Level]]()
        self._links = dict[str, str]()
        for one in part:
            if name_of(one) == "abstractNum":
                known_as = attribute(one, "abstractNumId")
                levels = (
                    (number(level, "ilvl"), level) for level in one if name_of(level) == "lvl"
                )
                self._lists[known_as] = {n: _Level.of(lvl) for n, lvl in levels if n is not None}
                self._links[known_as] = attribute(child(one, "numStyleLink"))
        self._numbers = {attribute(one, "numId"): one for one in part if name_of(one) == "num"}
        self._counts = dict[str, list[int | None]]()
        self._begun = set[str]()

    def counted(self) -> Counted:
        """How far the lists are counted."""
        return {known: list(counts) for known, counts in self._counts.items()}, set(self._begun)

    def go_back(self, counted: Counted) -> None:
        """The paragraphs since then are read again."""
        self._counts, self._begun = counted

    def of(self, paragraph: Xml.Element) -> Role:
        """What a paragraph is; counts it, if it is in a list with numbers."""
        style = attribute(child(paragraph, "pPr", "pStyle")) or self._styles.of_paragraphs
        chain = list(self._styles.named(style))
        names = [attribute(child(style, "name")) for style in chain]
        if names and _CONTENTS.fullmatch(names[0]):
            return Role(is_contents=True)
        heading = _heading(paragraph, chain, names)
        is_title = bool(names) and _TITLE.fullmatch(names[0]) is not None
        role = self._numbered(paragraph, chain)
        if not role.mark and not role.depth and names and (found := _LIST.fullmatch(names[0])):
            depth = int(found["depth"] or 1) if found["kind"] else 0
            role = Role(depth=depth, mark="-" if depth else "")
        return role._replace(heading=1 if is_title else heading, is_title=is_title)

    def _numbered(self, paragraph: Xml.Element, chain: list[Xml.Element]) -> Role:
        """What a paragraph is in lists."""
        left = None
        for one in (paragraph, *chain):
            left = _left(one) if left is None else left
            properties = child(one, "pPr", "numPr")
            known_as = attribute(child(properties, "numId"))
            if not known_as:
                continue
            if known_as == "0":
                return Role()
            level = number(child(paragraph, "pPr", "numPr", "ilvl"))
            if level is None:
                level = number(child(properties, "ilvl"))
            style = attribute(chain[0], "styleId") if chain else ""
            found = self._next_mark(known_as, level, style)
            if found is None:
                return Role(depth=1 + (level or 0), mark="-")
            level, mark, of_level = found
            return Role(0, level + 1, mark, known_as, (of_level if left is None else left) or 0)
        return Role()

    def _next_mark(
        self, known_as: str, level: int | None, style: str
    ) -> tuple[int, str, int | None] | None:
        """Counts a paragraph; None if it is in no list.

        Returns its level, from 0, its mark, and where texts of its level begin.

        Args:
            known_as: The `numId` of its list.
            level: Its `ilvl`; None if only its style has a list.
            style: Its style's id, by which a level may be known.
        """
        abstract, levels = self._list(known_as)
        if not levels:
            return None
        if level is None:
            level = next((place for place, one in levels.items() if one.style == style), 0)
        level = min(level, _MAX_LEVELS - 1)
        counts = self._counts.setdefault(abstract, [None] * _MAX_LEVELS)
        self._restart(known_as, counts)
        for place in range(level):
            if counts[place] is None and place in levels:
                counts[place] = levels[place].start
        now = counts[level]
        mine = levels.get(level, _Level(1, "decimal", "", ""))
        counts[level] = mine.start if now is None else now + 1
        counts[level + 1 :] = [None] * (_MAX_LEVELS - level - 1)
        return level, _mark(mine, levels, counts), mine.left

    def _list(self, known_as: str) -> tuple[str, dict[int, _Level]]:
        """A list's definition, perhaps by a style that has it, and its levels."""
        for _ in range(_MAX_CHAIN):
            entry = self._numbers.get(known_as)
            abstract = attribute(child(entry, "abstractNumId")) if entry is not None else ""
            link = self._links.get(abstract)
            if not link:
                changed = {
                    place: _Level.of(level)
                    for one in (entry if entry is not None else ())
                    if (level := child(one, "lvl")) is not None
                    and (place := number(one, "ilvl")) is not None
                }
                return abstract, {**self._lists.get(abstract, {}), **changed}
            style = next(self._styles.named(link), None)
            known_as = attribute(child(style, "pPr", "numPr", "numId"))
        return "", {}

    def _restart(self, known_as: str, counts: list[int | None]) -> None:
        """At its first paragraph a list that says so begins to count where it says."""
        if known_as in self._begun:
            return
        self._begun.add(known_as)
        for one in self._numbers.get(known_as, ()):
            start, place = number(child(one, "startOverride")), number(one, "ilvl")
            if start is not None and place is not None and place < _MAX_LEVELS:
                counts[place:] = [None] * (_MAX_LEVELS - place)
                counts[place] = start - 1


class _OpenList(NamedTuple):
    known_as: str
    left: int
    depth: int
    outside: int
    """Of how many lists it is that its levels do not count."""


class Nesting:
    """How many lists each item is in: by its level, and by its indent below other lists' items.

    Many put a list below an item of another one at its first level, further to the right.
    """

    def __init__(self) -> None:
        self._open = list[_OpenList]()

    def close(self) -> None:
        """All lists end."""
        self._open.clear()

    def depth(self, role: Role) -> int:
        """How many lists an item is in."""
        known = [one.known_as for one in self._open]
        if not role.known_as:
            self.close()
            return role.depth
        if role.known_as in known:
            del self._open[known.index(role.known_as) + 1 :]
            outside = self._open.pop().outside
        else:
            del self._open[_MAX_LEVELS - 1 :]
            while self._open and role.left - self._open[-1].left < _MIN_INDENT:
                self._open.pop()
            outside = max(0, self._open[-1].depth + 1 - role.depth) if self._open else 0
        depth = role.depth + outside
        self._open.append(_OpenList(role.known_as, role.left, depth, outside))
        return depth


def _left(element: Xml.Element) -> int | None:
    """Where a text begins, in twentieths of a point; None if it is not said."""
    indent = child(element, "pPr", "ind")
    points = (attribute(indent, "left") or attribute(indent, "start")).partition(".")[0]
    return int(points) if points.isascii() and points.isdecimal() and len(points) < 10 else None


def _mark(level: _Level, levels: dict[int, _Level], counts: list[int | None]) -> str:
    if level.format == "bullet":
        return "-"
    if level.format == "none":
        return ""

    def counted(found: re.Match[str]) -> str:
        place = int(found[1]) - 1
        count = counts[place] or 0
        return written(count, levels[place].format if place in levels else "decimal")

    return re.sub(r"%([1-9])", counted, level.text).strip()


def written(count: int, form: str) -> str:
    """A number as a list's format has it."""
    if form in {"lowerRoman", "upperRoman"} and 0 < count < _MAX_ROMAN:
        letters = ""
        for value, sign in _ROMAN:
            letters += sign * (count // value)
            count %= value
    elif form in {"lowerLetter", "upperLetter"} and 0 < count < _MAX_LETTERS:
        letters = chr(ord("a") + (count - 1) % 26) * (1 + (count - 1) // 26)
    else:
        return f"{count:02}" if form == "decimalZero" else str(count)
    return letters.upper() if form.startswith("upper") else letters


def _heading(paragraph: Xml.Element, chain: list[Xml.Element], names: list[str]) -> int:
    """The level of a heading, by its outline or the name of its style or of one below that."""
    for one, name in zip((paragraph, *chain), ("", *names), strict=True):
        level = number(child(one, "pPr", "outlineLvl"))
        if level is not None:
            return level + 1 if level < _NUM_HEADING_LEVELS else 0
        if found := _HEADING.fullmatch(name):
            return int(found[1])
    return 0
