"""Signs that a PDF's fonts draw, and that some files name by the letters in their place."""

from __future__ import annotations

import re
from functools import lru_cache

_FONT = re.compile(
    r"(?P<wingdings>wingdings(?!\s?[23]))|wingdings|webdings|dingbats", re.IGNORECASE
)
_SYMBOL = re.compile(r"symbol(?:mt|std|ps)?\b", re.IGNORECASE)
_PRIVATE = 0xF000
"""What is added to a letter's code for the sign that only its font knows, as Word does."""
_BULLET = "\u00b7"
_LETTERS = {chr(code): chr(_PRIVATE + code) for code in range(0x21, 0x100)}
_MARKS = dict(zip("\x6f\xa8\xfb\xfc\xfd\xfe", "☐☐✗✓☒☑", strict=True))
_OF_WINGDINGS = str.maketrans(
    _LETTERS | _MARKS | {_LETTERS[letter]: mark for letter, mark in _MARKS.items()}
)
_OF_SIGNS = str.maketrans(_LETTERS)
_OF_SYMBOL = str.maketrans({_BULLET: "•"})


def as_drawn(text: str, font: str) -> str:
    """A text of a font as it is seen."""
    return text.translate(signs) if (signs := _signs_of(font)) else text


@lru_cache(maxsize=1024)
def _signs_of(font: str) -> dict[int, str]:
    if found := _FONT.search(font):
        return _OF_WINGDINGS if found["wingdings"] else _OF_SIGNS
    return _OF_SYMBOL if _SYMBOL.search(font) else {}
