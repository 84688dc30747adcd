"""The service of a user's own that docs/ARCHITECTURE.md names."""

from __future__ import annotations

from examples.rounded_scores import RoundedScores
from qa_service.errors import UnavailableError
from qa_service.wire.messages import Answer, Answered, Timings
from tests.unit.calls import make_call


class Settles:
    """A service that settles each call with the same outcome."""

    def __init__(self, outcome):
        self.outcome = outcome

    def submit(self, call):
        call.settle(self.outcome)


def outcome_of(outcome):
    seen = []
    RoundedScores(Settles(outcome)).submit(make_call(on_settled=seen.append))
    return seen


def test_scores_are_rounded_and_nothing_else_changes():
    answers = [Answer("a", 0.98765, 3, 4), Answer("", 0.00412, None, None)]
    [outcome] = outcome_of(Answered(answers, Timings(1.0, 2.0)))
    assert [(one.answer, one.score, one.start) for one in outcome.answers] == [
        ("a", 0.99, 3), ("", 0.0, None)
    ]  # fmt: skip
    assert outcome.timings == Timings(1.0, 2.0)


def test_an_error_passes_as_it_is():
    error = UnavailableError()
    assert outcome_of(error) == [error]
