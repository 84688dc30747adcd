"""Questions and texts as they also come: without capitals, with typos, in other company.

Each probe changes questions in one way, always the same, and leaves the accepted answers what they
are. What a model loses by it says how much it leans on what the probe took away.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import replace

from qa_service.data.squad import SquadQuestion
from qa_service.training.paragraphs import UnanswerableMaker, words_of

_TYPO_SHARE = 0.05
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")

Probe = Callable[[Sequence[SquadQuestion]], list[SquadQuestion]]


def lower_cased(questions: Sequence[SquadQuestion]) -> list[SquadQuestion]:
    """Writes the questions without capitals."""
    return [replace(item, question=item.question.lower()) for item in questions]


def with_typos(questions: Sequence[SquadQuestion]) -> list[SquadQuestion]:
    """Puts any letter in the place of a twentieth of the letters of the questions."""
    rng = random.Random(0)
    return [replace(item, question=_mistyped(item.question, rng)) for item in questions]


def distracted(questions: Sequence[SquadQuestion]) -> list[SquadQuestion]:
    """Puts a sentence of another text before each text, and one after it.

    The sentences are those that share most words with the question, of a text that does not hold
    the answer. A question for which there is no such text stays as it is.
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
