"""Ligatures in a PDF's words: "fi" is drawn as one sign, of which some files name only the "i"."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from statistics import median_low
from typing import Any

import numpy as np
import numpy.typing as npt

_WRITTEN = str.maketrans({
    "\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl",
    "\ufb05": "st", "\ufb06": "st",
})  # fmt: skip
_NAMED_BY = {"h": ("Th",), "i": ("fi", "ffi"), "l": ("fl", "ffl"), "t": ("ft",), "f": ("ff",)}
"""What a letter stands for that has the width of two or three."""
_RATIO, _LONG_RATIO = 1.6, 2.6
_EXCESS, _LETTER_SPACING = 15, 5
"""In hundredths of a font's height: how much wider a ligature is, and letters set apart are."""
_CODE_BITS = 21
_MAX_WIDTH = (1 << _CODE_BITS) - 1

_Array = npt.NDArray[Any]


class LetterWidths:
    """How wide the letters of a document's fonts are, in hundredths of their height."""

    def __init__(self) -> None:
        self._seen = defaultdict[tuple[str, str], Counter[int]](Counter)

    def spelled(
        self, codes: _Array, widths: _Array, is_shared: _Array, firsts: _Array, fonts: list[str]
    ) -> list[str]:
        """Words, with all letters of their ligatures.

        Args:
            codes: The characters of all words: int [characters], as the next two.
            widths: In hundredths of their height.
            is_shared: Whether the character before has the same place: PDFium takes ligatures apart
                that it knows.
            firsts: Where words begin among the characters: int [words].
            fonts: Of each word.
        """
        text = codes.astype("<u4").tobytes().decode("utf-32-le")
        bounds = list(pairwise([*firsts.tolist(), len(text)]))
        words = [text[first:end] for first, end in bounds]
        names = list(dict.fromkeys(fonts))
        numbers = {name: number for number, name in enumerate(names)}
        lengths = np.diff(firsts, append=len(text))
        font_of = np.repeat([numbers[font] for font in fonts], lengths)
        sizes = widths.clip(0, _MAX_WIDTH)
        keys = (((font_of << _CODE_BITS) | codes) << _CODE_BITS) | sizes
        wide = self._learn(keys, names)
        places = np.flatnonzero(np.isin(keys, wide)) if wide else ()
        for number in set(np.searchsorted(firsts, places, "right")):
            first, end = bounds[number - 1]
            words[number - 1] = self._spelled(
                words[number - 1],
                fonts[number - 1],
                sizes[first:end].tolist(),
                is_shared[first : end + 1].tolist(),
            )
        if np.isin(codes, list(_WRITTEN)).any():
            return [word.translate(_WRITTEN) for word in words]
        return words

    def _learn(self, keys: _Array, fonts: list[str]) -> list[int]:
        """Counts letters, each a font, a code point and a width; those that may be ligatures."""
        found, counts = np.unique(keys, return_counts=True)
        letters = [
            (fonts[key >> 2 * _CODE_BITS], chr(key >> _CODE_BITS & _MAX_WIDTH), key & _MAX_WIDTH)
            for key in found.tolist()
        ]
        for (font, letter, width), count in zip(letters, counts.tolist(), strict=True):
            self._seen[font, letter][width] += count
        return [
            key
            for key, (font, letter, width) in zip(found.tolist(), letters, strict=True)
            if letter in _NAMED_BY and font and self._excess(font, letter, width) >= _EXCESS
        ]

    def _excess(self, font: str, letter: str, width: int) -> int:
        """How much wider a letter is than most of its kind."""
        widths = self._seen[font, letter]
        if len(widths) == 1:
            return 0
        return width - max(widths, key=lambda width: (widths[width], -width))

    def _spelled(self, word: str, font: str, widths: list[int], is_shared: list[bool]) -> str:
        """A word with ligatures: their letters are wider than usual, while others are not.

        Of a word that is spaced out most are wider.
        """
        excess = [self._excess(font, *letter) for letter in zip(word, widths, strict=True)]
        if median_low(excess) > _LETTER_SPACING:
            return word
        parts = list[str]()
        for place, letter in enumerate(word):
            is_within = letter == "h" and place > 0  # "Th" begins a word
            names, width = () if is_within else _NAMED_BY.get(letter, ()), widths[place]
            ratio = width / max(1, width - excess[place])
            if not names or ratio < _RATIO or any(is_shared[place : place + 2]):
                parts.append(letter)
            else:
                parts.append(names[-1] if ratio > _LONG_RATIO else names[0])
        return "".join(parts)
