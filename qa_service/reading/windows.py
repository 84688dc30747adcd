"""A question and a text become the windows a model reads.

A text longer than the model is cut into windows that overlap, each with the question before it:

    [CLS] question [SEP] text tokens [SEP]
                         |--- overlap ---|          window k
                                [CLS] question [SEP] |--- overlap ---| ...  window k + 1

Every text token may start an answer in exactly one window: the one where it has the most
context on both sides (the `_check_is_max_context` rule of BERT's run_squad.py, Devlin et al.
2018). So no span is counted twice, and scores of different windows can be put in one sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from qa_service.errors import QuestionTooLongError

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """One row of model input.

    Attributes:
        input_ids: int64 [seq], special tokens included, not padded.
        token_type_ids: int64 [seq].
        text_begin: Position of the first text token in the row.
        text_end: One past the last text token in the row.
        first_token: Index of that token among the tokens of the whole text.
        own_begin: First position in the row that may start an answer here.
        own_end: One past the last such position.
    """

    input_ids: Int64Array
    token_type_ids: Int64Array
    text_begin: int
    text_end: int
    first_token: int
    own_begin: int
    own_end: int

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class EncodedQuestion:
    """A question and a text, ready for a model.

    Attributes:
        windows: In the text's order; empty if the text has no token at all.
        offsets: int64 [text_tokens, 2], start and end of each text token in code points.
    """

    windows: tuple[Window, ...]
    offsets: Int64Array


@dataclass(frozen=True, slots=True)
class PairLayout:
    """Where a tokenizer puts its special tokens around a question and a text.

    Learned from the tokenizer itself, so that BERT's `[CLS] q [SEP] t [SEP]` and RoBERTa's
    `<s> q </s></s> t </s>` need no code of their own.
    """

    prefix_ids: tuple[int, ...]
    middle_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    prefix_type: int
    text_type: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> PairLayout:
        """Learns the layout by encoding a pair."""
        pair = tokenizer.encode("a", "b")
        question = [i for i, sequence in enumerate(pair.sequence_ids) if sequence == 0]
        text = [i for i, sequence in enumerate(pair.sequence_ids) if sequence == 1]
        return cls(
            prefix_ids=tuple(pair.ids[: question[0]]),
            middle_ids=tuple(pair.ids[question[-1] + 1 : text[0]]),
            suffix_ids=tuple(pair.ids[text[-1] + 1 :]),
            prefix_type=pair.type_ids[question[0]],
            text_type=pair.type_ids[text[0]],
        )

    @property
    def special_tokens(self) -> int:
        """How many special tokens a pair has."""
        return len(self.prefix_ids) + len(self.middle_ids) + len(self.suffix_ids)


class WindowBuilder:
    """Cuts questions and texts into windows.

    Args:
        tokenizer: A fast tokenizer; its own truncation and padding are switched off.
        window_tokens: Longest window, question and special tokens included.
        overlap_tokens: Text tokens that two neighbouring windows share.
    """

    def __init__(self, tokenizer: Tokenizer, window_tokens: int, overlap_tokens: int) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._layout = PairLayout.of(tokenizer)
        self._window_tokens = window_tokens
        self._overlap_tokens = overlap_tokens
        room = window_tokens - self._layout.special_tokens
        self._max_question_tokens = room - min(2 * overlap_tokens, room // 2)

    def encode(self, question: str, text: str) -> EncodedQuestion:
        """Tokenizes a question and a text and cuts them into windows.

        Raises:
            QuestionTooLongError: The question leaves too little room for the text.
        """
        question_ids = self._tokenizer.encode(question, add_special_tokens=False).ids
        if len(question_ids) > self._max_question_tokens:
            raise QuestionTooLongError(
                f"the question has {len(question_ids)} tokens; "
                f"this model takes at most {self._max_question_tokens}"
            )
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        text_ids = np.array(encoding.ids, dtype=np.int64)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return EncodedQuestion(self._cut(question_ids, text_ids), offsets)

    def _cut(self, question_ids: list[int], text_ids: Int64Array) -> tuple[Window, ...]:
        layout = self._layout
        head = np.array([*layout.prefix_ids, *question_ids, *layout.middle_ids], dtype=np.int64)
        tail = np.array(layout.suffix_ids, dtype=np.int64)
        room = self._window_tokens - len(head) - len(tail)
        overlap = min(self._overlap_tokens, room // 2)
        last_first = max(len(text_ids) - overlap, min(len(text_ids), 1))
        return tuple(
            self._window(
                head,
                text_ids[first : first + room],
                tail,
                first_token=first,
                text_tokens=len(text_ids),
                overlap=overlap,
            )
            for first in range(0, last_first, room - overlap)
        )

    def _window(
        self,
        head: Int64Array,
        piece: Int64Array,
        tail: Int64Array,
        *,
        first_token: int,
        text_tokens: int,
        overlap: int,
    ) -> Window:
        types = np.full(len(head) + len(piece) + len(tail), self._layout.text_type, np.int64)
        types[: len(head)] = self._layout.prefix_type
        text_end = len(head) + len(piece)
        is_last = first_token + len(piece) == text_tokens
        return Window(
            input_ids=np.concatenate((head, piece, tail)),
            token_type_ids=types,
            text_begin=len(head),
            text_end=text_end,
            first_token=first_token,
            own_begin=len(head) + (overlap // 2 if first_token else 0),
            own_end=text_end if is_last else text_end - (overlap - overlap // 2),
        )
