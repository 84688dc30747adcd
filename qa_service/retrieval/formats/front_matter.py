"""What stands before a text: YAML between `---`, TOML between `+++`. Only the title is taken."""

from __future__ import annotations

import re

_FRONT = re.compile(
    r"\ufeff?(?P<mark>---|\+\+\+)[ \t]*\n(?P<matter>(?:.*\n)*?)(?P=mark)[ \t]*(?:\n|\Z)"
)
_TITLE = re.compile(r"^title[ \t]*[:=][ \t]*(?P<title>.*)$", re.MULTILINE | re.IGNORECASE)
_FOLDED = re.compile(r"[>|][+-]?[ \t]*\n(?P<text>(?:[ \t]+.*\n?)+)")
_MAX_CHARS = 20_000


def split_front_matter(text: str) -> tuple[str, str, int]:
    """A file's title, its text behind the front matter, and the line where that begins, from 1."""
    found = _FRONT.match(text[:_MAX_CHARS])
    if found is None:
        return "", text, 1
    return _title(found["matter"]), text[found.end() :], 1 + text.count("\n", 0, found.end())


def _title(matter: str) -> str:
    found = _TITLE.search(matter)
    if found is None:
        return ""
    if long := _FOLDED.match(matter, found.start("title")):
        return " ".join(long["text"].split())
    title = found["title"].strip()
    if title[:1] in {'"', "'"} and title.endswith(title[0]) and len(title) > 1:
        return title[1:-1].replace(f"\\{title[0]}", title[0]).replace("''", "'")
    return title.split(" #")[0].strip()
