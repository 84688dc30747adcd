"""Finds texts that do not answer a question, to measure with and to train on.

A model learns to abstain from questions about texts that do not answer them: hard ones share the
question's words (as in SQuAD 2.0; Rajpurkar et al., ACL 2018), weighted here by their rarity.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from qa_service.data.squad import SquadQuestion, normalize_answer

_WORD = re.compile(r"\w+")
_HARD_SHARE = 0.75
"""The share of unanswerable questions that get a text with their words; the rest get any."""
_HARD_CHOICES = 3
"""The text is drawn from this many that share most, so that it may differ in another draw."""
_COMMON_SHARE = 0.03
"""A word in more than this share of the texts does not count as shared: it is too common."""


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
