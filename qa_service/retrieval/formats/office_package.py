"""The parts of a file of Office Open XML: a zip archive whose parts name one another by relations.

Format: ECMA-376, part 2. Elements and attributes are known by their names without namespaces, so
that files of the transitional and of the strict kind are read alike.
"""

from __future__ import annotations

import functools
import io
import posixpath
import re
import zipfile
from collections.abc import Iterator
from typing import IO
from xml.etree import ElementTree as Xml

_TITLE = "docProps/core.xml"
_PAGE = re.compile(
    r"\bp ?a?g ?e?\b\.?[\s|]*\d+(?:\s*(?:of|/)\s*\d+)?|\b\d+\s*\|\s*p ?a ?g ?e\b", re.IGNORECASE
)
_NUMBER = re.compile(r"(?:p ?a?g ?e?\b|of\b|[\W\d_])*", re.IGNORECASE)


class OfficePackage:
    """A package that is open.

    Args:
        data: A zip archive, whose size unpacked has been checked.

    Attributes:
        main: The name of the part that is the document itself.
    """

    def __init__(self, data: bytes) -> None:
        self._archive = zipfile.ZipFile(io.BytesIO(data))
        self._names = set(self._archive.namelist())
        self.main = self.related("", "officeDocument")[0]

    def open(self, name: str) -> IO[bytes]:
        return self._archive.open(name)

    def read(self, name: str) -> Xml.Element:
        return Xml.fromstring(self._archive.read(name))

    def document(self, kind: str) -> Xml.Element:
        found = self.read(self.main)
        if name_of(found) != kind:
            raise ValueError(f"it holds a {name_of(found)[:40]}")
        return found

    def part(self, kind: str) -> Xml.Element:
        """A part of the document, such as its `styles`; an empty element if there is none."""
        return next(map(self.read, self.related(self.main, kind)), Xml.Element(kind))

    def title(self) -> str:
        """What the file's properties say that it is called."""
        return text_of(self.read(_TITLE).find("{*}title")) if _TITLE in self._names else ""

    def related(self, source: str, kind: str) -> list[str]:
        """The parts of a kind that are there and to which a part has a relation."""
        return [name for its, name in self.relations(source).values() if its == kind]

    def relations(self, source: str) -> dict[str, tuple[str, str]]:
        """A part's relations by their ids: the kinds, and the names of parts that are there."""
        folder, name = posixpath.split(source)
        relations = posixpath.join(folder, "_rels", f"{name}.rels")
        if source and relations not in self._names:
            return {}
        found = dict[str, tuple[str, str]]()
        for entry in self.read(relations):
            path = posixpath.normpath(posixpath.join("/", folder, entry.get("Target", "")))
            if path.lstrip("/") in self._names:
                kind = entry.get("Type", "").rpartition("/")[2]
                found[entry.get("Id", "")] = kind, path.lstrip("/")
        return found


@functools.lru_cache(maxsize=4096)
def _without_namespace(name: str) -> str:
    return name.rpartition("}")[2]


def name_of(element: Xml.Element) -> str:
    return _without_namespace(element.tag)


def attribute(element: Xml.Element | None, name: str = "val") -> str:
    """An attribute's value, of whatever namespace; "" if it is missing."""
    for key, value in element.items() if element is not None else ():
        if _without_namespace(key) == name:
            return value
    return ""


def number(element: Xml.Element | None, name: str = "val") -> int | None:
    """An attribute's whole number; None if it is missing, or no number of up to nine digits."""
    value = attribute(element, name)
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None


def child(element: Xml.Element | None, *path: str) -> Xml.Element | None:
    """The first element along a path of names; None if it is missing."""
    for name in path:
        if element is None:
            return None
        for one in element:
            if _without_namespace(one.tag) == name:
                element = one
                break
        else:
            return None
    return element


def is_on(element: Xml.Element | None) -> bool:
    """Whether a property is there, and not switched off."""
    return element is not None and attribute(element) not in {"0", "false", "off", "none"}


def descendants(element: Xml.Element, name: str) -> Iterator[Xml.Element]:
    return (one for one in element.iter() if name_of(one) == name)


def text_of(element: Xml.Element | None) -> str:
    """All text below an element, with single spaces."""
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def without_page_number(line: str) -> str:
    """What a line above or below a page's text says on all pages; "" if it is the page's number."""
    words = " ".join(_PAGE.sub("", line).split())
    return "" if _NUMBER.fullmatch(words) else words
