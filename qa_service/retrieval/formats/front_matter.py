"""What stands before a text: YAML between `---`, TOML between `+++`.

Taken are the title and, for filters, the fields that are values or lists of values.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Container, Iterator, Mapping
from datetime import date, time

from qa_service.retrieval.documents import MAX_FIELDS, FieldValues
from qa_service.retrieval.filters import text_of

_FRONT = re.compile(
    r"\ufeff?(?P<mark>---|\+\+\+)[ \t]*\n(?P<matter>(?:.*\n)*?)(?P=mark)[ \t]*(?:\n|\Z)"
)
_TITLE = re.compile(r"^title[ \t]*[:=][ \t]*(?P<title>.*)$", re.MULTILINE | re.IGNORECASE)
_FOLDED = re.compile(r"[>|][+-]?[ \t]*\n(?P<text>(?:[ \t]+.*\n?)+)")
_MAX_CHARS = 20_000
_MAX_NAME_CHARS = 64
_YAML_FIELD = re.compile(r"(?P<name>[^\s:#\-'\"{\[][^:]*?)[ \t]*:(?:[ \t]+(?P<value>.*))?")
_YAML_ITEM = re.compile(r"[ \t]*-[ \t]+(?P<value>.*)")
_YAML_LIST = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,]*)\s*(?:,|$)""")


def split_front_matter(text: str) -> tuple[str, str, int]:
    """A file's title, its text behind the front matter, and the line where that begins, from 1."""
    found = _FRONT.match(text[:_MAX_CHARS])
    if found is None:
        return "", text, 1
    matter, title = found["matter"], ""
    if named := _TITLE.search(matter):
        long = _FOLDED.match(matter, named.start("title"))
        title = " ".join(long["text"].split()) if long else _scalar(named["title"])
    return title, text[found.end() :], 1 + text.count("\n", 0, found.end())


def _scalar(words: str) -> str:
    """A YAML or TOML value without its quotes, or without the comment behind it."""
    words = words.strip()
    if words[:1] in {'"', "'"} and words.endswith(words[0]) and len(words) > 1:
        return words[1:-1].replace(f"\\{words[0]}", words[0]).replace("''", "'")
    return words.split(" #")[0].strip()


def front_fields(text: str) -> dict[str, FieldValues]:
    """The fields of a file's front matter, for filters; its title is the document's."""
    found = _FRONT.match(text[:_MAX_CHARS])
    if found is None:
        return {}
    matter = found["matter"]
    if found["mark"] == "---":
        return fields_of(dict(_yaml_fields(matter)), leave_out={"title"})
    try:
        return fields_of(tomllib.loads(matter), leave_out={"title"})
    except tomllib.TOMLDecodeError:
        return {}


def fields_of(found: Mapping[str, object], leave_out: Container[str]) -> dict[str, FieldValues]:
    """The values of fields as texts; only values and lists of values, and a bounded number."""
    fields = dict[str, FieldValues]()
    for name, value in found.items():
        values = value if isinstance(value, list) else [value]
        kinds = (str, int, float, bool, date, time)
        texts = [text_of(one) for one in values[:MAX_FIELDS] if isinstance(one, kinds)]
        is_name = name not in leave_out and 0 < len(name) <= _MAX_NAME_CHARS
        if is_name and any(texts) and len(fields) < MAX_FIELDS:
            fields[name] = tuple(filter(None, texts))
    return fields


def _yaml_fields(matter: str) -> Iterator[tuple[str, list[str]]]:
    """The fields at the left edge whose values are in one line, or a list."""
    name, values = "", list[str]()
    for line in matter.splitlines():
        item = _YAML_ITEM.fullmatch(line)
        if item and name:
            values.append(_scalar(item["value"]))
        elif field := _YAML_FIELD.fullmatch(line):
            if name:
                yield name, values
            name, value = field["name"], (field["value"] or "").strip()
            if value.startswith("["):
                inside = value.split(" #")[0].strip().removeprefix("[").removesuffix("]")
                values = [_scalar(one) for one in _YAML_LIST.findall(inside)]
            else:
                values = [] if value[:1] in {">", "|", "{", "&", "*"} else [_scalar(value)]
    if name:
        yield name, values
