"""Caches the tokens of words.

BERT's tokenizers cut a text at white space and punctuation, and tokenize each word by itself, so
that a word has the same tokens in every text. The tokens of a text are joined from those of its
chunks, which are what is between spaces; a new chunk's are joined from those of its words. Only new
words are tokenized. A text with many of them, and any text of another tokenizer, is tokenized
whole. What is tokenized of a batch goes to the tokenizer at once: it gives up Python's lock, and on
a GPU's instance has separate threads.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import struct
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from qa_service.instance.arrays import Int64Array

Tokens = tuple[Int64Array, Int64Array]
"""The ids of a text's tokens, and where each starts and ends, in code points: [tokens, 2]."""

Word = bytes
"""What is known of a word or a chunk after a space, three int32 a row: of each token its id, how
far its end is from the one before, and its length. Characters after the last token have a row too,
with `_NO_TOKEN` as id."""

MAX_WORDS = 1 << 16
"""And chunks: some 22 MB; then the cache is emptied."""
MAX_WORD_CHARS = 32
"""Longer ones, such as hashes, seldom come again; leaving them out bounds the cache's bytes."""
MAX_NEW = 16
"""A text with more new words is tokenized whole, which is cheaper."""

_PUNCTUATION = r"!-/:-@\[-`{-~\u2013\u2014\u2018\u2019\u201c\u201d\u2026"
"""ASCII's, dashes, quotation marks and the ellipsis; other punctuation is part of a word here."""
_WORD = re.compile(rf"([^\t\n\r {_PUNCTUATION}]+|[{_PUNCTUATION}])")
"""A cut here is one of the tokenizer's too, whatever is within a word."""

_SPACE = " "
_NO_TOKEN = -1
_ROW = struct.Struct("=3i")


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
            word: _as_word(len(word), ids, offsets)
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
                self._known.clear()
            self._known[text] = word

    def _whole(self, texts: Sequence[str]) -> list[Tokens]:
        return [
            (np.array(ids, np.int64), np.array(offsets, np.int64).reshape(-1, 2))
            for ids, offsets in self._tokenize(texts)
        ]

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
    parts = [_chunks_of(text, find) for text in texts]
    known = [part for part in parts if part is not None]
    ids, further, lengths = _rows(b"".join(known)).T
    ends = further.cumsum(dtype=np.int64) - len(_SPACE)  # there is none before the first chunk
    (tokens,) = (ids != _NO_TOKEN).nonzero()
    offsets = np.empty((len(tokens), 2), np.int64)
    offsets[:, 1] = ends.take(tokens)
    offsets[:, 0] = offsets[:, 1] - lengths.take(tokens)
    ids = ids.take(tokens).astype(np.int64)
    rows = itertools.accumulate((len(part) // _ROW.size for part in known), initial=0)
    bounds = tokens.searchsorted(list(rows)).tolist()
    cuts = map(slice, bounds, bounds[1:])
    return [None if part is None else (ids[cut := next(cuts)], offsets[cut]) for part in parts]


def _chunks_of(text: str, find: Callable[[str], Word]) -> bytes | None:
    """What is known of a text's chunks, and a row that goes back to its start.

    None if one of them is not known.
    """
    try:
        chunks = b"".join(map(find, text.split(_SPACE)))
    except KeyError:
        return None
    return chunks + _ROW.pack(_NO_TOKEN, -len(_SPACE) - len(text), 0)


def _put_together(pieces: Sequence[str], words: Sequence[Word]) -> Word:
    """What is known of a chunk, by its words.

    Args:
        pieces: The text before a word and the word, in turn; last the text after all words.
    """
    *starts, num_chars = itertools.accumulate(map(len, pieces))
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    for word, start in zip(words, starts[::2], strict=True):
        end = start - len(_SPACE)
        for token_id, further, length in _rows(word).tolist():
            end += further
            if token_id != _NO_TOKEN:
                ids.append(token_id)
                offsets.append((end - length, end))
    return _as_word(num_chars, ids, offsets)


def _as_word(num_chars: int, ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> Word:
    rows = []
    before = -len(_SPACE)
    for token_id, (start, end) in zip(ids, offsets, strict=True):
        rows.append(_ROW.pack(token_id, end - before, end - start))
        before = end
    if before < num_chars:
        rows.append(_ROW.pack(_NO_TOKEN, num_chars - before, 0))
    return b"".join(rows)


def _rows(words: bytes) -> npt.NDArray[np.int32]:
    return np.frombuffer(words, np.int32).reshape(-1, 3)
