"""The text of Word's paragraphs: what is inserted and not what is deleted, and no codes of fields.

Format: ECMA-376, part 1, 17.3.2 (runs), 17.16 (fields) and 22.1 (formulas).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from xml.etree import ElementTree as Xml

from qa_service.retrieval.formats.office_package import attribute, child, is_on, name_of, number

WRAPPERS = frozenset(
    {"Choice", "bdo", "body", "customXml", "dir", "fldSimple", "hyperlink", "ins", "moveTo"}
    | {"ruby", "rubyBase", "sdt", "sdtContent", "smartTag"}
)
"""Elements whose content stands where they do."""
_SIGNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_GREEK = dict(zip(range(ord("a"), ord("p")), "αβχδεφγηιϕκλμνο", strict=True))
_MATHS = dict(zip(b"\xa3\xae\xb0\xb1\xb3\xb4\xb7\xb8\xb9\xbb", "≤→°±≥×•÷≠≈", strict=True))  # noqa: RUF001, the sign
_MARKS = dict(zip(b"\x6f\xa8\xe0\xfb\xfc\xfd\xfe", "☐☐→✗✓☒☑", strict=True))
_SYMBOLS = {"symbol": _GREEK | _MATHS | {ord("D"): "Δ", ord("W"): "Ω"}, "wingdings": _MARKS}
"""Characters of fonts that have signs in the place of letters."""

Notes = Mapping[tuple[str, str], Xml.Element]
"""Foot- and endnotes by their kind and number."""


class WordText:
    """A paragraph's text, and what is anchored in it.

    Attributes:
        boxes: Its text boxes' contents.
        notes: Its notes.
    """

    def __init__(self, paragraph: Xml.Element, notes: Notes) -> None:
        self._all_notes = notes
        self._parts = list[str]()
        self._fields = list[bool]()
        """Of each field that is open, whether its code has ended."""
        self.boxes = list[Xml.Element]()
        self.notes = list[Xml.Element]()
        self.is_bold = True
        self._add(paragraph)

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
        is_hidden = is_on(child(run, "rPr", "vanish"))
        before = len(self._parts)
        for one in run:
            name = name_of(one)
            if name == "fldChar":
                self._at_field(one)
            elif is_hidden or not all(self._fields):
                continue
            elif name in {"footnoteReference", "endnoteReference"}:
                note = self._all_notes.get((name.removesuffix("Reference"), attribute(one, "id")))
                self.notes += [note] if note is not None else []
            elif name in {"drawing", "pict", "object", "AlternateContent"}:
                self.boxes += _boxes([one])
            else:
                self._parts.append(_character(one, name))
        if any(part.strip() for part in self._parts[before:]):
            self.is_bold &= is_on(child(run, "rPr", "b"))

    def _at_field(self, element: Xml.Element) -> None:
        """A field begins, its result begins, or it ends; old forms' fields hold their values."""
        kind = attribute(element, "fldCharType")
        if kind == "begin":
            self._parts.append(_form_value(element))
            self._fields.append(False)
        elif kind == "separate" and self._fields:
            self._fields[-1] = True
        elif kind == "end" and self._fields:
            self._fields.pop()


def _character(element: Xml.Element, name: str) -> str:
    """A part of a run as characters."""
    if name == "t":
        return element.text or ""
    if name == "sym":
        code = attribute(element, "char")[-2:]
        font = attribute(element, "font").lower()
        return _SYMBOLS.get(font, {}).get(int(code, 16), "") if code else ""
    return _SIGNS.get(name, "")


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


def _boxes(elements: Iterable[Xml.Element]) -> Iterator[Xml.Element]:
    """The contents of text boxes; where a drawing is there in two ways, of the first."""
    for one in elements:
        name = name_of(one)
        if name == "txbxContent":
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
