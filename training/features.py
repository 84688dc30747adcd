"""Makes training rows of questions: tokens with target probabilities.

A row is a window as the reader cuts it, `[CLS] question [SEP] text [SEP]`; of a longer text, a
random one that holds the whole answer. The target of an unanswerable question is the first token,
the reader's null answer. A teacher's label spreads the target over several tokens; over those of
all passages, if they compete.

Swaps rare words of a training row for others of the same kind, in question and text alike.

A model memorizes questions that it sees often. Other names, years and nouns make them new, and the
answer's place stays: a word is replaced by one of as many tokens, wherever it occurs in the row.
The text need not make sense; the model learns to find what the question names.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from qa_service.data.squad import SquadQuestion
from qa_service.errors import QuestionTooLongError
from qa_service.instance.arrays import FloatArray, Int64Array
from qa_service.instance.reader.windows import Window, WindowBuilder
from training.soft_labels import Example, SoftLabel, softmax_with_null

if TYPE_CHECKING:
    import torch

Offsets = Sequence[Sequence[int]]
"""Start and end of each text token."""

_BATCHES_A_BUCKET = 32
"""Enough that neighbours by length are nearly equal, few enough that each bucket is a mixture."""
_LABEL_SHARE = 0.5
"""The teacher's share of the target of a question with an accepted answer."""
_PASSAGE_LABEL_SHARE = 0.7
"""The same of a passage among others, with an answer or without: of passages that a search finds
and that lack the accepted answer's words, some answer the question in others."""
_MIN_COMPARED, _MIN_AGREEMENT = 64, 0.2
"""A teacher begins at least half of its answers within the accepted one; labels that were made with
another model's token ids begin a fortieth there."""
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


@dataclass(frozen=True, slots=True)
class Target:
    """Probabilities that an answer starts and ends at each of some adjacent tokens.

    Attributes:
        first: Index of the first of these tokens, in the text or in a row.
        start: float32 [n], sums to 1, as does `end`.
    """

    first: int
    start: FloatArray
    end: FloatArray

    @classmethod
    def of_span(cls, first: int, last: int) -> Target:
        """A single span with probability 1."""
        start, end = np.zeros((2, last - first + 1), np.float32)
        start[0] = end[-1] = 1
        return cls(first, start, end)

    @property
    def stop(self) -> int:
        return self.first + len(self.start)


@dataclass(frozen=True, slots=True)
class LabelledPassage:
    """A row of a group, and what a teacher thinks of it.

    Attributes:
        answer: The accepted answer, or the null answer.
        first: Index in the row of the first token of the text.
        label: Of the text's tokens, above null.
    """

    answer: Target
    first: int
    label: SoftLabel


@dataclass(frozen=True, slots=True)
class Features:
    """One training row.

    Attributes:
        input_ids: int64 [seq], with the special tokens.
        group: Of the rows of one question, of which one at most has an answer; 0 for a row alone.
        passage: How a row of a group is compared with the others; None as the target says.
    """

    input_ids: Int64Array
    target: Target
    group: int = 0
    passage: LabelledPassage | None = None

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Rows padded to one length.

    Ids and mask are int64 [batch, seq]; the targets' probabilities, float32 [batch, seq], each
    row's by itself and its part of its group's, in which null answers do not count; the number of
    each row's group, int64 [batch], where a row alone is a group too.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    start: torch.Tensor
    end: torch.Tensor
    start_in_group: torch.Tensor
    end_in_group: torch.Tensor
    group: torch.Tensor

    def to(self, device: torch.device) -> TrainingBatch:
        """The batch on a device; copied to a GPU while that works at something else."""
        its = (getattr(self, name) for name in self.__slots__)
        if device.type == "cuda":
            its = (tensor.pin_memory() for tensor in its)
        return TrainingBatch(*(tensor.to(device, non_blocking=True) for tensor in its))


class FeatureMaker:
    """Makes training rows from questions, with the server's windows and tokenizer.

    Attributes:
        compared: Rows with both an accepted answer and a label.
        agreed: Those of them whose label's likeliest start is in the answer.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._windows = WindowBuilder(tokenizer, max_tokens, max_tokens // 4)
        self.compared = self.agreed = 0

    def make(self, example: Example, rng: random.Random) -> Features | None:
        """Makes the row of a question, for its first answer and its label.

        None if the question is too long, or no window holds the whole answer.
        """
        try:
            encoded = self._windows.encode(example.question.question, example.question.context)
        except QuestionTooLongError:
            return None
        targets = _targets(example, encoded.offsets.tolist())
        if targets is None:
            return None
        holding = [w for w in encoded.windows if all(_holds(w, target) for target in targets)]
        if not holding:
            return None
        window = rng.choice(holding)
        shift = window.text_begin - window.first_token
        if len(targets) > 1:
            answer, guess = targets
            self.compared += 1
            self.agreed += answer.first <= guess.first + int(guess.start.argmax()) < answer.stop
        placed = [Target(t.first + shift, t.start, t.end) for t in targets]
        if label := _competing_label(example):
            answer = placed[0] if example.question.answers else Target.of_span(0, 0)
            passage = LabelledPassage(answer, placed[-1].first, label)
            target = _mixed(answer, _with_null(passage), _PASSAGE_LABEL_SHARE)
            return Features(window.input_ids, target, example.group, passage)
        target = _mixed(placed[0], placed[-1], _LABEL_SHARE) if placed else Target.of_span(0, 0)
        return Features(window.input_ids, target, example.group)

    def check_labels(self) -> None:
        """Compares the labels with the accepted answers.

        Raises:
            ValueError: They agree on so few that they cannot be of these tokens.
        """
        if self.compared >= _MIN_COMPARED and self.agreed < _MIN_AGREEMENT * self.compared:
            raise ValueError(
                f"of {self.compared} labels {self.agreed} begin in the accepted answer: label "
                "the questions again with the teacher's own tokenizer"
            )


def _competing_label(example: Example) -> SoftLabel | None:
    """The label that says what a passage is worth beside the others of its question."""
    return example.label if example.group and example.label and example.label.above_null else None


def _targets(example: Example, offsets: Offsets) -> list[Target] | None:
    """The targets of the answer and of the label, if any; None if the tokens do not hold both."""
    targets = []
    if example.question.answers:
        span = _answer_tokens(example.question, offsets)
        if not span:
            return None
        targets.append(Target.of_span(span[0], span[-1]))
    if example.label and (_competing_label(example) or not example.question.is_impossible):
        starts = (i for i, (begin, _) in enumerate(offsets) if begin >= example.label_start)
        first = next(starts, len(offsets))
        if first + len(example.label) > len(offsets):
            return None
        targets.append(Target(first, *example.label.probabilities()))
    return targets


def _answer_tokens(question: SquadQuestion, offsets: Offsets) -> list[int]:
    """The text tokens of the first answer, without trailing punctuation."""
    begin = question.answer_starts[0]
    finish = begin + len(question.answers[0].rstrip(" .,;:"))
    return [i for i, (b, e) in enumerate(offsets) if b < finish and e > begin]


def _holds(window: Window, target: Target) -> bool:
    text_tokens = window.text_end - window.text_begin
    return window.first_token <= target.first and target.stop <= window.first_token + text_tokens


def _with_null(passage: LabelledPassage) -> Target:
    """A label's probabilities with those of the null answer, which is a row's first token."""
    sides = map(softmax_with_null, (passage.label.start, passage.label.end))
    gap = np.zeros(passage.first - 1, np.float32)
    return Target(0, *(np.r_[side[:1], gap, side[1:]] for side in sides))


def _mixed(answer: Target, label: Target, label_share: float) -> Target:
    first, stop = min(answer.first, label.first), max(answer.stop, label.stop)
    start, end = np.zeros((2, stop - first), np.float32)
    for target, share in ((answer, 1 - label_share), (label, label_share)):
        place = slice(target.first - first, target.stop - first)
        start[place] += share * target.start
        end[place] += share * target.end
    return Target(first, start, end)


def plan_batches(rows: Sequence[Features], batch_size: int, rng: random.Random) -> list[list[int]]:
    """Cuts rows, already in random order, into batches of similar lengths, in random order.

    Rows are sorted by length only within buckets of many batches, so that little is padded and yet
    every batch is a mixture. A group stays in one batch, which may then be larger by a part of it.
    A batch is the indices of its rows.
    """
    units = [list(of_one) for _, of_one in groupby(range(len(rows)), lambda i: rows[i].group or -i)]
    batches: list[list[int]] = []
    for bucket in _filled(units, batch_size * _BATCHES_A_BUCKET):
        by_length = sorted(bucket, key=lambda unit: max(len(rows[i]) for i in unit))
        batches += [list(chain.from_iterable(batch)) for batch in _filled(by_length, batch_size)]
    rng.shuffle(batches)
    return batches


def _filled(units: Sequence[list[int]], size: int) -> Iterator[list[list[int]]]:
    """Runs of units, each but the last with at least `size` rows."""
    run: list[list[int]] = []
    for unit in units:
        run.append(unit)
        if sum(map(len, run)) >= size:
            yield run
            run = []
    if run:
        yield run


def collate(rows: Sequence[Features], pad_token_id: int) -> TrainingBatch:
    import torch  # noqa: PLC0415 - choosing rows and batches does without

    shape = (len(rows), max(map(len, rows)))
    ids, mask = np.full(shape, pad_token_id, np.int64), np.zeros(shape, np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row.input_ids
        mask[number, : len(row)] = 1
    alone, in_group = _placed([row.target for row in rows], shape), _placed(_shared(rows), shape)
    _, groups = np.unique([row.group or -i for i, row in enumerate(rows)], return_inverse=True)
    return TrainingBatch(*map(torch.from_numpy, (ids, mask, *alone, *in_group, groups)))


def _placed(targets: Sequence[Target], shape: tuple[int, int]) -> tuple[FloatArray, FloatArray]:
    """The targets of a batch's rows, start and end, float32 of that shape each."""
    start, end = np.zeros((2, *shape), np.float32)
    for number, target in enumerate(targets):
        place = slice(target.first, target.stop)
        start[number, place], end[number, place] = target.start, target.end
    return start, end


def _shared(rows: Sequence[Features]) -> list[Target]:
    """Each row's part of its group's target: labelled passages share one softmax and one null."""
    targets = [row.target for row in rows]
    groups: dict[int, dict[int, LabelledPassage]] = defaultdict(dict)
    for number, row in enumerate(rows):
        if row.passage:
            groups[row.group][number] = row.passage
    for group in groups.values():
        starts = softmax_with_null(*(passage.label.start for passage in group.values()))
        ends = softmax_with_null(*(passage.label.end for passage in group.values()))
        begin = 1
        for number, passage in group.items():
            part = slice(begin, begin + len(passage.label))
            label = Target(passage.first, starts[part], ends[part])
            targets[number] = _mixed(passage.answer, label, _PASSAGE_LABEL_SHARE)
            begin = part.stop
    return targets


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
