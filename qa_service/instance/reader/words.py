"""Caches the tokens of words.

BERT's tokenizers cut a text at white space and punctuation, and tokenize each word by itself, so
that a word has the same tokens in every text. The tokens of a text are joined from those of its
chunks, which are what is between spaces; a new chunk's are joined from those of its words. Only new
words are tokenized. A text with many of them, and any text of another tokenizer, is tokenized
whole. What is tokenized of a batch goes to the tokenizer at once: it gives up Python's lock, and on
a GPU's instance has separate threads.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from qa_service.instance.arrays import Int64Array


class Offsets(Protocol):
    """Start and end of each token of a text, in code points."""

    def __len__(self) -> int: ...

    def __getitem__(self, token: int, /) -> tuple[int, int]: ...

    def __iter__(self) -> Iterator[tuple[int, int]]: ...


Tokens = tuple[Int64Array, Offsets]
"""The ids and offsets of a text's tokens."""

Word = tuple[bytes, Sequence[tuple[int, int]] | None]
"""A mark and the ids of the tokens of a word or a chunk, an int64 each, and their offsets in it;
None for one token that is all of it."""

MAX_WORDS = 1 << 16
"""And chunks: some 28 MB; then the cache is emptied."""
MAX_WORD_CHARS = 32
"""Longer ones, such as hashes, seldom come again; leaving them out bounds the cache's bytes."""
MAX_NEW = 16
"""A text with more new words is tokenized whole, which is cheaper."""

_PUNCTUATION = r"!-/:-@\[-`{-~\u2013\u2014\u2018\u2019\u201c\u201d\u2026"
"""ASCII's, dashes, quotation marks and the ellipsis; other punctuation is part of a word here."""
_WORD = re.compile(rf"([^\t\n\r {_PUNCTUATION}]+|[{_PUNCTUATION}])")
"""A cut here is one of the tokenizer's too, whatever is within a word."""

_SPACE = " "
_MARK = np.int64(-1).tobytes()
"""Stands before the ids of each word or chunk, so that chunks are found again in what is joined."""
_ids_of = operator.itemgetter(0)


class JoinedOffsets:
    """The offsets of a text that is joined from chunks, each computed when it is asked for.

    An answer needs a few of a text's hundreds, and objects for all of them would be most of what an
    instance does for it.

    Args:
        find: What is known of a chunk.
        places: Each chunk's first token, or the next one's if it has none; in a batch, whose texts
            follow each other: int64.
        num_tokens: Of the text.
    """

    def __init__(
        self, text: str, find: Callable[[str], Word], places: Int64Array, num_tokens: int
    ) -> None:
        self._text = text
        self._find = find
        self._places = places
        self._num_tokens = num_tokens

    def __len__(self) -> int:
        return self._num_tokens

    def __getitem__(self, token: int, /) -> tuple[int, int]:
        """The start and end of a token, counted from 0; an `IndexError` past the last."""
        if not 0 <= token < self._num_tokens:
            raise IndexError(token)
        number = bisect.bisect_right(self._first_tokens, token) - 1
        start, end = self._starts[number], self._starts[number + 1] - len(_SPACE)
        _, within = self._find(self._text[start:end])
        if within is None:
            return start, end
        first, last = within[token - self._first_tokens[number]]
        return start + first, start + last

    def __iter__(self) -> Iterator[tuple[int, int]]:
        words = map(self._find, self._text.split(_SPACE))
        places = itertools.pairwise(self._starts)
        for (_, within), (start, following) in zip(words, places, strict=True):
            if within is None:
                yield start, following - len(_SPACE)
            else:
                for first, last in within:
                    yield start + first, start + last

    @cached_property
    def _first_tokens(self) -> list[int]:
        """Each chunk's first token, or the next one's if it has none."""
        first: list[int] = (self._places - self._places[0]).tolist()
        return first

    @cached_property
    def _starts(self) -> list[int]:
        """Where each chunk begins, and where one after the text would."""
        text = f"{_SPACE}{self._text}{_SPACE}"
        code, kind = ("ascii", np.uint8) if text.isascii() else ("utf-32-le", np.uint32)
        points = np.frombuffer(text.encode(code, "surrogatepass"), kind)
        starts: list[int] = (points == ord(_SPACE)).nonzero()[0].tolist()
        return starts


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
        if not self._is_by_words:  # such a tokenizer may look at several words at once
            return self._whole(texts)
        known = self._known
        found = _joined(texts, known.__getitem__)
        _fill(found, texts, self._learned)
        _fill(found, texts, self._whole)
        return [tokens for tokens in found if tokens is not None]

    def _learned(self, texts: Sequence[str]) -> list[Tokens | None]:
        """Tokenizes new words, up to `MAX_NEW` of each text; None for a text that has more."""
        known = self._known
        pieces: dict[str, list[str]] = {}
        new: set[str] = set()
        for text in texts:
            chunks = [chunk for chunk in text.split(_SPACE) if chunk not in known]
            pieces.update((chunk, _WORD.split(chunk)) for chunk in chunks if chunk not in pieces)
            words = (word for chunk in chunks for word in pieces[chunk][1::2] if word not in known)
            new.update(itertools.islice(dict.fromkeys(words), MAX_NEW))
        asked = sorted(new)
        learned = {
            word: _as_word(ids, offsets, len(word))
            for word, (ids, offsets) in zip(asked, self._tokenize(asked), strict=True)
        }

        def find(word_or_chunk: str) -> Word:
            return learned.get(word_or_chunk) or known[word_or_chunk]

        for chunk, cut in pieces.items():
            with contextlib.suppress(KeyError):  # a word of it is not known
                learned[chunk] = _put_together(cut, list(map(find, cut[1::2])))
        found = _joined(texts, find)
        for word_or_chunk, word in learned.items():
            self._keep(word_or_chunk, word)
        return found

    def _keep(self, text: str, word: Word) -> None:
        if len(text) <= MAX_WORD_CHARS:
            if len(self._known) >= MAX_WORDS:
                self._known = {}  # the offsets of a batch may still ask the other
            self._known[text] = word

    def _whole(self, texts: Sequence[str]) -> list[Tokens]:
        return [(np.array(ids, np.int64), offsets) for ids, offsets in self._tokenize(texts)]

    def _tokenize(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        if not texts:
            return []
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]


def _fill(
    found: list[Tokens | None],
    texts: Sequence[str],
    encode: Callable[[list[str]], Sequence[Tokens | None]],
) -> None:
    """Fills in the texts whose tokens are not found yet."""
    missing = [number for number, tokens in enumerate(found) if tokens is None]
    if missing:
        filling = encode([texts[number] for number in missing])
        for number, tokens in zip(missing, filling, strict=True):
            found[number] = tokens


def _joined(texts: Sequence[str], find: Callable[[str], Word]) -> list[Tokens | None]:
    """The tokens of each text, by its chunks; None for a text with a chunk that is not known.

    Args:
        find: What is known of a chunk; raises `KeyError`.
    """
    parts = [_ids_in(text, find) for text in texts]
    ids = np.frombuffer(b"".join(filter(None, parts)), np.int64)
    is_token = ids >= 0
    places = (~is_token).nonzero()[0]
    places -= np.arange(len(places))
    ids = ids[is_token]
    found: list[Tokens | None] = []
    chunk = token = 0
    for text, part in zip(texts, parts, strict=True):
        if part is None:
            found.append(None)
            continue
        num_chunks = text.count(_SPACE) + 1
        num_tokens = len(part) // ids.itemsize - num_chunks
        offsets = JoinedOffsets(text, find, places[chunk : chunk + num_chunks], num_tokens)
        found.append((ids[token : token + num_tokens], offsets))
        chunk += num_chunks
        token += num_tokens
    return found


def _ids_in(text: str, find: Callable[[str], Word]) -> bytes | None:
    """The ids of a text's chunks, with their marks; None if one of them is not known."""
    try:
        return b"".join(map(_ids_of, map(find, text.split(_SPACE))))
    except KeyError:
        return None


def _put_together(pieces: Sequence[str], words: Sequence[Word]) -> Word:
    """What is known of a chunk, by its words.

    Args:
        pieces: The text before a word and the word, in turn; last the text after all words.
    """
    ends = list(itertools.accumulate(map(len, pieces)))
    offsets: list[tuple[int, int]] = []
    for (_, within), start, end in zip(words, ends[::2], ends[1::2], strict=False):
        whole = [(0, end - start)]
        offsets += [(start + a, start + b) for a, b in (whole if within is None else within)]
    ids = [ids.removeprefix(_MARK) for ids, _ in words]
    return b"".join([_MARK, *ids]), _unless_whole(offsets, ends[-1])


def _as_word(ids: Sequence[int], offsets: Sequence[tuple[int, int]], num_chars: int) -> Word:
    return _MARK + np.array(ids, np.int64).tobytes(), _unless_whole(offsets, num_chars)


def _unless_whole(
    offsets: Sequence[tuple[int, int]], num_chars: int
) -> Sequence[tuple[int, int]] | None:
    """Offsets; None for one token that is all of a word's characters."""
    return None if offsets == [(0, num_chars)] else offsets
