"""How many remote instances there should be, by a clock of the test's own."""

from qa_service.server.instances.ray_pool import Autoscaler

IDLE_S = 60.0


def scaler():
    return Autoscaler(fewest=2, most=8, idle_timeout_s=IDLE_S, now_s=0.0)


def wanted(autoscaler, at_s=1.0, **found):
    usual = {"remote": 2, "alive": 3, "starting": 0, "idle": 0, "waiting_s": 0.0}
    return autoscaler.wanted(at_s, **(usual | found))


def test_instances_grow_by_queued_seconds():
    assert [wanted(scaler(), waiting_s=s) for s in (3.0, 4.5, 100.0)] == [2, 4, 8]


def test_no_instance_is_added_while_others_start():
    assert wanted(scaler(), waiting_s=100.0, starting=1) == 2


IDLE = {"remote": 4, "alive": 5, "idle": 1}


def test_one_instance_is_removed_after_the_idle_timeout():
    pool = scaler()
    assert [wanted(pool, at_s, **IDLE) for at_s in (1.0, 59.0, 60.0, 61.0)] == [4, 4, 3, 4]


def test_waiting_work_restarts_the_idle_timeout():
    pool = scaler()
    wanted(pool, 30.0, remote=4, alive=5)
    assert wanted(pool, 60.0, **IDLE) == 4
    wanted(pool, 80.0, **IDLE, waiting_s=0.1)
    assert [wanted(pool, at_s, **IDLE) for at_s in (139.0, 140.0)] == [4, 3]


def test_autoscaling_keeps_the_minimum():
    assert wanted(scaler(), 1000.0, idle=2) == 2
