"""Measures of answers: SQuAD's, abstention, and calibration. Needs no model library."""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qa_service.data.squad import SquadQuestion, exact_match, f1_score, normalize_answer
from qa_service.instance.reader.reader import Reader
from qa_service.progress import progress_bar
from qa_service.wire.messages import Answer, Question

Metrics = dict[str, float]

_CHUNK_QUESTIONS = 512
"""Bounds how many windows are in memory at a time."""
_BINS = 10
"""Few enough that each has many of a dev file's answers."""
_NEAR = 0.05
"""Half of a bin to each side."""

_QUESTION_WORD = re.compile(r"\b(what|who|whom|whose|when|where|which|why|how\s+(many|much)|how)\b")
_ANSWER_WORDS = {1: "1 word", 2: "2 or 3 words", 4: "4 to 6 words", 7: "7 words or more"}
"""Kinds of answers, by their minimum of words."""
_WORD = re.compile(r"\w+")
_HARD_SHARE = 0.75
"""The share of unanswerable questions that get a text with their words; the rest get any."""
_HARD_CHOICES = 3
"""The text is drawn from this many that share most, so that it may differ in another draw."""
_COMMON_SHARE = 0.03
"""A word in more than this share of the texts does not count as shared: it is too common."""


def best_answers(reader: Reader, questions: Sequence[SquadQuestion]) -> list[Answer]:
    """Answers questions, with a bar; an error becomes the empty answer."""
    answers: list[Answer] = []
    with progress_bar(total=len(questions), unit="question", leave=False) as bar:
        for first in range(0, len(questions), _CHUNK_QUESTIONS):
            chunk = questions[first : first + _CHUNK_QUESTIONS]
            for result in reader.read([Question(q.question, q.context) for q in chunk]):
                found = result if isinstance(result, list) else []
                answers.append(found[0] if found else Answer("", 0.0, None, None))
            bar.update(len(chunk))
    return answers


def squad_metrics(answers: Sequence[Answer], questions: Sequence[SquadQuestion]) -> Metrics:
    """Exact match and F1, in percent, over all the questions."""
    pairs = [(a.answer, q.answers) for a, q in zip(answers, questions, strict=True)]
    return {
        "exact_match": 100 * sum(exact_match(*pair) for pair in pairs) / len(pairs),
        "f1": 100 * sum(f1_score(*pair) for pair in pairs) / len(pairs),
    }


def f1_by(
    kind: Callable[[SquadQuestion], str],
    answers: Sequence[Answer],
    questions: Sequence[SquadQuestion],
) -> dict[str, tuple[float, int]]:
    """F1, in percent, and number of the questions of each kind, the largest kind first."""
    scores: dict[str, list[float]] = {}
    for answer, question in zip(answers, questions, strict=True):
        score = f1_score(answer.answer, question.answers)
        scores.setdefault(kind(question), []).append(score)
    largest_first = sorted(scores.items(), key=lambda item: -len(item[1]))
    return {
        name: (100 * sum(of_kind) / len(of_kind), len(of_kind)) for name, of_kind in largest_first
    }


def question_word(question: SquadQuestion) -> str:
    """The question's first question word: `what`, `how many`; `other` if there is none."""
    found = _QUESTION_WORD.search(question.question.lower())
    return " ".join(found[0].split()) if found else "other"


def answer_length(question: SquadQuestion) -> str:
    """The kind of the shortest accepted answer, by its number of words."""
    words = min(len(answer.split()) for answer in question.answers)
    return _ANSWER_WORDS[max(fewest for fewest in _ANSWER_WORDS if fewest <= max(1, words))]


def abstained_percent(answers: Sequence[Answer]) -> float:
    return 100 * sum(answer.start is None for answer in answers) / len(answers)


def calibration_error(answers: Sequence[Answer], questions: Sequence[SquadQuestion]) -> float:
    """Expected calibration error, in percent, of the answers except "no answer".

    Bins of equal width by score; the error is the mean, over answers, of their bin's distance
    between mean score and share of exact matches (Naeini et al. 2015; Guo et al. 2017, equation 3).
    """
    given = [(a, q) for a, q in zip(answers, questions, strict=True) if a.start is not None]
    if not given:
        return 0.0
    scores = np.array([answer.score for answer, _ in given])
    right = np.array([exact_match(answer.answer, q.answers) for answer, q in given])
    bins = np.minimum((scores * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, weights=scores - right, minlength=_BINS)
    return float(100 * np.abs(gaps).sum() / len(given))


def right_near(
    score: float, answers: Sequence[Answer], questions: Sequence[SquadQuestion]
) -> float:
    """Percent of exact matches among answers scored within `_NEAR` of a score; NaN without any."""
    right = [
        exact_match(a.answer, q.answers)
        for a, q in zip(answers, questions, strict=True)
        if a.start is not None and abs(a.score - score) <= _NEAR
    ]
    return 100 * sum(right) / len(right) if right else math.nan


def unanswerable_questions(questions: Sequence[SquadQuestion]) -> list[SquadQuestion]:
    """Gives each question another text of the same file; always the same one."""
    maker = UnanswerableMaker([question.context for question in questions])
    rng = random.Random(0)
    made = (maker.make(question, rng) for question in questions)
    return [question for question in made if question is not None]


class UnanswerableMaker:
    """Gives questions texts that do not hold their answers."""

    def __init__(self, contexts: Sequence[str]) -> None:
        self._contexts = list(dict.fromkeys(contexts))
        self._texts_with: dict[str, list[int]] = defaultdict(list)
        for number, context in enumerate(self._contexts):
            for word in words_of(context):
                self._texts_with[word].append(number)

    def make(self, question: SquadQuestion, rng: random.Random) -> SquadQuestion | None:
        """Gives a question another text, mostly one that shares its words, and no answers.

        None if every text tried holds one of its answers.
        """
        hard = rng.random() < _HARD_SHARE
        numbers = self._similar(question) if hard else []
        if not numbers:
            numbers = rng.sample(range(len(self._contexts)), min(8, len(self._contexts)))
        without = [n for n in numbers if not _holds_answer(self._contexts[n], question)]
        if not without:
            return None
        context = self._contexts[rng.choice(without[:_HARD_CHOICES])]
        return replace(question, context=context, answers=(), answer_starts=())

    def _similar(self, question: SquadQuestion) -> list[int]:
        """Indices of other texts, first those that share most and rarest words (tf-idf)."""
        shared: Counter[int] = Counter()
        for word in words_of(question.question):
            texts = self._texts_with.get(word, [])
            if len(texts) <= max(3, _COMMON_SHARE * len(self._contexts)):
                rarity = math.log(len(self._contexts) / max(1, len(texts)))
                shared.update(dict.fromkeys(texts, rarity))
        ranked = [number for number, _ in shared.most_common(4 * _HARD_CHOICES)]
        return [number for number in ranked if self._contexts[number] != question.context]


def words_of(text: str) -> list[str]:
    """Each word once, in the text's order: a set's order differs between processes."""
    return list(dict.fromkeys(_WORD.findall(text.lower())))


def _holds_answer(context: str, question: SquadQuestion) -> bool:
    if context == question.context:
        return True
    text = f" {normalize_answer(context)} "
    return any(f" {normalize_answer(answer)} " in text for answer in question.answers)
