"""Draws the questions of a training run.

A source names its file and how many questions to draw: `train_squad.json.gz=9000` draws each
question once before it draws any a second time. A run sees its draws once, in one shuffled order,
without epochs. A file of sentences may hold questions without answers: those with a teacher's label
are drawn. Of a file of passages a question is drawn with all the passages that it is put to.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby
from pathlib import Path
from typing import TypeVar

from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.evaluation.measures import UnanswerableMaker
from training.soft_labels import Example, SoftLabels, among_neighbours, untokenized

T = TypeVar("T")

_MAX_NEIGHBOURS = 3
"""Sentences on each side: with them, a text has about a paragraph's length at most."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of questions and how to draw from it.

    Attributes:
        count: How many to draw; None for each once.
        are_sentences: Whether the contexts are single sentences, to be put among their neighbours.
        are_passages: Whether the passages of a question, which follow one another, compete.
    """

    path: Path
    count: int | None = None
    are_sentences: bool = False
    are_passages: bool = False

    @classmethod
    def parse(cls, text: str, *, are_sentences: bool = False, are_passages: bool = False) -> Source:
        """Reads `FILE` or `FILE=COUNT`.

        Raises:
            ValueError: The count is not a positive whole number.
        """
        path, _, number = text.partition("=")
        if number and (not number.isdecimal() or int(number) == 0):
            raise ValueError(f"{text!r}: the count after = must be a positive whole number")
        return cls(Path(path), int(number) if number else None, are_sentences, are_passages)


def draw_mixture(
    sources: Sequence[Source], labels: SoftLabels, unanswerable_share: float = 0.0, seed: int = 0
) -> list[Example]:
    """Draws the questions of a run in random order; a share of each file's get another text.

    The passages of a group follow one another, and get no other text.
    """
    rng = random.Random(seed)
    numbers = count(1)
    mixture: list[list[Example]] = []
    for source in sources:
        if source.are_passages:
            mixture += _draw_groups(source, labels, numbers, rng)
        else:
            drawn = _with_unanswerable(_draw(source, labels, rng), unanswerable_share, rng)
            mixture += [[example] for example in drawn]
    rng.shuffle(mixture)
    return list(chain.from_iterable(mixture))


def _draw_groups(
    source: Source, labels: SoftLabels, numbers: Iterator[int], rng: random.Random
) -> list[list[Example]]:
    questions = read_questions(source.path, are_sentences=False)
    groups = [list(of_one) for _, of_one in groupby(questions, lambda q: q.question)]
    drawn = _sampled(source, len(groups), lambda: groups, rng)
    return [
        [Example(question, labels.get(question), group=number) for question in group]
        for group, number in zip(drawn, numbers, strict=False)
    ]


def read_questions(path: Path, *, are_sentences: bool) -> list[SquadQuestion]:
    """Reads a file for labelling and training; unanswered sentences are detokenized."""
    questions = read_squad(path)
    return [untokenized(q) if are_sentences and not q.answers else q for q in questions]


def _draw(source: Source, labels: SoftLabels, rng: random.Random) -> list[Example]:
    questions = read_questions(source.path, are_sentences=source.are_sentences)
    examples = [Example(question, labels.get(question)) for question in questions]
    if source.are_sentences:
        examples = [
            e for e in examples if e.question.answers or e.label or e.question.is_impossible
        ]

    def once() -> list[Example]:
        if source.are_sentences:
            return among_neighbours(examples, _MAX_NEIGHBOURS, rng)
        return examples

    return _sampled(source, len(examples), once, rng)


def _sampled(
    source: Source, number: int, once: Callable[[], list[T]], rng: random.Random
) -> list[T]:
    """Draws from what `once` gives, anew for each pass: each once before any a second time.

    Args:
        number: How many there are.

    Raises:
        ValueError: There are none.
    """
    if not number:
        raise ValueError(f"{source.path} has no questions that are answered or labelled")
    drawn: list[T] = []
    wanted = source.count or number
    while len(drawn) < wanted:
        found = once()
        drawn += rng.sample(found, min(len(found), wanted - len(drawn)))
    return drawn


def _with_unanswerable(examples: list[Example], share: float, rng: random.Random) -> list[Example]:
    """Gives about a share of the questions other texts of the same file."""
    if not share:
        return examples
    maker = UnanswerableMaker([example.question.context for example in examples])
    return [
        Example(elsewhere)
        if rng.random() < share and (elsewhere := maker.make(example.question, rng))
        else example
        for example in examples
    ]
