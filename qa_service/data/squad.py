"""Questions in SQuAD's JSON, and SQuAD's two measures of an answer.

Standard library only, so that the stress test and the training programs read
questions the same way and nobody needs a model to count a right answer.

The file format is that of Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine
Comprehension of Text" (EMNLP 2016), with the unanswerable questions of SQuAD 2.0
(Rajpurkar et al., ACL 2018) as questions without answers::

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}]}]}]}]}

The normalisation, exact match and F1 are those of the official ``evaluate-v1.1.py``
and ``evaluate-v2.0.py``: lower case, without ASCII punctuation, without the articles
*a*, *an*, *the*, white space collapsed; F1 over the bag of the remaining words; the
best of all accepted answers counts.
"""

import gzip
import json
import re
import string
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class SquadQuestion:
    """One question with its text and the answers that people accepted.

    Attributes:
        answers: Accepted answers, in the file's order; empty if there is none.
        answer_starts: For each answer, its offset in ``context`` in code points.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    answer_starts: tuple[int, ...]
    is_impossible: bool = False


def read_squad(path: str | Path) -> list[SquadQuestion]:
    """Read the questions of a SQuAD file, in the file's order.

    Args:
        path: JSON in SQuAD's format; a name ending in ``.gz`` means gzip.

    Returns:
        The questions. Those of one paragraph stand together and share its text.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not JSON in SQuAD's format.
    """
    path = Path(path)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            return list(_questions(json.load(file)))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not in SQuAD's format: {error!r}") from error


def _questions(document: dict[str, Any]) -> Iterator[SquadQuestion]:
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                yield _question(qa, paragraph["context"])


def _question(qa: dict[str, Any], context: str) -> SquadQuestion:
    answers = qa.get("answers", ())
    return SquadQuestion(
        id=str(qa["id"]),
        question=qa["question"],
        context=context,
        answers=tuple(answer["text"] for answer in answers),
        answer_starts=tuple(int(answer["answer_start"]) for answer in answers),
        is_impossible=bool(qa.get("is_impossible", False)),
    )


def normalize_answer(text: str) -> str:
    """Reduce an answer to what SQuAD compares: see the module's docstring.

    The order is the official one: case, punctuation, articles, white space.
    """
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, answers: tuple[str, ...]) -> float:
    """1.0 if the prediction normalises to one of the answers, else 0.0.

    No accepted answers means that the question is unanswerable: then the empty
    prediction is the right one.
    """
    predicted = normalize_answer(prediction)
    return float(any(predicted == normalize_answer(answer) for answer in answers or ("",)))


def f1_score(prediction: str, answers: tuple[str, ...]) -> float:
    """The best F1, in [0, 1], of the prediction's words against an accepted answer's.

    As in SQuAD 2.0, an empty prediction is worth 1.0 where there is no accepted
    answer and 0.0 elsewhere.
    """
    predicted = normalize_answer(prediction).split()
    return max(_words_f1(predicted, normalize_answer(a).split()) for a in answers or ("",))


def _words_f1(predicted: list[str], accepted: list[str]) -> float:
    """F1 of two bags of words; two empty ones agree."""
    if not predicted or not accepted:
        return float(predicted == accepted)
    common = sum((Counter(predicted) & Counter(accepted)).values())
    return 2 * common / (len(predicted) + len(accepted))
