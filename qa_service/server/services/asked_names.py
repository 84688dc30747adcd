"""Names and years of a question, and how many of them a passage lacks.

Passages that do not name the town, product or year that a question is about mostly do not answer
it.
"""

from __future__ import annotations

import re

from qa_service.wire.messages import Passage

_WORD = re.compile(r"\w+")
_YEAR = re.compile(r"(?:19|20)\d\d", re.ASCII)
_PLURAL_CHARS = 4
"""From this length on a word loses its final "s", which the passage may lack."""


def asked_names(question: str) -> set[str]:
    """The words of a question with an uppercase letter, and its years; in lower case.

    The first word counts if it has one after its first letter. Where every word begins with one, as
    in a title, none is a name.
    """
    words = _WORD.findall(question)
    if all(word[0].isupper() for word in words):
        return set()
    names = set()
    for number, word in enumerate(words):
        has_capital = word[1:] != word[1:].lower() or (word[0].isupper() and number > 0)
        if len(word) > 1 and (has_capital or _YEAR.fullmatch(word)):
            name = word.casefold()
            names.add(name.removesuffix("s") if len(name) >= _PLURAL_CHARS else name)
    return names


def count_missing(names: set[str], passage: Passage) -> int:
    """How many names stand neither in a passage nor in its headings, title and path."""
    if not names:
        return 0
    parts = passage.document, passage.title, passage.heading, passage.text
    text = "\n".join(parts).casefold()
    return sum(name not in text for name in names)
