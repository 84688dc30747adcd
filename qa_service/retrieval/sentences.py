"""Where sentences end, and about how many tokens they have. No tokenizer: any model may read them.

A sentence ends at `.`, `!` or `?` before white space, at their full-width forms, before an empty
line, and before a list's item or a table's row. Not at the full stop of an abbreviation, an
initial or a list's number. One of more tokens than it may have is cut between words.
"""

from __future__ import annotations

# ruff: noqa: RUF001, the signs of other scripts are meant
import re
from collections.abc import Iterator

from qa_service.wire.sections import PIECES

_BREAK = re.compile(
    r"(?P<paragraph>\n[ \t\r]*\n)"
    r"|(?P<item>\n(?=[ \t]{0,12}(?:[-*+•|]|\d{1,3}[.)])[ \t]))"
    r"|(?P<stop>(?:(?<=[^\s.!?…])|(?<=[^\s.!?…]\s))[.!?…]{1,8}[\"'”’»)\]*_]{0,4}(?=\s))"
    r"|(?P<wide>[。！？][”’」』）]{0,4})"
)
_ABBREVIATIONS = frozenset({
    "al", "approx", "bzw", "ca", "cf", "co", "corp", "dept", "dr", "e.g", "ed", "eds", "fig",
    "figs", "gen", "gov", "hr", "i.e", "inc", "jr", "lt", "ltd", "m.e", "mme", "mr", "mrs", "ms",
    "mt", "nr", "no", "p", "pp", "prof", "rep", "rev", "sen", "sr", "st", "u.a", "usw", "vgl",
    "vol", "vs", "z.b",
})  # fmt: skip
_CELL_END = re.compile("; ")
_WORD_CHARS = 12  # before a full stop are looked at; abbreviations are shorter
MAX_CHARS_PER_TOKEN = 8
"""A sentence is also cut at this number of characters per token: white space is no token."""


# Each yields the parts' starts, ends and tokens: about how many a model's tokenizer makes of them.


def sentences(text: str, start: int, end: int, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """Sentences without the white space around them; together they hold all else."""
    for found in (*_BREAK.finditer(text, start, end), None):
        is_stop = found is not None and found.lastgroup == "stop"
        if found and is_stop and not _ends_sentence(text, found.start(), found.end()):
            continue
        after = found.end() if found else end
        if stripped := text[start:after].strip():
            begin = text.index(stripped[0], start)
            yield from parts(text, begin, begin + len(stripped), max_tokens)
        start = after


def _ends_sentence(text: str, stop: int, after: int) -> bool:
    """Whether a sentence ends at a sign that stands before white space."""
    if text[stop] != ".":
        return True
    following = text[after : after + 2].lstrip()
    if following[:1].islower():
        return False
    if after > stop + 1:  # a quotation or a bracket ends with it
        return True
    words = text[max(0, stop - _WORD_CHARS) : stop].split()
    word = words[-1].lstrip("(\"'“‘[") if words and not text[stop - 1].isspace() else ""
    is_initial = len(word) == 1 and word.isupper()
    is_item = word.isdecimal() and len(word) <= 2 and not text.endswith(f" {word}", 0, stop)
    return not (is_initial or is_item or word.lower() in _ABBREVIATIONS)


def lines(text: str, start: int, end: int, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """Lines without empty ones, and the parts of those that are too long."""
    while start < end:
        found = text.find("\n", start, end)
        line_end = end if found < 0 else found
        if not text[start:line_end].isspace() and start < line_end:
            yield from parts(text, start, line_end, max_tokens)
        start = line_end + 1


def cells(text: str, start: int, end: int, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """A table's row; of one that is too long, some cells each."""
    begin, place, tokens = start, start, 0
    for cell_end in (*(found.end() for found in _CELL_END.finditer(text, start, end)), end):
        size = len(PIECES.findall(text, place, cell_end))
        if tokens and tokens + size > max_tokens:
            yield from parts(text, begin, place - len("; "), max_tokens)
            begin, tokens = place, 0
        place, tokens = cell_end, tokens + size
    yield from parts(text, begin, end, max_tokens)


def parts(text: str, start: int, end: int, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """All of it, or pieces between words if it is too long."""
    max_chars = max_tokens * MAX_CHARS_PER_TOKEN
    if end - start <= max_chars:
        tokens = len(PIECES.findall(text, start, end))
        if tokens <= max_tokens:
            yield start, end, tokens
            return
    tokens = word_start = tokens_before = 0
    for piece in PIECES.finditer(text, start, end):
        place = piece.start()
        if text[place - 1 : place].isspace():
            word_start, tokens_before = place, tokens
        if tokens == max_tokens or piece.end() - start > max_chars:
            cut, kept = (word_start, tokens_before) if word_start > start else (place, tokens)
            yield start, start + len(text[start:cut].rstrip()), kept
            start, tokens = cut, tokens - kept
        tokens += 1
    yield start, end, tokens
