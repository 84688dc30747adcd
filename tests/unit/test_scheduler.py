"""The queue and its batches, with a clock of the test's own."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.batching import BatchRule, CostTable
from qa_service.errors import QueueFullError
from qa_service.protocol import MAX_PRIORITY, Request
from qa_service.scheduler import BATCH_BY, Scheduler, SchedulerConfig, Ticket, estimate_tokens

keys = itertools.count()


def ticket(arrived_s=0.0, *, tokens=100, priority=0, deadline_s=math.inf, is_long=False):
    request = Request("q?", "t", priority=priority)
    return Ticket(next(keys), request, None, arrived_s, deadline_s, tokens, is_long)


class OneSession(Scheduler):
    """A scheduler whose batches all go to sessions of one kind."""

    def __init__(self, config, rule):
        super().__init__(config)
        self.rule = rule

    def next_batch(self, now_s, **session):
        return super().next_batch(now_s, self.rule, **session)


def scheduler(
    *tickets, max_queue_size=100, max_batch_size=4, max_batch_tokens=1000, costs=None, **options
):
    rule = BatchRule(max_batch_size, max_batch_tokens, costs=costs)
    made = OneSession(SchedulerConfig(max_queue_size, **options), rule)
    for item in tickets:
        made.add(item)
    return made


def test_empty_queue_has_no_batch_and_nothing_to_wait_for():
    empty = scheduler()
    assert empty.next_batch(0.0) == []
    assert empty.expired(0.0) == []
    assert empty.next_deadline_s() == math.inf
    assert empty.next_departure_s() is None


def test_oldest_leads_whatever_the_order_of_arrival_in_the_queue():
    old, new = ticket(1.0), ticket(2.0)
    assert scheduler(new, old, max_batch_size=1).next_batch(3.0) == [old]


def test_companions_are_the_nearest_in_length():
    leader = ticket(0.0, tokens=100)
    far, near_below, near_above, tie = (ticket(1.0, tokens=n) for n in (500, 95, 103, 105))
    queue = scheduler(leader, far, near_below, near_above, tie, max_batch_size=3)
    assert queue.next_batch(2.0) == [leader, near_above, tie]
    assert queue.next_batch(2.0)[0] in {far, near_below}


def test_no_more_padded_tokens_than_allowed():
    leader, longer, shorter = ticket(0.0, tokens=400), ticket(1, tokens=501), ticket(1, tokens=390)
    assert scheduler(leader, longer, shorter).next_batch(2.0) == [leader, shorter]


def test_a_request_longer_than_a_batch_goes_alone():
    giant, small = ticket(0.0, tokens=5000), ticket(1.0, tokens=10)
    queue = scheduler(giant, small)
    assert queue.next_batch(2.0) == [giant]
    assert queue.next_batch(2.0) == [small]


def test_full_queue_refuses():
    queue = scheduler(ticket(), ticket(), max_queue_size=2)
    with pytest.raises(QueueFullError):
        queue.add(ticket())
    assert len(queue) == 2


def test_a_retry_runs_first_and_alone_even_when_the_queue_is_full():
    waiting, lost = ticket(0.0), ticket(0.0)
    queue = scheduler(waiting, max_queue_size=1)
    queue.retry(lost)
    assert len(queue) == 2
    assert queue.next_batch(0.0) == [lost]
    assert queue.next_batch(0.0) == [waiting]


def test_a_higher_priority_overtakes():
    low, high = ticket(1.0), ticket(1.4, priority=5)
    assert scheduler(low, high, max_batch_size=1).next_batch(2.0) == [high]


def test_no_priority_overtakes_for_ever():
    low = ticket(0.0)
    later = ticket(MAX_PRIORITY * 0.1 + 0.01, priority=MAX_PRIORITY)
    assert scheduler(low, later, max_batch_size=1).next_batch(2.0) == [low]


def test_delay_waits_for_company_until_the_leaders_time_is_up():
    leader = ticket(1.0)
    queue = scheduler(leader, max_queue_delay_s=0.5)
    assert queue.next_batch(1.4) == []
    assert queue.next_departure_s() == 1.5
    assert queue.next_batch(1.5) == [leader]


def test_delay_ends_when_the_batch_is_full():
    tickets = [ticket(1.0) for _ in range(4)]
    assert len(scheduler(*tickets, max_queue_delay_s=9.0).next_batch(1.0)) == 4


def test_expired_requests_leave_and_never_run():
    short, long = ticket(deadline_s=1.0), ticket(deadline_s=3.0)
    retried = ticket(deadline_s=2.0)
    queue = scheduler(long, short, ticket())
    queue.retry(retried)
    assert queue.next_deadline_s() == 1.0
    assert queue.expired(0.9) == []
    assert queue.expired(2.0) == [short, retried]
    assert queue.next_deadline_s() == 3.0
    assert short not in queue.next_batch(2.0)


def test_removed_requests_never_run():
    gone, stays, lost = ticket(deadline_s=5.0), ticket(), ticket()
    queue = scheduler(gone, stays)
    queue.retry(lost)
    assert queue.remove(gone)
    assert queue.remove(lost)
    assert not queue.remove(gone)
    assert queue.next_batch(0.0) == [stays]
    assert queue.expired(9.0) == []


@pytest.mark.parametrize(
    ("question", "text", "tokens"),
    [("a" * 40, "b" * 400, 113), ("谁", "东" * 400, 303), ("é" * 2, "", 4)],
)
def test_tokens_are_estimated_from_bytes(question, text, tokens):
    assert estimate_tokens(Request(question, text)) == tokens


@pytest.mark.parametrize(
    "text", ["東" * 99_999, "Ada" * 30_000 + "東" * 9_999, "\U0001f600e" * 5000]
)
def test_tokens_of_a_long_text_are_estimated_from_a_sample(text):
    exact = 3 + len(text.encode()) // 4
    assert estimate_tokens(Request("?", text)) == pytest.approx(exact, rel=0.01)


CORE = CostTable((16, 384), (1, 2), ((1.0, 2.0), (30.0, 64.0)))
GPU = CostTable((16, 384), (1, 64), ((1.0, 2.0), (2.0, 20.0)))


def test_no_company_where_it_costs_more_than_it_saves():
    first, second = ticket(0.0), ticket(1.0)
    queue = scheduler(first, second, costs=CORE)
    assert queue.next_batch(2.0) == [first]
    assert queue.next_batch(2.0) == [second]


def test_company_where_it_saves():
    tickets = [ticket(0.0) for _ in range(4)]
    assert len(scheduler(*tickets, costs=GPU).next_batch(2.0)) == 4


def test_nobody_waits_for_company_that_would_not_be_taken():
    leader = ticket(1.0)
    queue = scheduler(leader, costs=CORE, max_queue_delay_s=9.0)
    assert queue.next_batch(1.0) == [leader]


def test_companions_may_be_the_next_to_come():
    leader, near, next_one = ticket(0.0), ticket(2.0), ticket(1.0, tokens=300)
    queue = scheduler(leader, near, next_one, max_batch_size=2, batch_by="arrival")
    assert queue.next_batch(3.0) == [leader, next_one]


def test_a_long_text_goes_alone_and_only_where_there_is_none():
    long, other_long, short = (
        ticket(0.0, tokens=2000, is_long=True),
        ticket(1.0, tokens=2000, is_long=True),
        ticket(2.0),
    )
    queue = scheduler(long, other_long, short)
    assert queue.next_batch(3.0) == [long]
    assert queue.next_batch(3.0, takes_long=False) == [short]
    assert queue.next_batch(3.0, takes_long=False) == []
    assert queue.next_batch(3.0) == [other_long]


def test_no_work_is_given_in_advance_while_one_is_to_be_retried():
    waiting, lost = ticket(0.0), ticket(0.0)
    queue = scheduler(waiting)
    queue.retry(lost)
    assert queue.next_batch(1.0, is_idle=False) == []
    assert queue.next_batch(1.0) == [lost]
    assert queue.next_batch(1.0, is_idle=False) == [waiting]


def test_what_is_put_back_has_its_old_turn_though_the_queue_is_full():
    waits, taken = ticket(1.0), ticket(0.0)
    queue = scheduler(waits, max_queue_size=1, max_batch_size=1)
    queue.put_back(taken)
    assert queue.next_batch(2.0) == [taken]


requests = st.lists(
    st.tuples(
        st.floats(0, 100),
        st.integers(1, 3000),
        st.integers(0, MAX_PRIORITY),
        st.just(math.inf) | st.floats(0, 120),
    ),
    max_size=40,
)
tables = st.sampled_from([None, CORE, GPU])


@given(requests, st.integers(1, 6), st.integers(1, 2000), tables, st.sampled_from(BATCH_BY))
def test_each_request_comes_out_exactly_once_and_every_batch_is_within_bounds(
    figures, max_batch_size, max_batch_tokens, costs, batch_by
):
    tickets = [
        ticket(
            arrived_s,
            tokens=tokens,
            priority=priority,
            deadline_s=deadline_s,
            is_long=tokens > 384,
        )
        for arrived_s, tokens, priority, deadline_s in figures
    ]
    queue = scheduler(
        *tickets,
        max_batch_size=max_batch_size,
        max_batch_tokens=max_batch_tokens,
        costs=costs,
        batch_by=batch_by,
    )
    out = queue.expired(100.0)
    assert all(item.deadline_s <= 100.0 for item in out)
    while batch := queue.next_batch(100.0):
        turns = [t.arrived_s - 0.1 * t.request.priority for t in tickets if t not in out]
        assert batch[0].arrived_s - 0.1 * batch[0].request.priority == min(turns)
        assert len(batch) <= max_batch_size
        padded = len(batch) * max(item.tokens for item in batch)
        assert len(batch) == 1 or padded <= max_batch_tokens
        if costs and len(batch) > 1:
            apart_ms = sum(costs.cost_ms(1, item.tokens) for item in batch)
            assert costs.cost_ms(len(batch), max(item.tokens for item in batch)) < apart_ms
        out += batch
    assert sorted(t.key for t in out) == [t.key for t in tickets]
    assert len(queue) == 0


@given(requests.filter(len), st.integers(1, 6), tables, st.booleans())
def test_nobody_is_passed_over_for_ever(figures, max_batch_size, costs, is_long):
    """However the others flood in, the one that waits leads once its turn is the oldest."""
    waiting = ticket(0.0, tokens=figures[0][1], is_long=is_long)
    queue = scheduler(waiting, max_batch_size=max_batch_size, max_batch_tokens=4000, costs=costs)
    step_s, now_s = 0.1, 0.0
    for _, tokens, priority, _ in itertools.cycle(figures):
        now_s += step_s
        queue.add(ticket(now_s, tokens=tokens, priority=priority, is_long=tokens > 384))
        if waiting in queue.next_batch(now_s):
            break
        assert now_s <= MAX_PRIORITY * 0.1 + step_s
