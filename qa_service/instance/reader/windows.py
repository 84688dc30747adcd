"""Cuts a question and a text into the windows that a model reads, and pads these to rows.

A text longer than a window is cut into windows that overlap, each with the question before it:

    [CLS] question [SEP] text tokens [SEP]
                         |--- overlap ---|          window k
                                [CLS] question [SEP] |--- overlap ---| ...  window k + 1

Every text token is in some window, and every span at most one token longer than the overlap is
whole in some window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice

import msgspec
import numpy as np
from tokenizers import Tokenizer

from qa_service.errors import QuestionTooLongError
from qa_service.instance.arrays import Int64Array, Rows
from qa_service.instance.reader.words import Words


class Window(msgspec.Struct, frozen=True):
    """One row of model input.

    Attributes:
        input_ids: int64 [seq], special tokens included, not padded.
        token_type_ids: int64 [seq].
        text_begin: Position of the first text token in the row.
        text_end: One past the last.
        first_token: The first text token's index among the tokens of the whole text.
    """

    input_ids: Int64Array
    token_type_ids: Int64Array
    text_begin: int
    text_end: int
    first_token: int

    def __len__(self) -> int:
        return len(self.input_ids)


class EncodedQuestion(msgspec.Struct, frozen=True):
    """The windows of a question and a text.

    Attributes:
        question: As it was asked.
        windows: In the text's order; empty for a text without tokens.
        offsets: Start and end of each text token, in code points: int64 [text tokens, 2].
    """

    question: str
    windows: tuple[Window, ...]
    offsets: Int64Array


Part = tuple[Int64Array, Int64Array, int]
"""The ids of a question and of a window's text, and the number of the first of these."""


@dataclass(frozen=True)
class PairLayout:
    """Where a tokenizer puts special tokens around a question and a text.

    It is read from the tokenizer, so that BERT's `[CLS] q [SEP] t [SEP]` and RoBERTa's
    `<s> q </s></s> t </s>` need no further code.

    Attributes:
        prefix: Special tokens before the question: int64 [2, n], their ids and token types.
        middle: Those between question and text, likewise.
        suffix: Those after the text, likewise.
    """

    prefix: Int64Array
    middle: Int64Array
    suffix: Int64Array
    question_type: int
    text_type: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> PairLayout:
        pair = tokenizer.encode("a", "b")
        row = np.array([pair.ids, pair.type_ids], dtype=np.int64)
        question = [i for i, sequence in enumerate(pair.sequence_ids) if sequence == 0]
        text = [i for i, sequence in enumerate(pair.sequence_ids) if sequence == 1]
        return cls(
            prefix=row[:, : question[0]],
            middle=row[:, question[-1] + 1 : text[0]],
            suffix=row[:, text[-1] + 1 :],
            question_type=pair.type_ids[question[0]],
            text_type=pair.type_ids[text[0]],
        )

    def windows(self, parts: Sequence[Part]) -> list[Window]:
        """The rows of parts of texts, each with its question before it."""
        if not parts:
            return []
        prefix, middle, suffix = self.prefix, self.middle, self.suffix
        pieces = ((prefix[0], question, middle[0], text, suffix[0]) for question, text, _ in parts)
        ids = np.concatenate(list(chain.from_iterable(pieces)))
        kinds = [*prefix[1], self.question_type, *middle[1], self.text_type, *suffix[1]]
        counts = np.ones((len(parts), len(kinds)), np.int64)
        before_text = len(prefix[0]) + 1 + len(middle[0])
        counts[:, len(prefix[0])] = [len(question) for question, _, _ in parts]
        counts[:, before_text] = [len(text) for _, text, _ in parts]
        types = np.repeat(np.tile(kinds, len(parts)), counts.ravel())
        windows = []
        begin = 0
        for question, text, first_token in parts:
            text_begin = before_text - 1 + len(question)
            text_end = text_begin + len(text)
            row = slice(begin, begin + text_end + len(suffix[0]))
            windows.append(Window(ids[row], types[row], text_begin, text_end, first_token))
            begin = row.stop
        return windows

    @cached_property
    def special_tokens(self) -> int:
        return sum(len(part[0]) for part in (self.prefix, self.middle, self.suffix))


class WindowBuilder:
    """Cuts questions and texts into windows.

    Args:
        tokenizer: A fast tokenizer. The builder turns off its truncation, padding, and reading of
            `[SEP]` in a client's text as the special token.
    """

    def __init__(self, tokenizer: Tokenizer, window_tokens: int, overlap_tokens: int) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._words = Words(tokenizer)
        self._layout = PairLayout.of(tokenizer)
        self._window_tokens = window_tokens
        self._overlap_tokens = overlap_tokens
        room = window_tokens - self._layout.special_tokens
        self._max_question_tokens = room - max(1, min(2 * overlap_tokens, room // 2))

    def encode(self, question: str, text: str) -> EncodedQuestion:
        """Tokenizes a question and a text and cuts them into windows.

        Raises:
            QuestionTooLongError: The question leaves too little room for the text.
        """
        (encoded,) = self.encode_batch([(question, text)])
        if isinstance(encoded, QuestionTooLongError):
            raise encoded
        return encoded

    def encode_batch(
        self, pairs: Sequence[tuple[str, str]]
    ) -> list[EncodedQuestion | QuestionTooLongError]:
        """Tokenizes questions and texts; returns the windows of each pair, or its error."""
        tokens = self._words.encode(list(chain.from_iterable(pairs)))
        questions, texts = tokens[::2], tokens[1::2]
        errors = [self._check_question(ids) for ids, _ in questions]
        parts = [
            [] if error else self._cut(question_ids, text_ids)
            for (question_ids, _), error, (text_ids, _) in zip(
                questions, errors, texts, strict=True
            )
        ]
        windows = iter(self._layout.windows(list(chain.from_iterable(parts))))
        return [
            error or EncodedQuestion(question, tuple(islice(windows, len(cut))), offsets)
            for (question, _), error, cut, (_, offsets) in zip(
                pairs, errors, parts, texts, strict=True
            )
        ]

    def _check_question(self, ids: Int64Array) -> QuestionTooLongError | None:
        if len(ids) <= self._max_question_tokens:
            return None
        return QuestionTooLongError(
            f"the question has {len(ids)} tokens; "
            f"this model takes at most {self._max_question_tokens}"
        )

    def _cut(self, question_ids: Int64Array, text_ids: Int64Array) -> list[Part]:
        room = self._window_tokens - self._layout.special_tokens - len(question_ids)
        overlap = min(self._overlap_tokens, room // 2)
        last_first = max(len(text_ids) - overlap, min(len(text_ids), 1))
        return [
            (question_ids, text_ids[first : first + room], first)
            for first in range(0, last_first, room - overlap)
        ]


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Windows that run together.

    Attributes:
        numbers: Which of the windows of all tasks they are.
        longest: Tokens of the longest.
        rows: They themselves, padded.
        text_mask: int64 [batch, seq], 1 for text tokens, if the engine is to choose best spans.
    """

    numbers: Sequence[int]
    longest: int
    rows: Rows
    text_mask: Int64Array | None = None


def padded(windows: Sequence[Window], pad_token_id: int, tokens: int = 0) -> Rows:
    """Stacks windows as rows of one length: the longest's, or more tokens."""
    shape = (len(windows), max(tokens, *map(len, windows)))
    ids = np.full(shape, pad_token_id, np.int64)
    mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, window in enumerate(windows):
        ids[row, : len(window)] = window.input_ids
        mask[row, : len(window)] = 1
        types[row, : len(window)] = window.token_type_ids
    return ids, mask, types


def text_mask_of(windows: Sequence[Window], tokens: int) -> Int64Array:
    """Which tokens of padded windows are the text's: int64 [windows, tokens], 0 or 1."""
    mask = np.zeros((len(windows), tokens), np.int64)
    for row, window in zip(mask, windows, strict=True):
        row[window.text_begin : window.text_end] = 1
    return mask


def sample_rows(tokenizer: Tokenizer, rows: int, tokens: int) -> Rows:
    """Makes rows of one repeated word, for measuring; a short row may have no text.

    They have the layout of a question and a text, since a model may require the special tokens
    between the two (Longformer counts its separators).
    """
    layout = PairLayout.of(tokenizer)
    word = np.array(tokenizer.encode("a", add_special_tokens=False).ids[-1:], np.int64)
    room = max(0, tokens - layout.special_tokens - len(word))
    (window,) = layout.windows([(word, word.repeat(room), 0)])
    row = (window.input_ids[:tokens], window.token_type_ids[:tokens])
    ids, types = (np.tile(values, (rows, 1)) for values in row)
    return ids, np.ones_like(ids), types
