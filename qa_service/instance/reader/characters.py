"""Widens answers to whole extended grapheme clusters (Unicode UAX #29).

Tokenizers cut inside what people see as one character: those that strip accents leave a combining
mark out of the token before it, those that work on bytes cut through a flag or an emoji.
"""

from __future__ import annotations

import regex

_CLUSTERS = regex.compile(r"\X")
_MAX_CLUSTER_CHARS = 64
"""Text in Unicode's Stream-Safe Format (UAX #15) has at most 30 combining marks in a row."""


def stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Removes white space from a span's ends: a token may hold the space before a word."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def whole_characters(text: str, start: int, end: int) -> tuple[int, int]:
    """Widens a span, in code points, to whole grapheme clusters."""
    if text.isascii():
        return start, end
    return _cluster_at(text, start)[0], _cluster_at(text, end)[1]


def _cluster_at(text: str, position: int) -> tuple[int, int]:
    """Finds the cluster that a cut at `position` goes through; empty if it is between two."""
    if not 0 < position < len(text) or text[position - 1 : position + 1].isascii():
        return position, position
    begin = position - 1
    while begin > 0 and position - begin < _MAX_CLUSTER_CHARS and not text[begin].isascii():
        begin -= 1
    cluster = next(c for c in _CLUSTERS.finditer(text, begin) if c.end() >= position)
    return cluster.span() if cluster.end() > position else (position, position)
