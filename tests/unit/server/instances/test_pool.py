"""Instances that end while they start, for a reason of their own or by a signal."""

import logging
import signal

import pytest

from qa_service.instance.worker_messages import Failed
from qa_service.server.children.child import MAX_BACKOFF_S
from qa_service.server.instances.pool import MAX_FAILED_STARTS
from tests.unit.calls import make_ticket
from tests.unit.server.handled_worker import DRAIN_TIMEOUT_S

WRONG = Failed("it computes wrongly", is_blameless=True, is_wrong=True)


def is_started_again(setting, worker):
    """Whether another instance has its number, once any backoff is over."""
    setting.settle(MAX_BACKOFF_S)
    setting.settle(MAX_BACKOFF_S)
    return setting.workers[worker.number] is not worker


@pytest.mark.parametrize("has_served", [False, True])
def test_starts_that_signals_end_fail_no_pool_however_many_they_are(start, has_served):
    setting = start(2)
    if has_served:
        for number in (0, 1):
            setting.become_ready(number)
            setting.end(number, code=-signal.SIGKILL)
            setting.settle(MAX_BACKOFF_S)
            setting.settle()
    for _ in range(3 * MAX_FAILED_STARTS):
        for number in (0, 1):
            worker = setting.end(number, code=-signal.SIGKILL)
            assert is_started_again(setting, worker)
    assert setting.pool.take_failure() == ""
    setting.become_ready(0, 1)
    assert (setting.pool.is_booting, setting.pool.alive) == (False, 2)


def test_a_start_that_a_signal_ends_counts_for_the_backoff(start, caplog):
    setting = start()
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            worker = setting.end(0, code=-signal.SIGKILL)
            assert is_started_again(setting, worker)
    delays = [r.args[-1] for r in caplog.records if "starts again" in r.msg]
    assert delays == [0.1, 0.2, 0.4, 0.8]


def test_what_ended_a_start_is_decided_when_its_process_is_reaped(start):
    """Its channel closes a moment before its status is known."""
    setting = start()
    worker = setting.end(0, code=None)
    setting.settle(1.0)
    assert setting.workers[0] is worker
    assert not worker.process.is_killed  # which would hide the signal that ends it
    worker.process.code = -signal.SIGTERM
    assert is_started_again(setting, worker)
    assert setting.pool.take_failure() == ""


def test_a_start_that_fails_by_itself_fails_a_pool_that_boots(start):
    setting = start()
    worker = setting.end(0, code=None)
    worker.process.code = -signal.SIGSEGV
    setting.settle(1.0)
    assert setting.pool.take_failure() == "instance 0 cannot start: it was killed by SIGSEGV"


def test_failed_starts_are_given_up_though_some_are_killed_between(start):
    setting = start()
    setting.become_ready(0)
    assert is_started_again(setting, setting.end(0))
    for _ in range(MAX_FAILED_STARTS):
        assert setting.pool.take_failure() == ""
        assert is_started_again(setting, setting.end(0, code=-signal.SIGKILL))
        failed = setting.end(0, Failed("no memory"))
        is_started_again(setting, failed)
    assert setting.pool.take_failure() == "instance 0 cannot start: no memory"


def test_a_process_that_is_killed_before_it_gets_its_setup_is_replaced(start, monkeypatch):
    """Its channel fails while its worker is made."""
    setting = start()
    setting.become_ready(0)
    launch, killed = setting.launch, []

    def launch_killed():
        process, ours = launch()
        process.code = -signal.SIGKILL
        process.peer.close()
        killed.append(process)
        return process, ours

    monkeypatch.setattr(setting.pool._children[0], "launch", launch_killed)
    worker = setting.workers[0]
    setting.end(0)
    setting.settle(MAX_BACKOFF_S)
    setting.settle()
    monkeypatch.undo()
    assert killed
    assert is_started_again(setting, worker)
    setting.become_ready(0)
    setting.settle()
    assert (setting.pool.alive, setting.pool.num_processes) == (1, 1)


def test_a_number_that_is_wanted_again_is_not_started_twice(start):
    setting = start(2)
    setting.become_ready(0)
    gone = setting.end(1, code=None)
    setting.pool.resize(1)
    setting.pool.resize(2)
    again = setting.workers[1]
    gone.process.code = -signal.SIGKILL
    setting.settle(MAX_BACKOFF_S)
    setting.settle()
    assert setting.workers[1] is again
    assert setting.pool.num_processes == 2


def test_a_wrong_start_is_forgotten_once_the_instance_has_proved_itself(start):
    setting = start(2)
    setting.become_ready(0, 1)
    assert is_started_again(setting, setting.end(0))
    assert is_started_again(setting, setting.end(0, WRONG))
    setting.become_ready(0)
    assert is_started_again(setting, setting.end(0))
    assert is_started_again(setting, setting.end(1))
    for _ in range(MAX_FAILED_STARTS):
        assert is_started_again(setting, setting.end(1))
    assert (setting.pool.take_failure(), setting.pool.is_wrong) == ("", False)


def test_a_drained_instance_that_does_not_end_is_killed_with_a_line(start, caplog):
    setting = start()
    setting.become_ready(0)
    worker = setting.workers[0]
    worker.process.code = None
    setting.pool.resize(0)
    with caplog.at_level(logging.WARNING):
        setting.settle(DRAIN_TIMEOUT_S - 1)
        assert not worker.process.is_killed
        setting.settle(2)
        setting.settle(1)
    assert worker.process.is_killed
    assert [record.getMessage() for record in caplog.records] == [
        "instance 0 has not ended since its channel did: killed"
    ]
    worker.process.code = -signal.SIGKILL
    setting.settle(1)
    assert not setting.pool.num_processes


def test_an_instance_that_leaves_finishes_its_batch_and_takes_no_self_test(start):
    setting = start(2)
    setting.become_ready(0, 1)
    leaving = setting.workers[1]
    leaving.run([make_ticket()])
    assert leaving.can_be_tested
    setting.pool.resize(1)
    assert (leaving.is_leaving, leaving.can_be_tested) == (True, False)
