"""Makes paragraphs of single sentences.

Some files hold single sentences; a model must learn to find the sentence too, so each is put among
its neighbours in the file.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qa_service.data.squad import SquadQuestion
from training.soft_labels import SoftLabel

_TREEBANK_TOKENS = {"-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "``": '"', "''": '"'}
"""Brackets and quotes in the Penn Treebank's tokenization."""


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
