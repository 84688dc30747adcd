"""When instances that serve are tested, and what is said of one that fails."""

import logging

import pytest

from qa_service.instance.stages import StagesMs
from qa_service.instance.worker_messages import Batch, Check, Checked, Failed, Ready, Results
from tests.support import run_until
from tests.unit.calls import make_ticket

INTERVAL_S = 600
WRONG = Failed("it computes wrongly", is_blameless=True, is_wrong=True)


@pytest.fixture
def serving(start):
    """Starts a pool whose instances are ready."""

    def serve(size=2, interval_s=INTERVAL_S, *, can_test=True):
        pool = start(size, self_test_interval_s=interval_s, execution_timeout_ms=10**7)
        pool.become_ready(*range(size), ready=Ready(can_test=can_test))
        return pool

    return serve


def in_test(setting):
    return [n for n, worker in sorted(setting.workers.items()) if worker.is_in_test]


def pass_test(setting, number):
    worker = setting.workers[number]
    test = worker.peer.receive()
    assert isinstance(test, Check)
    worker.peer.send(Checked(test.number))
    run_until(setting.loop, lambda: test.number not in worker.in_flight)


def test_instances_are_tested_one_at_a_time_when_their_last_test_is_old(serving):
    setting = serving()
    setting.settle(INTERVAL_S - 1)
    assert in_test(setting) == []
    setting.settle(2)
    assert in_test(setting) == [0]
    pass_test(setting, 0)
    assert in_test(setting) == [1]
    pass_test(setting, 1)
    setting.settle()
    assert in_test(setting) == []
    assert setting.metrics.self_tests_total == {"passed": 2, "failed": 0}
    setting.settle(INTERVAL_S + 1)
    assert in_test(setting) == [0]


def test_an_idle_instance_is_tested_before_a_busy_one(serving):
    setting = serving()
    setting.settle(1)
    setting.give(0, make_ticket())
    setting.settle(INTERVAL_S)
    assert in_test(setting) == [1]


def test_a_busy_instance_is_tested_after_its_batch(serving):
    setting = serving(1)
    batch = setting.give(0, make_ticket())
    setting.settle(INTERVAL_S + 1)
    assert in_test(setting) == [0]
    setting.finish(0, batch)
    pass_test(setting, 0)
    assert (in_test(setting), [one.number for one in setting.results]) == ([], [batch.number])


def test_an_instance_with_two_batches_is_tested_when_one_is_done(serving):
    setting = serving(1)
    first, _ = setting.give(0, make_ticket()), setting.give(0, make_ticket())
    setting.settle(INTERVAL_S + 1)
    assert in_test(setting) == []
    setting.finish(0, first)
    assert in_test(setting) == [0]


@pytest.mark.parametrize("fields", [{"interval_s": 0}, {"can_test": False}])
def test_without_known_answers_or_interval_no_instance_is_tested(serving, fields):
    setting = serving(**fields)
    setting.settle(100 * INTERVAL_S)
    assert in_test(setting) == []


def test_a_wrong_instance_is_replaced_and_its_batch_runs_elsewhere_without_an_attempt(
    serving, caplog
):
    setting = serving()
    for _ in range(3):
        setting.finish(0, setting.give(0, make_ticket(), make_ticket()))
    setting.settle(INTERVAL_S + 1)
    setting.give(0, make_ticket(number=7))
    wrong = setting.workers[0]
    with caplog.at_level(logging.ERROR):
        setting.end(0, WRONG)
    assert setting.lost == [(7, False)]
    assert setting.metrics.self_tests_total == {"passed": 0, "failed": 1}
    assert "instance 0 ended (it computes wrongly); it held 1 request" in caplog.text
    assert "6 answers that it gave since the last one that it passed, 601 s ago, are in doubt" in (
        caplog.text
    )
    setting.settle(1)
    run_until(setting.loop, lambda: setting.workers[0] is not wrong)
    assert setting.pool.take_failure() == ""


def test_answers_from_before_a_passed_test_are_not_in_doubt(serving, caplog):
    setting = serving(1)
    setting.finish(0, setting.give(0, make_ticket(), make_ticket()))
    setting.settle(INTERVAL_S + 1)
    pass_test(setting, 0)
    setting.finish(0, setting.give(0, make_ticket()))
    with caplog.at_level(logging.ERROR):
        setting.end(0, WRONG)
    assert "1 answer that it gave since the last one that it passed, 0 s ago" in caplog.text


def test_an_instance_that_failed_its_test_gets_no_batch(serving):
    setting = serving()
    worker = setting.workers[0]
    worker.peer.send(WRONG)
    run_until(setting.loop, lambda: bool(worker.failure))
    assert worker.takes_from_s() > 1e300


def test_if_the_replacement_is_wrong_too_the_pool_fails_with_the_reason(serving):
    setting = serving(1)
    wrong = setting.workers[0]
    setting.end(0, WRONG)
    setting.settle(1)
    run_until(setting.loop, lambda: setting.workers[0] is not wrong)
    setting.end(0, WRONG)
    assert setting.pool.is_wrong
    assert setting.pool.take_failure() == "instance 0 cannot start: it computes wrongly"


def test_a_wrong_instance_is_restarted_while_another_answers(serving):
    setting = serving()
    for _ in range(2):
        wrong = setting.workers[0]
        setting.end(0, WRONG)
        setting.settle(60)
        run_until(setting.loop, lambda wrong=wrong: setting.workers[0] is not wrong)
    assert (setting.pool.take_failure(), setting.pool.alive) == ("", 1)


def test_a_batch_result_in_reply_to_a_test_ends_the_instance(serving):
    setting = serving(1)
    setting.settle(INTERVAL_S + 1)
    test = setting.workers[0].peer.receive()
    setting.end(0, Results(test.number, [], 0.0, 1.0, StagesMs()))
    assert setting.workers[0].child.failure == "it sent results that fit no batch"


def test_a_test_result_in_reply_to_a_batch_ends_the_instance(serving):
    setting = serving(1)
    batch = setting.give(0, make_ticket(number=3))
    assert isinstance(batch, Batch)
    setting.end(0, Checked(batch.number))
    assert setting.lost == [(3, True)]
