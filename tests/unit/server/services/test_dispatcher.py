"""The dispatcher, with instances and a clock of the test's own."""

import math
from typing import cast

import pytest

from qa_service.errors import ERROR_KINDS, CancelledError, TextTooLongError
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.stages import StagesMs
from qa_service.instance.worker_messages import Answers, Failure, ModelFacts, Results
from qa_service.server.instances.pool import WorkerPool
from qa_service.server.scheduling.scheduler import QueueOptions, Scheduler
from qa_service.server.services.dispatcher import MAX_MOVES, Dispatcher
from qa_service.server.services.segments import Segments
from qa_service.server.services.service import Gate
from qa_service.server.telemetry.metrics import ModelMetrics
from qa_service.wire.messages import Answer, Answered
from tests.unit.calls import make_call, make_ticket
from tests.unit.server.fake_services import ManualClock

TEXT = "Ada " * 97
"""With a question, about a hundred tokens."""


class FakeInstance:
    number, rule = 0, BatchRule()

    def __init__(self):
        self.batches = []

    @property
    def is_idle(self):
        return not self.batches

    def takes_from_s(self):
        return -math.inf if self.is_idle else math.inf

    def run(self, batch):
        self.batches.append(batch)


class FakeInstances:
    alive, model = 1, ModelFacts("a model", window_tokens=384)

    def __init__(self, *workers):
        self.workers = workers


class Setting:
    def __init__(self, **options):
        self.clock, self.instance, self.outcomes = ManualClock(), FakeInstance(), []
        self.metrics = ModelMetrics(ERROR_KINDS)
        queue = QueueOptions(**{"max_queue_size": 10, **options})
        instances = cast(WorkerPool, FakeInstances(self.instance))
        self.dispatcher = Dispatcher(self.clock, Scheduler(queue), instances, self.metrics)

    def submit(self, service=None, **fields):
        def settle(outcome):
            self.outcomes.append(outcome.answers if isinstance(outcome, Answered) else outcome.code)

        call = make_call(100.0, text=TEXT, on_settled=settle, **fields)
        (service or self.dispatcher).submit(call)
        return call

    def lose(self, *, were_running):
        """Gives the instance its request, which is lost with it; returns the ticket."""
        self.dispatcher.dispatch()
        [ticket] = batch = self.instance.batches.pop()
        self.dispatcher.on_lost(batch, were_running=were_running)
        return ticket

    def finish(self, *outcomes):
        batch = self.instance.batches.pop(0)
        self.dispatcher.on_results(batch, Results(0, list(outcomes), 100.0, 5.0, StagesMs()))


@pytest.fixture
def setting():
    return Setting()


ADA = [Answer("Ada", 0.9, 0, 3)]


def test_one_bad_request_does_not_fail_its_batch(setting):
    setting.submit()
    setting.submit()
    setting.dispatcher.dispatch()
    setting.finish(Failure("question_too_long", "it is"), Answers(ADA))
    assert setting.outcomes == ["question_too_long", ADA]


def test_a_request_past_its_deadline_is_failed_and_not_run(setting):
    setting.instance.batches.append([])  # it is busy
    setting.submit(deadline_s=101.0)
    setting.dispatcher.dispatch()
    setting.clock.advance(2.0)
    assert setting.outcomes == ["deadline_exceeded"]
    assert (setting.instance.batches, setting.dispatcher.queue_length) == ([[]], 0)


@pytest.mark.parametrize("left_s", [-1.0, 0.0, 1e-6])
def test_an_expired_request_at_an_idle_server_gets_deadline_exceeded(setting, left_s):
    """An empty queue is never full."""
    setting.submit(deadline_s=100.0 + left_s)
    setting.clock.time_s += 1e-3
    setting.dispatcher.dispatch()
    assert setting.outcomes == ["deadline_exceeded"]
    assert setting.instance.batches == []


def test_a_turn_costs_at_least_a_window_but_waiting_work_counts_the_real_cost(setting):
    setting.instance.batches.append([])
    setting.submit()
    [ticket] = [turn.ticket for turn in setting.dispatcher._scheduler.flows.turns()]
    assert (ticket.tokens, ticket.turn_cost) == (100, pytest.approx(5.12 * ticket.cost))
    assert setting.dispatcher.waiting_s == pytest.approx(ticket.cost / 1e3)


def run_slowly(setting, *, times, inference_ms=5.0, handled_after_ms=0.0):
    """Runs batches that cost 10 ms by their estimates."""
    for _ in range(times):
        setting.submit()
        setting.dispatcher.dispatch()
        setting.clock.time_s += handled_after_ms / 1e3
        started_s = setting.clock.time_s - handled_after_ms / 1e3
        batch = setting.instance.batches.pop(0)
        results = Results(0, [Answers(ADA)], started_s, inference_ms, StagesMs())
        setting.dispatcher.on_results(batch, results)


@pytest.mark.parametrize("slow", [{"inference_ms": 40.0}, {"handled_after_ms": 40.0}])
def test_can_finish_uses_the_time_until_batches_are_handled(slow):
    setting = Setting()
    text = make_ticket(100.0, deadline_s=101.0)
    assert setting.dispatcher.can_finish(text, 900.0)
    run_slowly(setting, times=300, **slow)
    text.deadline_s = setting.clock.time_s + 1.0
    assert setting.dispatcher.can_finish(text, 240.0)
    assert not setting.dispatcher.can_finish(text, 280.0)


def test_a_short_batch_that_stood_still_does_not_have_others_refused():
    """The kernel, or what else runs there, may hold a process up for seconds."""
    setting = Setting()
    run_slowly(setting, times=100, inference_ms=10.0)
    run_slowly(setting, times=1, inference_ms=5000.0)
    setting.submit()
    text = make_ticket(100.0, tokens=9000, deadline_s=setting.clock.time_s + 10.0)
    setting.dispatcher.admit(text, is_long=True)


def test_an_idle_machine_is_not_judged_by_how_slow_it_was():
    setting = Setting()
    run_slowly(setting, times=30, inference_ms=400.0)
    deadline_s = setting.clock.time_s + 1.0
    text = make_ticket(100.0, tokens=9000, deadline_s=deadline_s, max_timeout_s=1.0)
    setting.dispatcher.admit(text, is_long=True)
    setting.instance.batches.append([])
    setting.submit()
    with pytest.raises(TextTooLongError):
        setting.dispatcher.admit(text, is_long=True)


def test_a_request_that_kills_three_instances_is_not_run_again(setting):
    setting.submit()
    for num_retries in (1, 2, 2):
        assert setting.outcomes == []
        setting.lose(were_running=True)
        assert setting.metrics.request_retries_total == num_retries
    assert setting.outcomes == ["worker_crashed"]


def test_a_request_whose_retry_meets_another_death_is_answered_by_the_third_instance(setting):
    setting.submit()
    for _ in range(2):
        setting.lose(were_running=True)
    setting.dispatcher.dispatch()
    setting.finish(Answers(ADA))
    assert setting.outcomes == [ADA]


def test_a_request_not_begun_is_requeued_without_an_attempt(setting):
    setting.submit()
    assert setting.lose(were_running=False).attempts == 0
    assert setting.dispatcher.queue_length == 1


def test_a_request_that_has_ended_is_not_run_again(setting):
    call = setting.submit()
    setting.dispatcher.dispatch()
    call.fail(CancelledError())
    setting.dispatcher.on_lost(setting.instance.batches.pop(), were_running=True)
    setting.dispatcher.dispatch()
    assert (setting.outcomes, setting.instance.batches) == (["cancelled"], [])
    assert setting.metrics.request_retries_total == 0


def test_a_blameless_request_is_requeued_a_bounded_number_of_times(setting):
    setting.submit()
    for _ in range(MAX_MOVES + 1):
        ticket = setting.lose(were_running=False)
    assert ticket.attempts == 0
    assert setting.outcomes == ["unavailable"]


def test_a_closed_gate_refuses_new_calls_and_keeps_earlier_ones(setting):
    gate = Gate(Segments(setting.dispatcher))
    setting.submit(gate)
    gate.is_open = False
    setting.submit(gate)
    assert setting.outcomes == ["shutting_down"]
    assert setting.dispatcher.queue_length == 1
