"""The text of a paragraph of Word, and what is anchored in it: text boxes, charts, notes.

Format: ECMA-376, part 1, 17.3, 17.16 for fields, 20.4 for drawings, 22.1 for formulas; part 4, 19
for older drawings.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.etree import ElementTree as Xml

from qa_service.retrieval.formats.office_package import (
    attribute,
    child,
    is_on,
    name_of,
    number,
    text_of,
)

WRAPPERS = frozenset(
    {"Choice", "bdo", "body", "customXml", "dir", "fldSimple", "hyperlink", "ins", "moveTo"}
    | {"ruby", "rubyBase", "sdt", "sdtContent", "smartTag"}
)
"""Elements whose content stands where they do."""
BOXES = frozenset({"txbxContent", "chart"})
_HIDING = ("vanish", "strike", "dstrike")
"""Properties of a text that is not seen, or struck out."""
_SIGNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_GREEK = dict(zip(range(ord("a"), ord("p")), "αβχδεφγηιϕκλμνο", strict=True))
_MATHS = dict(zip(b"\xa3\xae\xb0\xb1\xb3\xb4\xb7\xb8\xb9\xbb", "≤→°±≥×•÷≠≈", strict=True))  # noqa: RUF001, the sign
_MARKS = dict(zip(b"\x6f\xa8\xdf\xe0\xfb\xfc\xfd\xfe", "☐☐←→✗✓☒☑", strict=True))
_SYMBOLS = {"symbol": _GREEK | _MATHS | {ord("D"): "Δ", ord("W"): "Ω"}, "wingdings": _MARKS}
"""Characters of fonts that have signs in the place of letters."""

Notes = Mapping[tuple[str, str], Xml.Element]
"""Foot- and endnotes by their kind and number."""
_OFFSET = re.compile(r"-?\d{1,9}")
_MARGIN = re.compile(r"margin-(top|left):(-?\d{0,6}\.?\d{1,6})(?:pt|;|$)")
_FROM_ELSEWHERE = re.compile(r"position-vertical(?:-relative)?:(?!text|absolute)")
_POINT_EMU = 12_700
_ROW_POINTS = 28
"""A centimetre; drawings that begin in one are side by side."""


class WordText:
    """A paragraph's text, and what is anchored in it.

    Attributes:
        boxes: Its text boxes' contents, and its charts, as they stand on the page.
        codes: The codes of fields that begin, and None for each that ends.
        notes: Its notes.
    """

    def __init__(self, paragraph: Xml.Element, notes: Notes) -> None:
        self._all_notes = notes
        self._parts = list[str]()
        self._fields = list[bool]()
        """Of each field that is open, whether its code has ended."""
        self._drawings = list[Xml.Element]()
        self.codes = list[str | None]()
        self.notes = list[Xml.Element]()
        self.is_bold = True
        self._add(paragraph)
        self.boxes = list(_in_order(self._drawings))

    def __str__(self) -> str:
        """What a person sees."""
        return "".join(self._parts)

    def _add(self, element: Xml.Element) -> None:
        for one in element:
            name = name_of(one)
            if name == "r":
                self._add_run(one)
            elif name in {"oMath", "oMathPara"}:
                self._parts.append(_formula(one))
            elif name in WRAPPERS:
                self._add(one)

    def _add_run(self, run: Xml.Element) -> None:
        is_hidden = any(is_on(child(run, "rPr", name)) for name in _HIDING)
        before = len(self._parts)
        for one in run:
            name = name_of(one)
            if name == "fldChar":
                self._at_field(one)
            elif name == "instrText" and self.codes and self.codes[-1] is not None:
                self.codes[-1] += one.text or ""
            elif is_hidden or not all(self._fields):
                continue
            elif name in {"footnoteReference", "endnoteReference"}:
                note = self._all_notes.get((name.removesuffix("Reference"), attribute(one, "id")))
                self.notes += [note] if note is not None else []
            elif name in {"drawing", "pict", "object", "AlternateContent"}:
                self._drawings.append(one)
            elif name == "t":
                self._parts.append(one.text or "")
            elif name == "sym" and (code := attribute(one, "char")[-2:]):
                signs = _SYMBOLS.get(attribute(one, "font").lower(), {})
                self._parts.append(signs.get(int(code, 16), ""))
            else:
                self._parts.append(_SIGNS.get(name, ""))
        if any(part.strip() for part in self._parts[before:]):
            self.is_bold &= is_on(child(run, "rPr", "b"))

    def _at_field(self, element: Xml.Element) -> None:
        """A field begins, its result begins, or it ends; old forms' fields hold their values."""
        kind = attribute(element, "fldCharType")
        if kind == "begin":
            self._parts.append(_form_value(element))
            self._fields.append(False)
            self.codes.append("")
        elif kind == "separate" and self._fields:
            self._fields[-1] = True
        elif kind == "end":
            self.codes.append(None)
            del self._fields[-1:]


def _form_value(field: Xml.Element) -> str:
    """A box that is ticked or not, or the choice in a list."""
    if (box := child(field, "ffData", "checkBox")) is not None:
        is_ticked = child(box, "checked")
        return "☑ " if is_on(child(box, "default") if is_ticked is None else is_ticked) else "☐ "
    if (choice := child(field, "ffData", "ddList")) is not None:
        entries = [attribute(one) for one in choice if name_of(one) == "listEntry"]
        place = number(child(choice, "result")) or 0
        return "".join(entries[place : place + 1])
    return ""


def _in_order(drawings: Sequence[Xml.Element]) -> Iterator[Xml.Element]:
    """What is in boxes, from above and from the left, if of each is said where it stands."""
    found = [(_place(drawing), list(_boxes([drawing]))) for drawing in drawings]
    found = [(place, boxes) for place, boxes in found if boxes]
    if all(place for place, _ in found):
        found.sort(key=operator.itemgetter(0))
    return itertools.chain.from_iterable(boxes for _, boxes in found)


def _place(drawing: Xml.Element) -> tuple[int, float] | None:
    """How far a drawing is below its paragraph, in rows, and how far at the right, in points."""
    for one in drawing.iter():
        if name_of(one) == "anchor":
            down, across = (child(one, f"position{side}") for side in "VH")
            offsets = [text_of(child(side, "posOffset")) for side in (down, across)]
            is_said = attribute(down, "relativeFrom") == "paragraph"
            if not is_said or not all(map(_OFFSET.fullmatch, offsets)):
                return None
            return int(offsets[0]) // (_ROW_POINTS * _POINT_EMU), int(offsets[1]) / _POINT_EMU
        margins = dict(_MARGIN.findall(style := attribute(one, "style")))
        if len(margins) == 2:
            is_said = not _FROM_ELSEWHERE.search(style)
            place = int(float(margins["top"]) // _ROW_POINTS), float(margins["left"])
            return place if is_said else None
    return None


def _boxes(elements: Iterable[Xml.Element]) -> Iterator[Xml.Element]:
    """The contents of text boxes, and charts; of a drawing that is there in two ways, the first."""
    for one in elements:
        name = name_of(one)
        if name in BOXES:
            yield one
        elif name == "AlternateContent":
            yield from next(filter(None, (list(_boxes(way)) for way in one)), [])
        else:
            yield from _boxes(one)


def _formula(element: Xml.Element) -> str:
    """A formula in a line: `(a+b)/c`, `x^2`."""
    name = name_of(element)
    if name == "t":
        return element.text or ""
    parts = [_formula(one) for one in element if not name_of(one).endswith("Pr")]
    if name in {"f", "sSup", "sSub", "rad"} and len(parts) == 2:
        sign = {"f": "/", "sSup": "^", "sSub": "_", "rad": "√"}[name]
        return f"{_grouped(parts[0]) if name != 'sSup' else parts[0]}{sign}{_grouped(parts[1])}"
    if name == "sSubSup" and len(parts) == 3:
        return f"{parts[0]}_{_grouped(parts[1])}^{_grouped(parts[2])}"
    if name == "nary":
        sign = attribute(child(element, "naryPr", "chr")) or "∫"
        return f"{sign}_{_grouped(parts[0])}^{_grouped(parts[1])} {''.join(parts[2:])}"
    return f"({', '.join(parts)})" if name == "d" else "".join(parts)


def _grouped(part: str) -> str:
    return part if part.isalnum() or len(part) < 2 else f"({part})"
