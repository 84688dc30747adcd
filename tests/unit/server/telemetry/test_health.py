"""Whether a server is ready: only while it serves, and if one instance answers."""

from __future__ import annotations

import pytest

from qa_service.server.telemetry.health import why_not_ready


@pytest.mark.parametrize(("alive", "answering"), [(1, 1), (2, 1), (9, 9)])
def test_one_instance_that_answers_makes_it_ready(alive, answering):
    assert why_not_ready("serving", alive, answering) is None


@pytest.mark.parametrize("phase", ["starting", "draining", "stopping"])
@pytest.mark.parametrize("sessions", [0, 1])
def test_in_another_phase_it_is_not_ready_whatever_its_instances_do(phase, sessions):
    assert why_not_ready(phase, sessions, sessions) == f"the server is {phase}"


def test_without_instances_it_is_not_ready():
    assert why_not_ready("serving", 0, 0) == "no instance is alive"


@pytest.mark.parametrize("alive", [1, 2])
def test_with_instances_that_all_hang_it_is_not_ready(alive):
    assert why_not_ready("serving", alive, 0) == "no instance has answered for 10 s"
