"""Makes of a chosen span what a person would mark: whole characters and whole words.

Characters are extended grapheme clusters (Unicode UAX #29). Tokenizers cut inside them: those that
strip accents leave a combining mark out of the token before it, those that work on bytes cut
through a flag or an emoji.

A URL, a path, an option, an identifier or a number is not cut; a number has its sign and its unit;
the sentence's own punctuation, list marks and quotes that are not closed are left out.
"""

from __future__ import annotations

import re
from collections.abc import Container

import regex

_CLUSTERS = regex.compile(r"\X")
_MAX_CLUSTER_CHARS = 64
"""Text in Unicode's Stream-Safe Format (UAX #15) has at most 30 combining marks in a row."""
_MAX_RUN_CHARS = 2048
"""A longer run without white space is not widened to."""
_WHOLE = re.compile(
    r"""[A-Za-z][A-Za-z0-9+.-]*://[^\s<>"“”]+
      |(?<![\w*/])(?:[\w.~/-]*/)?\*{1,2}[./][\w./*-]+
      |(?:[^\s—\u2013;|"“”\u2018\u2019'`<>()\[\]{}«»,*]|(?<=\d),(?=\d)|\(\))+""",
    re.VERBOSE,
)
"""What may be one word: commas only between digits, parentheses only of a call, `*` of a pattern of
files."""
_TECHNICAL = re.compile(
    r"""://|^www\.|^--?[A-Za-z]|^[~.]{1,2}/|^\.[A-Za-z]|^\*|^(?:Alt|Cmd|Ctrl|Meta|Shift)-|[\\/=_\#@&+]|::|\(\)
      |[A-Za-z0-9]\.[a-z0-9]|[A-Z]\.[A-Z]|\d""",
    re.VERBOSE,
)
"""A word that must not be cut: `mother-in-law` may."""
_CUT_FREELY = re.compile(r"\d{3,4}[-/]\d{2,4}|\d+(?:st|nd|rd|th|s)?-[A-Za-z]{2,}.*")
"""Years from and to, `40-year-old`."""
_UNIT = re.compile(
    r"""[ \u00a0\u202f]?(?:°\s?[CFK]?|%|‰|[kcmdµn]?m|[kmµ]?g|[mµn]?s|[mk]?[VW]|[kMG]?Hz|[kM]?Pa
      |[kMG]?Wh|m?Ah|[KMGT]i?B|[kMG]bit|kB|km/h|mph|min|h|px|pt|dpi|fps|rpm|ft|lbs?|oz|[cm]?l|lm|lx|cd|Nm
      |k?cal|kJ|dB(?:\([A-Z]\))?|EUR|USD|GBP|CHF|[€£$¥])
      [²³]?(?:/[a-zA-Z]{1,3}[²³]?)?(?![\w-])""",
    re.VERBOSE,
)
_SPACED = re.compile(
    r"""(?<![\w+])\+\d{1,3}(?:[ .\-/]?\(\d{1,5}\)|[ .\-/]?\d{1,5}){2,7}(?![\w-])
      |(?<!\w)\(\d{2,5}\)[ -]?\d{2,4}(?:[ .-]\d{2,4}){0,3}(?![\w-])
      |(?<![\w.:])\d{1,2}(?:[:.]\d{2})?[ \u00a0\u202f]?(?:[ap]\.\s?m\.|[ap]m\b)
      |(?<![\w.])\d{1,3}\s?['\u2032]\s?\d{1,2}(?:\.\d+)?(?:["\u2033]|'')?(?!\w)
      |(?<![\w"])\d+(?:[.,/]\d+)?["\u2033](?!\w)""",
    re.VERBOSE | re.IGNORECASE,
)
"""Telephone numbers, times of the day, feet and inches: not cut where white space, a bracket or a
quotation mark stands in them."""
_BEFORE_SPACED = re.compile(r"[\d\s+.\-/():apmAPM'\u2032\"\u2033]*[\d+(]")
_AFTER_SPACED = re.compile(r"\s?[\d+.\-/():apmAPM'\u2032\"\u2033]")
"""What such a one has on both sides of a cut; before it, from the cut to its first character."""
_MAX_SPACED_CHARS = 40
"""A telephone number has at most 32 with its signs."""
_CURRENCY_BEFORE = re.compile(r"(?:[€£$¥]|\b(?:CHF|EUR|GBP|USD))[ \u00a0\u202f]\Z")
_NUMBER_BEFORE = re.compile(r"\d(?=[ \u00a0\u202f]?[^\s\d]{1,6}\Z)")
_LINE_MARKS = re.compile(r"(?:[>#]+\s+|[-*+•‣◦]\s+|\d{1,3}[.)]\s+|[*_]{2,}|(?:Q|A)\d*[:.]\s+)+")
_BULLETS = frozenset("•‣◦●○▪▫■□►▸➢➤❖")
"""Also within a line: a table's cell may hold a list."""
_STANDARD = re.compile(
    r"(?:(?:ISO|IEC|IEEE|EN|DIN|ANSI|RFC|PEP|CVE|BS|ASTM|ITU|ECMA|NIST)[/ -]?)+ ?\d[\w:-]*"
)
_FIRST_PLAIN = re.compile(r"(?<!\S)(?![AaPp][Mm]\b)[^\W\d_]+(?=,? |\Z)")
_LAST_PLAIN = re.compile(r"[^\W\d_][a-z]")
_AFTER_PLAIN = re.compile(r"[.,;:!?]?(?!\S)")
"""How a span begins and ends that is whole, whatever is between, and what follows it; a lead-in is
another matter."""
_LEAD_IN = frozenset(
    [*("a", "an", "as", "at", "by", "from", "in", "into", "is", "of", "on", "pass", "run", "set"),
     *("the", "to", "under", "use", "using", "via", "with")]
)  # fmt: skip
_LEAD_OUT = re.compile(
    r"""(?P<token>(?:--?[A-Za-z]|[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z]:\\|~?/|\.{1,2}/)[^\s"'“”<>]*)
      \s+(?:after|at|before|by|each|every|for|from|if|in|of|on|since|so|that|to|unless|until|when
      |where|which|while|with|without)\s""",
    re.VERBOSE,
)
"""An option, a URL or a path with what a sentence goes on to say of it."""
_LEADING_WORD = re.compile(r"([^\W\d_]+)\s+")
_LONE_WORD = re.compile(rf"\S+(?:{_UNIT.pattern})?", re.VERBOSE)
_SENTENCE_MARKS = ".,;:!?…"
_ABBREVIATION = re.compile(
    r"(?:\b\w\.){2,}$|\b(?:Inc|Ltd|Co|Corp|Jr|Sr|St|Dr|Mr|Mrs|Ms|No|vs|etc|al|[A-Z])\.$"
)
_PAIRS = {")": "(", "]": "[", "}": "{", "”": "“", "\u2019": "\u2018", "»": "«"}
_OPENING = "".join(_PAIRS.values())


def whole_words(
    text: str, start: int, end: int, asked: Container[str] = frozenset()
) -> tuple[int, int]:
    """Widens a span to whole words, and takes the sentence's marks off its ends.

    Args:
        asked: The question's words, in lower case.

    Returns:
        The span, in code points; empty if nothing but such marks was left.
    """
    if _is_plain(text, start, end):
        return _lead_in_end(text, start, end, asked), end
    start, end = _without_marks(text, start, end)
    if start == end:
        return start, end
    if _is_plain(text, start, end):
        return _lead_in_end(text, start, end, asked), end
    start = _word_at(text, start)[0]
    end = _word_at(text, end)[1]
    if text[start].isdigit() and (sign := _CURRENCY_BEFORE.search(text, max(0, start - 4), start)):
        start = sign.start()
    if spaced := _spaced_at(text, start, end):
        start, end = min(start, spaced.start()), max(end, spaced.end())
    elif unit := _unit_at(text, start, end):
        end = unit.end()
    elif text[end - 1].isupper() and (number := _STANDARD.match(text, start)):
        end = max(end, number.end())
    start = _lead_in_end(text, start, end, asked)
    if lead_out := _LEAD_OUT.match(text, start, end):
        end = lead_out.end("token")
    return start, end


def _is_plain(text: str, start: int, end: int) -> bool:
    """Whether a span is seen at once to begin and end with whole words of letters, as most do."""
    return bool(
        _LAST_PLAIN.match(text, end - 2, end)
        and _AFTER_PLAIN.match(text, end)
        and _FIRST_PLAIN.match(text, start, end)
    )


def _spaced_at(text: str, start: int, end: int) -> re.Match[str] | None:
    """The telephone number, time or length that a span begins or ends within."""
    for place in (start, end):
        if not _AFTER_SPACED.match(text, place):
            continue
        line = max(text.rfind("\n", 0, start) + 1, start - _MAX_RUN_CHARS)
        begin = max(line, start - _MAX_SPACED_CHARS)
        before = _BEFORE_SPACED.match(text[begin:place][::-1])
        if not before:
            continue  # the search that follows is slow
        for found in _SPACED.finditer(text, place - before.end(), end + _MAX_SPACED_CHARS):
            if found.start() >= place:
                break
            is_inches = found[0].endswith('"') and "'" not in found[0]
            if found.end() > place and not (is_inches and _is_quoted(text, line, found.start())):
                return found
    return None


def _is_quoted(text: str, line: int, place: int) -> bool:
    """Whether a place of a line is within quotation marks; one after a digit opens none."""
    is_open = False
    for mark in re.finditer('"', text[line:place]):
        is_open = not is_open and not text[line + mark.start() - 1 : line + mark.start()].isdigit()
    return is_open


def _unit_at(text: str, start: int, end: int) -> re.Match[str] | None:
    """The unit behind a number that a span ends with, or that it ends within."""
    if text[end - 1].isdigit():
        return _UNIT.match(text, end)
    number = _NUMBER_BEFORE.search(text, max(start, end - 8), end)
    unit = _UNIT.match(text, number.end()) if number else None
    return unit if unit and unit.end() > end else None


def _lead_in_end(text: str, start: int, end: int, asked: Container[str]) -> int:
    """Where a span begins without its lead-in, if all else is one technical word: "with -q".

    A lead-in has only prepositions, articles and words of the question ("the sign *").
    """
    begin = start
    while word := _LEADING_WORD.match(text, begin, end):
        lower = word[1].lower()
        if lower not in _LEAD_IN and lower not in asked:
            break
        begin = word.end()
    if begin == start or not (rest := _LONE_WORD.fullmatch(text, begin, end)):
        return start
    is_sign = not any(map(str.isalnum, rest[0]))
    is_number = rest[0].replace(",", "").replace(".", "").isdigit()
    return begin if is_sign or (_may_not_be_cut(rest[0]) and not is_number) else start


def _without_marks(text: str, start: int, end: int) -> tuple[int, int]:
    """Takes marks off the ends, until nothing changes; a sign among spaces stays."""
    if not text[max(0, text.rfind("\n", 0, start)) : start].strip() and (
        marks := _LINE_MARKS.match(text, start, end)
    ):
        start = marks.end()
    while start < end:
        first, last = text[start], text[end - 1]
        if first.isalnum() and last.isalnum():
            break
        if end - start == 1 and not (start and not text[start - 1].isspace()):
            break
        is_mark = last in _SENTENCE_MARKS and not _ABBREVIATION.search(
            text, max(start, end - 12), end
        )
        if last.isspace() or is_mark or _is_loose_end(text, start, end):
            end -= 1
        elif first.isspace() or first in ",;:!?`" or _is_loose_start(text, start, end):
            start += 1
        else:
            break
    return start, end


def _is_loose_end(text: str, start: int, end: int) -> bool:
    """Whether the last character is the next item's mark, or closes what is not opened."""
    last = text[end - 1]
    if last in _BULLETS:
        return start < end - 1 and text[end - 2].isspace()
    if last in "`*":
        return last == "`" or text[end - 2 : end] == "**" or text[end : end + 1] == "*"
    if last == '"':
        return text.count('"', start, end) % 2 == 1
    opening = _PAIRS.get(last)
    return opening is not None and text.count(last, start, end) > text.count(opening, start, end)


def _is_loose_start(text: str, start: int, end: int) -> bool:
    """Whether the first character is an item's mark, or opens what is not closed in the span."""
    first = text[start]
    if first in _BULLETS:
        return start + 1 < end and text[start + 1].isspace()
    if first == "*":
        return text[start : start + 2] == "**" or text[start - 1 : start] == "*"
    if first == '"':
        return text.count('"', start, end) % 2 == 1
    if first not in _OPENING:
        return False
    closing = next(mark for mark, opening in _PAIRS.items() if opening == first)
    return text.count(first, start, end) > text.count(closing, start, end)


def _word_at(text: str, position: int) -> tuple[int, int]:
    """The word that a cut at a position goes through; empty if that may be cut there."""
    if _AFTER_PLAIN.match(text, position) or position == 0 or text[position - 1].isspace():
        return position, position
    begin, limit = position - 1, position + _MAX_RUN_CHARS
    while begin > 0 and position - begin < _MAX_RUN_CHARS and not text[begin - 1].isspace():
        begin -= 1
    for word in _WHOLE.finditer(text, begin, limit):
        if word.end() <= position:
            continue
        end = word.end()
        while end > position and (text[end - 1] in _SENTENCE_MARKS):
            end -= 1
        if word.start() < position < end and _may_not_be_cut(text[word.start() : end]):
            return word.start(), end
        break
    return position, position


def _may_not_be_cut(word: str) -> bool:
    return bool(_TECHNICAL.search(word)) and not _CUT_FREELY.fullmatch(word)


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
