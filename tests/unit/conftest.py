"""Property tests find the same examples on every run, however slow the machine."""

import pytest
from hypothesis import HealthCheck, settings

from qa_service.net.event_loop import EventLoop

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],  # of the machine's pace, which others share
)
settings.load_profile("repeatable")


@pytest.fixture
def loop():
    made = EventLoop()
    yield made
    made.close()
