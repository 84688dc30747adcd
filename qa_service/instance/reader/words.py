"""Caches the tokens of words.

BERT's tokenizers cut a text at white space and punctuation, and tokenize each word by itself, so
that a word has the same tokens in every text. The tokens of an ASCII text are joined from those of
its words; only new words are tokenized. Any other text, and any text of another tokenizer, is
tokenized whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

Offsets = Sequence[tuple[int, int]]
"""Start and end of each token, in code points."""

Tokens = list[tuple[int, int, int]]
"""The id of each token of a word, with its start and end in the word."""

MAX_WORDS = 1 << 16
"""Some 15 MB; then the cache is emptied."""
MAX_WORD_CHARS = 32
"""Longer words, such as hashes, seldom come again; leaving them out bounds the cache's bytes."""
MAX_NEW = 16
"""A text with more new words is tokenized whole, which is cheaper."""

_WORD = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")
_UNUSUAL = re.compile(r"[^\t\n\r -~]")
"""Characters that the normalizer drops or changes."""


class Words:
    """Tokenizes texts without special tokens, by a fast tokenizer that reads them as text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: dict[str, Tokens] = {}
        added = tokenizer.get_added_tokens_decoder().values()
        self._is_by_words = (
            isinstance(tokenizer.model, WordPiece)
            and isinstance(tokenizer.normalizer, BertNormalizer)
            and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
            and all(token.special for token in added)
        )

    def encode(self, text: str) -> tuple[list[int], Offsets]:
        """The ids and offsets of a text's tokens."""
        if self._is_by_words and not _UNUSUAL.search(text):
            found = self._put_together(text)
            if found is not None:
                return found
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def _put_together(self, text: str) -> tuple[list[int], Offsets] | None:
        """Joins the words' tokens; None if too many words are new."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        known = self._tokens.get
        num_new = 0
        for match in _WORD.finditer(text):
            tokens = known(match[0])
            if tokens is None:
                num_new += 1
                if num_new > MAX_NEW:
                    return None
                tokens = self._learn(match[0])
            if len(tokens) == 1:
                ids.append(tokens[0][0])
                offsets.append(match.span())
            else:
                first = match.start()
                ids += [token for token, _, _ in tokens]
                offsets += [(first + start, first + end) for _, start, end in tokens]
        return ids, offsets

    def _learn(self, word: str) -> Tokens:
        """Tokenizes a word, and caches the tokens."""
        encoding = self._tokenizer.encode(word, add_special_tokens=False)
        tokens = [(i, *span) for i, span in zip(encoding.ids, encoding.offsets, strict=True)]
        if len(word) <= MAX_WORD_CHARS:
            if len(self._tokens) >= MAX_WORDS:
                self._tokens.clear()
            self._tokens[word] = tokens
        return tokens
