"""Self-training: a model labels questions whose sentence is known but whose answer is not.

The model reads the sentence alone, which is far easier than the paragraph it will be trained
to find it in, and only answers it is sure of are kept. The sentence then goes back among its
neighbours (Yarowsky 1995; the confident labels of "pseudo-labelling", Lee 2013).
"""

from __future__ import annotations

import gzip
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qa_service.reading.reader import Reader
from qa_service.squad import SquadQuestion, read_squad
from qa_service.training.measures import best_answers
from qa_service.training.paragraphs import among_neighbours

_LOG = logging.getLogger(__name__)

_TREEBANK_TOKENS = {
    "-lrb-": "(",
    "-rrb-": ")",
    "-lsb-": "[",
    "-rsb-": "]",
    "``": '"',
    "''": '"',
}
"""What the Penn Treebank's tokenization writes for brackets and quotes."""


@dataclass(frozen=True, slots=True)
class LabellingConfig:
    """Which labels are kept, and what becomes of the sentences.

    Attributes:
        min_score: The least score of an answer that is kept.
        max_neighbours: Sentences put on each side at most.
        seed: For their number.
    """

    min_score: float = 0.4
    max_neighbours: int = 3
    seed: int = 0


def label_sentences(
    reader: Reader, source: Path, destination: Path, config: LabellingConfig
) -> dict[str, int]:
    """Answers the questions of a file and writes those it is sure of, in paragraphs.

    Args:
        reader: The labelling model.
        source: SQuAD JSON whose contexts are sentences; its answers are not looked at.
        destination: Where the labelled questions go, SQuAD JSON, gzip if named so.
        config: What is kept.

    Returns:
        How many questions there were, and how many were kept.
    """
    questions = [_plain(question) for question in read_squad(source)]
    answers = best_answers(reader, questions)
    labelled = [
        replace(question, answers=(answer.answer,), answer_starts=(answer.start,))
        if answer.start is not None and answer.score >= config.min_score
        else question
        for question, answer in zip(questions, answers, strict=True)
    ]
    paragraphs = among_neighbours(labelled, config.max_neighbours, random.Random(config.seed))
    kept = [question for question in paragraphs if question.answers]
    _write(kept, destination)
    return {"questions": len(questions), "kept": len(kept)}


def _plain(question: SquadQuestion) -> SquadQuestion:
    words = (_TREEBANK_TOKENS.get(word, word) for word in question.context.split(" "))
    return replace(question, context=" ".join(words), answers=(), answer_starts=())


def _write(questions: Sequence[SquadQuestion], path: Path) -> None:
    paragraphs = [
        {
            "context": question.context,
            "qas": [
                {
                    "id": question.id,
                    "question": question.question,
                    "answers": [
                        {"text": text, "answer_start": start}
                        for text, start in zip(
                            question.answers, question.answer_starts, strict=True
                        )
                    ],
                }
            ],
        }
        for question in questions
    ]
    document = {"data": [{"title": path.name, "paragraphs": paragraphs}]}
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        json.dump(document, file)
