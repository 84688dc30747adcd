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

import numpy as np
from tokenizers import Tokenizer

from qa_service.errors import QuestionTooLongError
from qa_service.instance.arrays import Int64Array, Rows
from qa_service.instance.reader.words import Words


@dataclass(frozen=True, slots=True)
class Window:
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


@dataclass(frozen=True, slots=True)
class EncodedQuestion:
    """The windows of a question and a text.

    Attributes:
        question: As it was asked.
        windows: In the text's order; empty for a text without tokens.
        offsets: Start and end of each text token, in code points: int64 [text tokens, 2].
    """

    question: str
    windows: tuple[Window, ...]
    offsets: Int64Array


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

    def head(self, question_ids: Int64Array) -> Int64Array:
        """What a row has before its text: int64 [2, n], ids and token types."""
        begin = len(self.prefix[0])
        end = begin + len(question_ids)
        head = np.empty((2, end + len(self.middle[0])), np.int64)
        head[:, :begin] = self.prefix
        head[0, begin:end] = question_ids
        head[1, begin:end] = self.question_type
        head[:, end:] = self.middle
        return head

    def window(self, head: Int64Array, text_ids: Int64Array, first_token: int = 0) -> Window:
        """The row of a head and some tokens of a text."""
        text_begin = len(head[0])
        text_end = text_begin + len(text_ids)
        row = np.empty((2, text_end + len(self.suffix[0])), np.int64)
        row[:, :text_begin] = head
        row[0, text_begin:text_end] = text_ids
        row[1, text_begin:text_end] = self.text_type
        row[:, text_end:] = self.suffix
        return Window(
            input_ids=row[0],
            token_type_ids=row[1],
            text_begin=text_begin,
            text_end=text_end,
            first_token=first_token,
        )

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
        questions = self._words.encode([question for question, _ in pairs])
        errors = [self._check_question(ids) for ids, _ in questions]
        texts = self._words.encode(
            ["" if error else text for (_, text), error in zip(pairs, errors, strict=True)]
        )
        return [
            error or EncodedQuestion(question, self._cut(question_ids, text_ids), offsets)
            for (question, _), (question_ids, _), error, (text_ids, offsets) in zip(
                pairs, questions, errors, texts, strict=True
            )
        ]

    def _check_question(self, ids: Int64Array) -> QuestionTooLongError | None:
        if len(ids) <= self._max_question_tokens:
            return None
        return QuestionTooLongError(
            f"the question has {len(ids)} tokens; "
            f"this model takes at most {self._max_question_tokens}"
        )

    def _cut(self, question_ids: Int64Array, text_ids: Int64Array) -> tuple[Window, ...]:
        layout = self._layout
        head = layout.head(question_ids)
        room = self._window_tokens - layout.special_tokens - len(question_ids)
        overlap = min(self._overlap_tokens, room // 2)
        last_first = max(len(text_ids) - overlap, min(len(text_ids), 1))
        return tuple(
            layout.window(head, text_ids[first : first + room], first)
            for first in range(0, last_first, room - overlap)
        )


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
    head = layout.head(word)
    room = max(0, tokens - len(head[0]) - len(layout.suffix[0]))
    window = layout.window(head, word.repeat(room))
    row = (window.input_ids[:tokens], window.token_type_ids[:tokens])
    ids, types = (np.tile(values, (rows, 1)) for values in row)
    return ids, np.ones_like(ids), types
