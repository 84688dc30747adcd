"""Questions in SQuAD's JSON, and SQuAD's two measures of an answer.

Standard library only. The file format is that of Rajpurkar et al., "SQuAD: 100,000+ Questions for
Machine Comprehension of Text" (EMNLP 2016); the unanswerable questions of SQuAD 2.0 (Rajpurkar et
al., ACL 2018) are questions without answers::

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}]}]}]}]}

The normalisation, exact match and F1 are those of the official ``evaluate-v1.1.py`` and
``evaluate-v2.0.py``: lower case, without ASCII punctuation and articles, white space collapsed; F1
over the bag of the remaining words; the best of all accepted answers counts.
"""

import gzip
import json
import re
import string
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN_QUESTIONS = Path(__file__).parent / "questions.json"
"""The questions that ship with the project."""
AGREEMENT_QUESTIONS = OWN_QUESTIONS.with_name("agreement.json")
"""Those by which engines are compared, and for whose lengths instances prepare."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class SquadQuestion:
    """One question with its text and its accepted answers; their starts are in code points."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    answer_starts: tuple[int, ...]
    is_impossible: bool = False


def read_squad(path: str | Path) -> list[SquadQuestion]:
    """Reads the questions of a SQuAD file, gzipped if its name ends in ``.gz``, in its order.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not JSON in SQuAD's format.
    """
    path = Path(path)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            return list(_questions(json.loads(file.read())))  # goes by the byte order mark
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        kind = type(error).__name__  # whose repr may have the whole file
        raise ValueError(f"{path} is not in SQuAD's format: {kind}: {error}") from error


def _questions(document: dict[str, Any]) -> Iterator[SquadQuestion]:
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                answers = qa.get("answers", ())
                yield SquadQuestion(
                    id=str(qa["id"]),
                    question=_string(qa, "question"),
                    context=_string(paragraph, "context"),
                    answers=tuple(_string(answer, "text") for answer in answers),
                    answer_starts=tuple(int(answer["answer_start"]) for answer in answers),
                    is_impossible=bool(qa.get("is_impossible", False)),
                )


def _string(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is not a string")
    return value


def normalize_answer(text: str) -> str:
    """Normalises an answer in the official order: case, punctuation, articles, white space."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, answers: tuple[str, ...]) -> float:
    """1.0 if the prediction normalises to one of the answers, else 0.0.

    Without accepted answers, the empty prediction is right.
    """
    predicted = normalize_answer(prediction)
    return float(any(predicted == normalize_answer(answer) for answer in answers or ("",)))


def f1_score(prediction: str, answers: tuple[str, ...]) -> float:
    """The best F1, in [0, 1], of the prediction's words against an accepted answer's.

    As in SQuAD 2.0, an empty prediction gets 1.0 without accepted answers, else 0.0.
    """
    predicted = normalize_answer(prediction).split()
    return max(_words_f1(predicted, normalize_answer(a).split()) for a in answers or ("",))


def _words_f1(predicted: list[str], accepted: list[str]) -> float:
    """F1 of two bags of words; two empty ones agree."""
    if not predicted or not accepted:
        return float(predicted == accepted)
    common = sum((Counter(predicted) & Counter(accepted)).values())
    return 2 * common / (len(predicted) + len(accepted))
