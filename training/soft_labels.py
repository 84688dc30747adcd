"""A teacher model's logits for every token of a text, from which another model learns.

The teacher sees only the question's own sentence or paragraph; the student has to find the answer
in a longer text, where everything else is wrong (distillation, Hinton et al. 2015, with the
privileged information of Vapnik and Vashist 2009). A question without an accepted answer is learned
from its label, one with an answer from both. Of the passages of a question it learns which of them
the teacher would take, too: labels are relative to the null answer, by which passages are compared.

File: numpy's `.npz` with `keys` (text [n]), `tokens` (int32 [n], tokens of each text), `start` and
`end` (float16 [sum of tokens], text after text), and `above_null` (bool [n]; older files lack it).
All WordPiece models with BERT's vocabulary see the same tokens, so that one's labels fit another.

Some files hold single sentences; a model must learn to find the sentence too, so each is put among
its neighbours in the file.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from qa_service.data.squad import SquadQuestion
from qa_service.errors import QuestionTooLongError
from qa_service.instance.arrays import FloatArray, LogitsFunction
from qa_service.instance.reader.windows import Window, WindowBuilder, padded
from qa_service.progress import progress_bar

_SAVED_EVERY = 512
"""Questions: what a run that is cut off loses at most."""
_BATCH_TOKENS = 2048
"""Padding included; bounds a batch's memory."""
_MAX_TOKENS = 384
"""The reader's own window (`ReadingConfig`)."""
_TREEBANK_TOKENS = {"-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "``": '"', "''": '"'}
"""Brackets and quotes in the Penn Treebank's tokenization."""


@dataclass(frozen=True, slots=True)
class SoftLabel:
    """A teacher's logits for the text's tokens of one question and text, float32 [tokens] each.

    Attributes:
        above_null: Whether they are relative to those of the null answer.
    """

    start: FloatArray
    end: FloatArray
    above_null: bool = True

    def __len__(self) -> int:
        return len(self.start)

    def probabilities(self) -> tuple[FloatArray, FloatArray]:
        """Each token's to be the answer's first, and to be its last: float32 [tokens] each."""
        return _softmax(self.start), _softmax(self.end)


class SoftLabels:
    """Labels by question and text, those of files to begin with; a later file's replace others."""

    def __init__(self, *paths: Path) -> None:
        self._labels: dict[str, SoftLabel] = {}
        for path in paths:
            self._read(path)

    def __len__(self) -> int:
        return len(self._labels)

    def get(self, question: SquadQuestion) -> SoftLabel | None:
        return self._labels.get(_key(question))

    def add(self, question: SquadQuestion, label: SoftLabel) -> None:
        self._labels[_key(question)] = label

    def _read(self, path: Path) -> None:
        with np.load(path) as file:
            edges = np.cumsum(file["tokens"])[:-1]
            starts = np.split(file["start"].astype(np.float32), edges)
            ends = np.split(file["end"].astype(np.float32), edges)
            above_null = file.get("above_null", np.zeros(len(starts), bool)).tolist()
            labels = map(SoftLabel, starts, ends, above_null)
            self._labels.update(zip(file["keys"].tolist(), labels, strict=True))

    def write(self, path: Path) -> None:
        """Replaces a file atomically by one with all labels."""
        labels = list(self._labels.values())
        partial = path.with_suffix(".partial.npz")
        np.savez(
            partial,
            keys=np.array(list(self._labels)),
            tokens=np.array([len(label) for label in labels], np.int32),
            start=np.concatenate([label.start for label in labels]).astype(np.float16),
            end=np.concatenate([label.end for label in labels]).astype(np.float16),
            above_null=np.array([label.above_null for label in labels]),
        )
        partial.replace(path)


def label_questions(
    logits: LogitsFunction,
    tokenizer: Tokenizer,
    pad_token_id: int,
    questions: Sequence[SquadQuestion],
    destination: Path,
) -> int:
    """Labels questions and writes them; resumes if the destination exists.

    Questions whose text does not fit into one window are left out. Returns how many labels the file
    has then.
    """
    labels = SoftLabels(destination) if destination.exists() else SoftLabels()
    windows = WindowBuilder(tokenizer, _MAX_TOKENS, 0)
    left = [question for question in questions if labels.get(question) is None]
    bar = progress_bar(total=len(left), unit="question")
    for first in range(0, len(left), _SAVED_EVERY):
        chunk = left[first : first + _SAVED_EVERY]
        rows = [(q, row) for q in chunk if (row := _only_window(windows, q)) is not None]
        for batch in _batches(rows):
            start, end = logits(*padded([window for _, window in batch], pad_token_id))
            for number, (question, window) in enumerate(batch):
                text = slice(window.text_begin, window.text_end)
                above = (its[number, text] - its[number, 0] for its in (start, end))
                labels.add(question, SoftLabel(*above))
        labels.write(destination)
        bar.update(len(chunk))
    return len(labels)


def _only_window(windows: WindowBuilder, question: SquadQuestion) -> Window | None:
    try:
        cut = windows.encode(question.question, question.context).windows
    except QuestionTooLongError:
        return None
    return cut[0] if len(cut) == 1 else None


def _batches(
    rows: Sequence[tuple[SquadQuestion, Window]],
) -> list[list[tuple[SquadQuestion, Window]]]:
    """Batches of rows of similar lengths, of at most `_BATCH_TOKENS`."""
    batches: list[list[tuple[SquadQuestion, Window]]] = [[]]
    for row in sorted(rows, key=lambda row: -len(row[1])):
        if batches[-1] and (len(batches[-1]) + 1) * len(batches[-1][0][1]) > _BATCH_TOKENS:
            batches.append([])
        batches[-1].append(row)
    return [batch for batch in batches if batch]


def _key(question: SquadQuestion) -> str:
    """A hash of a question and its text: ids repeat between files."""
    return hashlib.sha256(f"{question.question}\0{question.context}".encode()).hexdigest()[:20]


def softmax_with_null(*logits: FloatArray) -> FloatArray:
    """The probability of the null answer, then those of logits above it, float32 [1 + sum of n]."""
    return _softmax(np.concatenate([np.zeros(1, np.float32), *logits]))


def _softmax(logits: FloatArray) -> FloatArray:
    raised = np.exp(logits - logits.max())
    shares: FloatArray = raised / raised.sum(dtype=np.float32)
    return shares


@dataclass(frozen=True, slots=True)
class Example:
    """A question to train on; with neither answer nor label it is unanswerable.

    Attributes:
        label: A teacher's label of the question's own text.
        label_start: Where that text begins in the present one, in code points.
        group: Of the passages that one question is put to; 0 for a text alone.
    """

    question: SquadQuestion
    label: SoftLabel | None = None
    label_start: int = 0
    group: int = 0


def untokenized(question: SquadQuestion) -> SquadQuestion:
    """The question with the Treebank's brackets and quotes of its text replaced."""
    words = (_TREEBANK_TOKENS.get(word, word) for word in question.context.split(" "))
    return replace(question, context=" ".join(words))


def among_neighbours(
    examples: Sequence[Example], max_neighbours: int, rng: random.Random
) -> list[Example]:
    """Puts the sentence of each question among the sentences around it in the file.

    Up to `max_neighbours` on each side; all numbers are equally likely.
    """
    sentences = list(dict.fromkeys(example.question.context for example in examples))
    place = {sentence: number for number, sentence in enumerate(sentences)}
    paragraphs = []
    for example in examples:
        here = place[example.question.context]
        before = sentences[max(0, here - rng.randint(0, max_neighbours)) : here]
        after = sentences[here + 1 : here + 1 + rng.randint(0, max_neighbours)]
        paragraphs.append(_moved(example, before, after))
    return paragraphs


def _moved(example: Example, before: Sequence[str], after: Sequence[str]) -> Example:
    shift = sum(len(sentence) + 1 for sentence in before)
    question = example.question
    question = replace(
        question,
        context=" ".join([*before, question.context, *after]),
        answer_starts=tuple(start + shift for start in question.answer_starts),
    )
    return replace(example, question=question, label_start=example.label_start + shift)
