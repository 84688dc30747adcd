"""Where the time of a start goes."""

import time

from qa_service.instance.start_times import StartTimes


def test_a_steps_time_is_without_that_of_steps_within_it(monkeypatch):
    clock = iter([0.0, 1.0, 4.0, 4.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    times = StartTimes()
    with times.taking("known answers"), times.taking("recording"):
        pass
    assert times.describe(6.0) == "recording 3.0 s, known answers 1.5 s, the rest 1.5 s"
