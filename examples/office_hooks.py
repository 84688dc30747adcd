"""Hooks for a company's texts: `qa-server --hooks examples.office_hooks:OfficeHooks`.

The question's abbreviations are expanded, the model does not read e-mail addresses, and no answer
has one.
"""

from __future__ import annotations

import re

from qa_service.errors import InvalidRequestError
from qa_service.instance.hooks import FoundAnswer, Hooks

ABBREVIATIONS = {"PTO": "paid time off", "WFH": "working from home"}
_ABBREVIATION = re.compile(rf"\b({'|'.join(ABBREVIATIONS)})\b")
_ADDRESS = re.compile(r"[\w.+-]{1,64}@[\w.-]{1,255}")


class OfficeHooks(Hooks):
    """Expands abbreviations in questions, and keeps e-mail addresses out of answers."""

    def question(self, question: str) -> str:
        """Expands abbreviations; refuses a question about salaries."""
        if "salary" in question.lower():
            raise InvalidRequestError("questions about salaries are not answered here")
        return _ABBREVIATION.sub(lambda found: ABBREVIATIONS[found[0]], question)

    def passage(self, text: str) -> str:
        """Masks e-mail addresses, with as many characters."""
        return _ADDRESS.sub(lambda found: "x" * len(found[0]), text)

    def answers(self, answers: list[FoundAnswer]) -> list[FoundAnswer]:
        """Drops answers that share a character with an e-mail address."""
        return [answer for answer in answers if not _has_address(answer)]


def _has_address(answer: FoundAnswer) -> bool:
    places = _ADDRESS.finditer(answer.text)
    return any(answer.start < place.end() and place.start() < answer.end for place in places)
