"""Caches the tokens of words.

BERT's tokenizers cut a text at white space and punctuation, and tokenize each word by itself, so
that a word has the same tokens in every text. The tokens of a text are joined from those of its
words; only new words are tokenized. A text with many new words, and any text of another tokenizer,
is tokenized whole. What is tokenized of a batch goes to the tokenizer at once: it gives up Python's
lock, and on a GPU's instance has threads of its own.
"""

from __future__ import annotations

import itertools
import operator
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer


class Offsets(Protocol):
    """Start and end of each token of a text, in code points."""

    def __len__(self) -> int:
        """How many tokens there are."""

    def __getitem__(self, token: int, /) -> tuple[int, int]:
        """Those of one token, counted from 0."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Those of all tokens."""


Tokens = tuple[list[int], Offsets]
"""The ids and offsets of a text's tokens."""

Word = tuple[list[int], Sequence[tuple[int, int]] | None]
"""The ids of a word's tokens, and their offsets in it; None for one token that is all of it."""

MAX_WORDS = 1 << 16
"""Some 25 MB; then the cache is emptied."""
MAX_WORD_CHARS = 32
"""Longer words, such as hashes, seldom come again; leaving them out bounds the cache's bytes."""
MAX_NEW = 16
"""A text with more new words is tokenized whole, which is cheaper."""

_PUNCTUATION = r"!-/:-@\[-`{-~\u2013\u2014\u2018\u2019\u201c\u201d\u2026"
"""ASCII's, dashes, quotation marks and the ellipsis; other punctuation is part of a word here."""
_WORD = re.compile(rf"([^\t\n\r {_PUNCTUATION}]+|[{_PUNCTUATION}])")
"""A cut here is one of the tokenizer's too, whatever is within a word."""

_ids_of = operator.itemgetter(0)


class JoinedOffsets:
    """The offsets of a text that is joined from words, each computed when it is asked for.

    An answer needs a few of a text's hundreds, and objects for all of them would be most of what an
    instance does for it.

    Args:
        pieces: What is before a word, and the word, by turns.
        words: What is known of each word.
    """

    def __init__(self, pieces: Sequence[str], words: Sequence[Word], num_tokens: int) -> None:
        self._pieces = pieces
        self._words = words
        self._num_tokens = num_tokens

    def __len__(self) -> int:
        """How many tokens the text has."""
        return self._num_tokens

    def __getitem__(self, token: int, /) -> tuple[int, int]:
        """The start and end of a token, counted from 0; an `IndexError` past the last."""
        if not 0 <= token < self._num_tokens:
            raise IndexError(token)
        number = bisect_right(self._tokens_until, token)
        start, end = self._piece_ends[2 * number : 2 * number + 2]
        ids, within = self._words[number]
        if within is None:
            return start, end
        first, last = within[token - self._tokens_until[number] + len(ids)]
        return start + first, start + last

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The start and end of each token."""
        for (_, within), start, end in zip(
            self._words, self._piece_ends[::2], self._piece_ends[1::2], strict=False
        ):
            if within is None:
                yield start, end
            else:
                for first, last in within:
                    yield start + first, start + last

    @cached_property
    def _tokens_until(self) -> list[int]:
        """How many tokens there are up to each word's end."""
        return list(itertools.accumulate(map(len, map(_ids_of, self._words))))

    @cached_property
    def _piece_ends(self) -> list[int]:
        return list(itertools.accumulate(map(len, self._pieces)))


@dataclass(frozen=True, slots=True)
class _Cut:
    """A text cut into words.

    Attributes:
        pieces: What is before a word, and the word, by turns; at last what is after all words.
        words: What is known of each word; None for a new one.
    """

    pieces: list[str]
    words: list[Word | None]

    def new(self) -> list[str]:
        """The new words, up to `MAX_NEW` of them."""
        if None not in self.words:
            return []
        words = zip(self.pieces[1::2], self.words, strict=True)
        every = dict.fromkeys(text for text, word in words if word is None)
        return list(itertools.islice(every, MAX_NEW))

    def joined(self, learned: Mapping[str, Word]) -> Tokens | None:
        """The text's tokens, with those of new words; None if some are not among these."""
        words: list[Word | None] = self.words
        if None in words:
            named = zip(self.pieces[1::2], words, strict=True)
            words = [learned.get(text) if word is None else word for text, word in named]
        known = [word for word in words if word is not None]
        if len(known) < len(words):
            return None
        ids = list(itertools.chain.from_iterable(map(_ids_of, known)))
        return ids, JoinedOffsets(self.pieces, known, len(ids))


class Words:
    """Tokenizes texts without special tokens, by a fast tokenizer that reads them as text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, Word] = {}
        added = tokenizer.get_added_tokens_decoder().values()
        self._is_by_words = (
            isinstance(tokenizer.model, WordPiece)
            and isinstance(tokenizer.normalizer, BertNormalizer)
            and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
            and all(token.special for token in added)
        )

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The ids and offsets of each text's tokens."""
        cuts = [self._cut(text) for text in texts]
        learned = self._learn({word for cut in cuts if cut for word in cut.new()})
        found = [cut.joined(learned) if cut else None for cut in cuts]
        others = [text for text, tokens in zip(texts, found, strict=True) if tokens is None]
        whole = iter(self._tokenize(others))
        return [next(whole) if tokens is None else tokens for tokens in found]

    def _cut(self, text: str) -> _Cut | None:
        """A text's words; None for a tokenizer that may look at several at once."""
        if not self._is_by_words:
            return None
        pieces = _WORD.split(text)
        return _Cut(pieces, list(map(self._known.get, pieces[1::2])))

    def _learn(self, texts: Iterable[str]) -> dict[str, Word]:
        """Tokenizes words, and caches what was found."""
        new = sorted(texts)
        learned: dict[str, Word] = {}
        for text, (ids, offsets) in zip(new, self._tokenize(new), strict=True):
            is_one_token = offsets == [(0, len(text))]
            word = learned[text] = ids, None if is_one_token else offsets
            if len(text) <= MAX_WORD_CHARS:
                if len(self._known) >= MAX_WORDS:
                    self._known.clear()
                self._known[text] = word
        return learned

    def _tokenize(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        if not texts:
            return []
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]
