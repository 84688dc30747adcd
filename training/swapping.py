"""Swaps rare words of a training row for others of the same kind, in question and text alike.

A model memorizes questions that it sees often. Other names, years and nouns make them new, and the
answer's place stays: a word is replaced by one of as many tokens, wherever it occurs in the row.
The text need not make sense; the model learns to find what the question names.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tokenizers import Tokenizer

from training.features import Features

_SWAPPED_ROWS = 0.7
"""The share of rows that have words swapped at all; the rest keep real names and years."""

_COMMON_SHARE = 0.01
"""A word in more than this share of the rows stays, unless it is a number."""

_MIN_LETTERS = 4
"""Shorter words are mostly those of grammar, which stay."""
_ENDINGS = ("ing", "ed", "ly", "ies", "es", "s", "ion", "al", "er", "an")

_Word = tuple[int, ...]
_Kind = tuple[int, str]
"""How many tokens, and the ending or, of a number, how many digits."""


def swap_words(
    rows: Sequence[Features], tokenizer: Tokenizer, share: float, seed: int
) -> list[Features]:
    """Swaps some rare words of most rows for others from the rows; keeps order and lengths.

    Args:
        share: Of a row's different rare words, the share to replace, in (0, 1].
    """
    pieces = {number: piece for piece, number in tokenizer.get_vocab().items()}
    cut = [list(_words(row.input_ids.tolist(), pieces)) for row in rows]
    kinds = _rare_words(cut, pieces)
    alike: dict[_Kind, list[_Word]] = defaultdict(list)
    for word, kind in kinds.items():
        alike[kind].append(word)
    rng = random.Random(seed)
    swapped = []
    for row, words in zip(rows, cut, strict=True):
        ids = row.input_ids.copy()
        others: dict[_Word, _Word] = {}
        for place, word in words if rng.random() < _SWAPPED_ROWS else ():
            if word in kinds and word not in others:
                is_swapped = rng.random() < share
                others[word] = rng.choice(alike[kinds[word]]) if is_swapped else word
            ids[place : place + len(word)] = others.get(word, word)
        swapped.append(replace(row, input_ids=ids))
    return swapped


def _rare_words(
    cut: Sequence[Sequence[tuple[int, _Word]]], pieces: dict[int, str]
) -> dict[_Word, _Kind]:
    rows_with: Counter[_Word] = Counter()
    for words in cut:
        rows_with.update({word for _, word in words})
    most = _COMMON_SHARE * len(cut)
    return {
        word: kind
        for word, count in rows_with.items()
        if (kind := _kind(word, pieces)) and (count <= most or kind[1].isdigit())
    }


def _words(ids: Sequence[int], pieces: dict[int, str]) -> Iterator[tuple[int, _Word]]:
    """Each word's place and tokens: one that begins it and those marked `##` after it."""
    begin = 0
    for stop in range(1, len(ids) + 1):
        if stop == len(ids) or not pieces[ids[stop]].startswith("##"):
            yield begin, tuple(ids[begin:stop])
            begin = stop


def _kind(word: _Word, pieces: dict[int, str]) -> _Kind | None:
    """Words of one kind have as many tokens and end alike, or have as many digits."""
    text = "".join(pieces[token].removeprefix("##") for token in word)
    if text.isdigit():
        return len(word), str(len(text))
    if not text.isalpha() or not text.isascii() or len(text) < _MIN_LETTERS:
        return None
    return len(word), next((ending for ending in _ENDINGS if text.endswith(ending)), "")
