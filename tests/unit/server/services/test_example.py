"""The service of a user's own that docs/ARCHITECTURE.md names."""

import pytest

from examples.rounded_scores import RoundedScores
from qa_service.errors import UnavailableError
from qa_service.wire.messages import Answer, Answered
from tests.unit.server.fake_services import NO_ANSWER, TIMINGS, Client, FakeService

ERROR = UnavailableError()


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Answered([Answer("a", 0.98765, 3, 4), NO_ANSWER], TIMINGS),
         Answered([Answer("a", 0.99, 3, 4), NO_ANSWER], TIMINGS)),
        (ERROR, ERROR),
    ],
)  # fmt: skip
def test_scores_are_rounded_and_nothing_else_changes(outcome, expected):
    inner = FakeService()
    client = Client(RoundedScores(inner))
    call = client.ask()
    inner.submitted[0].settle(outcome)
    assert client.outcomes[call] == expected
