"""How a text becomes words: the same for what is indexed and for a question.

    text ─▶ NFKC ─▶ words and their parts ─▶ lower case ─▶ accents folded ─▶ stems
            └───── `words_of`, here ────┘    └──── tantivy's filters ───────────┘

| in the text | its words |
|---|---|
| `résumés`, in NFC or NFD; `ﬁle` with a ligature | `resum`; `file` |
| `e-mail`, `--no-verify-ssl`, `max_connections`, `maxConnections` | its letters as one; its parts |
| `asyncio.run`, `/etc/hosts`, `3.11` | with the signs between as one; its parts |
| `C#`, `C++`, `-v`, `.NET` | with the signs; without |
| Chinese, Japanese, Korean, Thai and other scripts without spaces | every two signs; each sign |

A question asks for every two signs of such a script, and for a single sign only if it stands alone.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator

import regex

_CONNECTORS = "-._/+#"
"""Signs that a word may have at its ends or between its parts; all others part words."""

_REMOVED = frozenset({0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, *range(0x300, 0x370)})
"""Soft hyphens, signs without a width, and accents that NFKC could not join with a letter."""

_HYPHENS = frozenset({0x2010, 0x2011, 0x2212})
_KEPT_MARKS = frozenset("йЙїЇўЎ")
"""Cyrillic letters that are no others with an accent."""

_UNSPACED = regex.compile(
    r"[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Script=Bopomofo}"
    r"\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}\p{Script=Tibetan}々〆ー]+"
)
"""Scripts without spaces between words, and Hangul, whose words take endings without one."""

_JOINTS = regex.compile(r"[-_+#]+|(?<=\p{Ll})(?=\p{Lu})")
_STEPS = regex.compile(r"[./]+")
_AFTER = ("++", "#")
_MAX_CACHED = 1 << 14


def words_of(text: str, *, is_question: bool = False) -> str:
    """A text's words in their order, with white space between: what tantivy is given.

    Args:
        is_question: Whether single signs of a script without spaces are left out next to pairs.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    found: list[str] = []
    for chunk in text.translate(_SIGNS).split():
        if chunk.isascii():
            is_plain = chunk.isalnum() and (chunk.islower() or chunk[0].isupper())
            found.extend((chunk,) if is_plain else _words_of_compound(chunk))
        else:
            found.extend(_words_of_scripts(chunk, is_question))
    return " ".join(found)


class _Signs(dict[int, int | None]):
    """What each sign becomes: itself, its letter without accent, a space, or nothing."""

    def __missing__(self, code: int) -> int | None:
        sign, found = chr(code), code
        if code in _REMOVED:
            self[code] = None
            return None
        if code in _HYPHENS:
            found = ord("-")
        elif sign not in _CONNECTORS and not sign.isspace():
            name = unicodedata.name(sign, "")
            if unicodedata.category(sign)[0] not in "LMN":
                found = ord(" ")
            elif name.startswith(("GREEK", "CYRILLIC")) and sign not in _KEPT_MARKS:
                found = ord(unicodedata.normalize("NFD", sign)[0].replace("ς", "σ"))  # noqa: RUF001
        self[code] = found
        return found


_SIGNS = _Signs()


def _words_of_scripts(chunk: str, is_question: bool) -> Iterator[str]:
    """The words of a piece between spaces that has other letters than ASCII's."""
    at = 0
    for run in _UNSPACED.finditer(chunk):
        if before := chunk[at : run.start()]:
            yield from _words_of_compound(before)
        signs = run[0]
        if not is_question or len(signs) == 1:
            yield from signs
        yield from (signs[place : place + 2] for place in range(len(signs) - 1))
        at = run.end()
    if rest := chunk[at:]:
        yield from _words_of_compound(rest)


@functools.lru_cache(_MAX_CACHED)
def _words_of_compound(chunk: str) -> tuple[str, ...]:
    """The words of a piece between spaces: all of it, the steps of a path or name, their parts."""
    core = chunk.strip(_CONNECTORS)
    if not core:
        return ()
    found: dict[str, None] = {}
    start = chunk.index(core)
    # Signs that belong to the word, as those of .NET, -v, C++ and C#.
    before, after = chunk[:start], chunk[start + len(core) :]
    if before != "." and not (before == "-" and len(core) == 1):
        before = ""
    after = next(filter(after.startswith, _AFTER), "")
    if before or after:
        found[before + core + after] = None
    steps = [step for step in _STEPS.split(core) if step]
    found[".".join(_joined(step) for step in steps) if "/" not in core else core] = None
    for step in steps:
        found[_joined(step)] = None
        parts = _JOINTS.split(step) if step[0].islower() or not step.isalnum() else [step]
        found.update((part, None) for part in parts if part)
    return tuple(found)


def _joined(step: str) -> str:
    return step.translate(_JOINED)


_JOINED = dict.fromkeys(map(ord, "-_+#"))
