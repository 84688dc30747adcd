"""What the clients ask: paragraphs, or a mix of lengths.

Both are drawn from a SQuAD file with a seed, so that every target is asked the same in the
same order. The mix comes in blocks of ten: five single sentences, four paragraphs, one text of
2,000 words. So any stretch of it holds the same work, and a measurement of some seconds is not
at the mercy of how many long texts fell into it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from qa_service.data.squad import SquadQuestion

LONG_TEXT_WORDS = 2000
SENTENCES, PARAGRAPHS = 5, 4
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Item:
    """A question and its text; `kind` is `sentence`, `paragraph` or `long`."""

    kind: str
    question: str
    text: str

    @property
    def asked(self) -> SquadQuestion:
        return SquadQuestion("", self.question, self.text, (), ())


def uniform(questions: Sequence[SquadQuestion], seed: int = 0) -> list[Item]:
    order = random.Random(seed).sample(questions, len(questions))
    return [_paragraph(question) for question in order]


def mixed(questions: Sequence[SquadQuestion], seed: int = 0) -> list[Item]:
    """Every question once: half with one sentence, a tenth with 2,000 words, else its paragraph."""
    rng = random.Random(seed)
    order = rng.sample(questions, len(questions))
    contexts = list(dict.fromkeys(question.context for question in order))
    items: list[Item] = []
    for first in range(0, len(order), 10):
        block = order[first : first + 10]
        made = [_sentence(question) for question in block[:SENTENCES]]
        made += [_paragraph(question) for question in block[SENTENCES : SENTENCES + PARAGRAPHS]]
        made += [_long(question, contexts, rng) for question in block[SENTENCES + PARAGRAPHS :]]
        items += rng.sample(made, len(made))
    return items


def _paragraph(question: SquadQuestion) -> Item:
    return Item("paragraph", question.question, question.context)


def _sentence(question: SquadQuestion) -> Item:
    """The sentence in which the answer starts; the first where there is no answer."""
    start = question.answer_starts[0] if question.answer_starts else 0
    ends = [match.start() for match in _SENTENCE_END.finditer(question.context)]
    before = max((end for end in ends if end <= start), default=0)
    after = min((end for end in ends if end > start), default=len(question.context))
    return Item("sentence", question.question, question.context[before:after].strip())


def _long(question: SquadQuestion, contexts: Sequence[str], rng: random.Random) -> Item:
    words = question.context.split()
    while len(words) < LONG_TEXT_WORDS:
        other = rng.choice(contexts).split()
        words = words + other if rng.random() < 0.5 else other + words
    first = (len(words) - LONG_TEXT_WORDS) // 2
    return Item("long", question.question, " ".join(words[first : first + LONG_TEXT_WORDS]))
