"""Admission by work, over a real scheduler."""

import pytest

from qa_service.errors import DeadlineExceededError, QueueFullError, TextTooLongError
from qa_service.server.scheduling.admission import MAX_RETRY_AFTER_MS, admit_long
from qa_service.server.scheduling.admission import admit as admit_short
from qa_service.server.scheduling.scheduler import QueueOptions, Scheduler
from tests.support import present
from tests.unit.calls import make_ticket


def queue_of(*costs, flow="others", max_queue_size=1000):
    scheduler = Scheduler(QueueOptions(max_queue_size=max_queue_size))
    for cost in costs:
        scheduler.add(make_ticket(flow=flow, cost=cost))
    return scheduler


def admit(scheduler, *, cost=10.0, time_ms=1000.0, long=False, **fields):
    check = admit_long if long else admit_short
    ticket = make_ticket(cost=cost, flow="mine", **fields)
    check(ticket, scheduler, ms_per_cost=0.5, time_ms=time_ms)


def test_a_full_queues_error_has_the_time_until_it_is_done():
    with pytest.raises(QueueFullError) as caught:
        admit(queue_of(100.0, 100.0, max_queue_size=2))
    assert caught.value.retry_after_ms == 100


def test_more_work_than_may_wait_is_refused():
    with pytest.raises(QueueFullError) as caught:
        admit(queue_of(100.0, 100.0), max_timeout_s=0.03)
    assert caught.value.retry_after_ms == 40
    admit(queue_of(100.0, 100.0), max_timeout_s=0.05)


def test_a_modest_clients_question_is_not_refused_for_what_others_have_waiting():
    scheduler = queue_of(*[100.0] * 50)
    admit(scheduler, time_ms=1000.0)
    for _ in range(30):
        scheduler.add(make_ticket(flow="mine", cost=100.0))
    with pytest.raises(QueueFullError, match="deadline"):
        admit(scheduler, time_ms=1000.0)


def test_a_text_that_takes_too_long_alone_is_refused_with_the_length_limit():
    taking_2000_ms = {"cost": 4000.0, "time_ms": 1000.0, "long": True}
    said = r"about 100 tokens, .* about 50 can be read in its 1,000 ms"
    with pytest.raises(TextTooLongError, match=said):
        admit(queue_of(), max_timeout_s=1.9, **taking_2000_ms)
    with pytest.raises(DeadlineExceededError, match=said):
        admit(queue_of(), max_timeout_s=2.0, **taking_2000_ms)
    admit(queue_of(), cost=2000.0, time_ms=1000.0, long=True)


def test_a_long_text_that_cannot_be_done_among_others_is_refused_at_once():
    scheduler = queue_of()
    for number in range(20):
        text = make_ticket(flow=f"client {number}", cost=200.0)
        if scheduler.flows.cost_until_done(text) * 0.5 <= 1000.0:
            admit(scheduler, cost=200.0, long=True)
            scheduler.begin(text)
    with pytest.raises(QueueFullError) as caught:
        admit(scheduler, cost=200.0, long=True)
    assert scheduler.flows.cost == 2000.0
    assert 1 <= present(caught.value.retry_after_ms) <= MAX_RETRY_AFTER_MS


@pytest.mark.parametrize("long", [False, True])
def test_an_expired_request_gets_deadline_exceeded_from_a_full_queue(long):
    with pytest.raises(DeadlineExceededError):
        admit(queue_of(), time_ms=0.0, long=long)


def test_a_text_is_admitted_by_its_share_among_clients_that_ask_again():
    """Each asks again as soon as it is answered: ten of them leave a text an eleventh."""
    scheduler = queue_of()
    for number in range(10):
        scheduler.add(make_ticket(flow=f"client {number}", cost=10.0))
    admit(scheduler, cost=180.0, long=True)
    with pytest.raises(QueueFullError):
        admit(scheduler, cost=190.0, long=True)


def test_passages_that_take_too_long_are_refused_with_what_helps():
    words = (
        r"^the question's passages .*in its 1,000 ms: "
        r"ask for fewer `max_passages`, or a longer `timeout_ms`$"
    )
    with pytest.raises(TextTooLongError, match=words):
        admit(queue_of(), cost=4000.0, long=True, max_timeout_s=1.0, collection="docs", text="")
