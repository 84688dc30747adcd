"""The questions that ship with the project: instances prepare for them, engines race by them."""

from __future__ import annotations

from pathlib import Path

from qa_service.data.squad import OWN_QUESTIONS, SquadQuestion, read_squad

AGREEMENT_QUESTIONS = OWN_QUESTIONS.with_name("agreement.json")
"""Those by which engines are compared."""


def bundled_questions(path: Path = OWN_QUESTIONS) -> list[SquadQuestion]:
    """The questions of a bundled file, with their texts."""
    return list(read_squad(path))
