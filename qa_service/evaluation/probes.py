"""Probes: questions without capitals, with typos, or with distracting sentences.

Each probe changes questions in one way, always the same, and keeps the accepted answers. A model's
loss of F1 shows how much it depends on what the probe removed.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import replace

from qa_service.data.squad import SquadQuestion
from qa_service.evaluation.unanswerable import UnanswerableMaker, words_of

_TYPO_SHARE = 0.05
"""Of the letters: two or three in a question."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")

Probe = Callable[[Sequence[SquadQuestion]], list[SquadQuestion]]


def lower_cased(questions: Sequence[SquadQuestion]) -> list[SquadQuestion]:
    return [replace(item, question=item.question.lower()) for item in questions]


def with_typos(questions: Sequence[SquadQuestion]) -> list[SquadQuestion]:
    """Replaces a share of the questions' letters, `_TYPO_SHARE`, by random ones."""
    rng = random.Random(0)
    return [replace(item, question=_mistyped(item.question, rng)) for item in questions]


def distracted(questions: Sequence[SquadQuestion]) -> list[SquadQuestion]:
    """Puts a sentence before and after each text.

    They are those that share most words with the question, from a text that does not hold the
    answer. A question without such a text stays as it is.
    """
    maker = UnanswerableMaker([item.context for item in questions])
    rng = random.Random(0)
    return [_among(item, maker.make(item, rng)) for item in questions]


PROBES: dict[str, Probe] = {
    "as it is": list,
    "lower-cased": lower_cased,
    "typos": with_typos,
    "distracted": distracted,
}


def _mistyped(text: str, rng: random.Random) -> str:
    return "".join(
        rng.choice(string.ascii_lowercase) if c.isalpha() and rng.random() < _TYPO_SHARE else c
        for c in text
    )


def _among(item: SquadQuestion, elsewhere: SquadQuestion | None) -> SquadQuestion:
    if elsewhere is None:
        return item
    asked = set(words_of(item.question))
    sentences = _SENTENCE_END.split(elsewhere.context)
    sentences.sort(key=lambda sentence: -len(asked.intersection(words_of(sentence))))
    before, after = sentences[0], sentences[min(1, len(sentences) - 1)]
    return replace(
        item,
        context=f"{before} {item.context} {after}",
        answer_starts=tuple(start + len(before) + 1 for start in item.answer_starts),
    )
