"""Which questions a training run sees, and how often.

A file is named with how many questions are to be drawn from it: `train_squad.json.gz=9000`
draws each question once before it draws any a second time. A run sees its draws once, in
one shuffled order: there are no epochs to keep count of.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qa_service.squad import SquadQuestion, read_squad
from qa_service.training.paragraphs import UnanswerableMaker, among_neighbours


@dataclass(frozen=True, slots=True)
class Source:
    """A file of questions and how to draw from it.

    Attributes:
        path: SQuAD JSON, plain or gzip.
        count: Questions to draw; None for each once.
        are_sentences: Whether its contexts are single sentences to be put among others.
    """

    path: Path
    count: int | None = None
    are_sentences: bool = False

    @classmethod
    def parse(cls, text: str, *, are_sentences: bool = False) -> Source:
        """Reads `FILE` or `FILE=COUNT`.

        Raises:
            ValueError: The count is not a positive whole number.
        """
        path, _, count = text.partition("=")
        if count and (not count.isdecimal() or int(count) == 0):
            raise ValueError(f"{text!r}: the count after = must be a positive whole number")
        return cls(Path(path), int(count) if count else None, are_sentences)


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """What is done to the questions drawn.

    Attributes:
        unanswerable_share: Of the draws of every source, the share put to another text.
        max_neighbours: Sentences put on each side of a single sentence, at most.
        seed: Makes the mixture the same every time.
    """

    unanswerable_share: float = 0.0
    max_neighbours: int = 3
    seed: int = 0


def draw_mixture(sources: Sequence[Source], config: MixtureConfig) -> list[SquadQuestion]:
    """Draws the questions of a run from its files, in random order."""
    rng = random.Random(config.seed)
    mixture = [question for source in sources for question in _draw(source, config, rng)]
    rng.shuffle(mixture)
    return mixture


def _draw(source: Source, config: MixtureConfig, rng: random.Random) -> list[SquadQuestion]:
    questions = read_squad(source.path)
    if not questions:
        raise ValueError(f"{source.path} has no questions")
    drawn: list[SquadQuestion] = []
    count = source.count or len(questions)
    while len(drawn) < count:
        once = questions
        if source.are_sentences:
            once = among_neighbours(questions, config.max_neighbours, rng)
        drawn += rng.sample(once, min(len(once), count - len(drawn)))
    return _with_unanswerable(drawn, config.unanswerable_share, rng)


def _with_unanswerable(
    questions: list[SquadQuestion], share: float, rng: random.Random
) -> list[SquadQuestion]:
    """Puts about a share of the questions to other texts of the same file."""
    if not share:
        return questions
    maker = UnanswerableMaker([question.context for question in questions])
    return [
        (rng.random() < share and maker.make(question, rng)) or question for question in questions
    ]
