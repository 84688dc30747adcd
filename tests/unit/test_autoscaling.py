"""How many remote instances there should be, by a clock of the test's own."""

from __future__ import annotations

from qa_service.workers.autoscaling import Autoscaler, Situation

IDLE_S = 60.0


def scaler() -> Autoscaler:
    return Autoscaler(fewest=2, most=8, idle_timeout_s=IDLE_S, now_s=0.0)


def found(**fields) -> Situation:
    usual = {"remote": 2, "alive": 3, "starting": 0, "idle": 0, "waiting_s": 0.0}
    return Situation(**(usual | fields))


def test_it_grows_by_what_waits():
    assert scaler().wanted(found(waiting_s=3.0), 1.0) == 2
    assert scaler().wanted(found(waiting_s=4.5), 1.0) == 4
    assert scaler().wanted(found(waiting_s=100.0), 1.0) == 8


def test_it_waits_for_those_that_start():
    assert scaler().wanted(found(waiting_s=100.0, starting=1), 1.0) == 2


def test_it_shrinks_by_one_when_one_was_idle_all_the_while():
    autoscaler, idle = scaler(), found(remote=4, alive=5, idle=1)
    assert [autoscaler.wanted(idle, at_s) for at_s in (1.0, 59.0, 60.0, 61.0)] == [4, 4, 3, 4]


def test_a_moment_of_work_begins_the_while_again():
    autoscaler, idle = scaler(), found(remote=4, alive=5, idle=1)
    autoscaler.wanted(found(remote=4, alive=5), 30.0)
    assert autoscaler.wanted(idle, 60.0) == 4
    autoscaler.wanted(found(remote=4, alive=5, idle=1, waiting_s=0.1), 80.0)
    assert autoscaler.wanted(idle, 139.0) == 4
    assert autoscaler.wanted(idle, 140.0) == 3


def test_it_keeps_the_fewest():
    assert scaler().wanted(found(idle=2), 1000.0) == 2
