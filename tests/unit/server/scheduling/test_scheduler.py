"""The queue and its batches, with a clock of the test's own."""

import itertools
import math
from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.instance.batch_cost import BatchRule, CostTable
from qa_service.server.scheduling.request_cost import estimate_tokens
from qa_service.server.scheduling.scheduler import QueueOptions, Scheduler
from qa_service.wire.messages import Request
from tests.unit.calls import make_ticket


class OneInstance(Scheduler):
    """A scheduler whose batches all go to instances of one kind."""

    def __init__(self, options, rule):
        super().__init__(options)
        self.rule = rule

    def next_batch(self, now_s, **instance):  # type: ignore[override]  # the rule is always its own
        return super().next_batch(now_s, self.rule, **instance)


def scheduler(
    *tickets, max_queue_size=100, max_batch_size=4, max_batch_tokens=1000, costs=None, **options
):
    rule = BatchRule(max_batch_size, max_batch_tokens, costs=costs)
    made = OneInstance(QueueOptions(max_queue_size=max_queue_size, **options), rule)
    for item in tickets:
        made.add(item)
    return made


def test_empty_queue_has_no_batch_and_nothing_to_wait_for():
    empty = scheduler()
    assert empty.next_batch(0.0) == []
    assert empty.expired(0.0) == []
    assert empty.next_deadline_s() == math.inf
    assert empty.next_departure_s() is None


def test_a_flow_is_served_in_its_order():
    first, second = make_ticket(1.0, tokens=300), make_ticket(1.0, tokens=3)
    queue = scheduler(first, second, max_batch_size=1)
    assert [queue.next_batch(3.0) for _ in range(2)] == [[first], [second]]


def served(queue, count):
    """The flows of the next this many requests, one at a time."""
    return [queue.next_batch(9.0)[0].flow for _ in range(count)]


def test_flows_take_turns_however_much_one_of_them_asks_at_once():
    greedy = [make_ticket(flow="greedy") for _ in range(64)]
    modest = [make_ticket(flow=name) for name in ("a", "b", "a", "b")]
    assert served(scheduler(*greedy, *modest, max_batch_size=1), 7) == [
        "greedy", "a", "b", "greedy", "a", "b", "greedy",
    ]  # fmt: skip


def test_a_request_counts_by_its_cost():
    long = [make_ticket(flow="long", tokens=400) for _ in range(3)]
    short = [make_ticket(flow="short", tokens=100) for _ in range(12)]
    flows = served(scheduler(*long, *short, max_batch_size=1), 10)
    assert flows.count("long") == 2


def test_a_flows_share_is_proportional_to_its_weight():
    light = [make_ticket(flow="light") for _ in range(20)]
    heavy = [make_ticket(flow="heavy", weight=3.0) for _ in range(20)]
    assert served(scheduler(*light, *heavy, max_batch_size=1), 16).count("heavy") == 12


def test_an_idle_flow_accumulates_no_credit():
    queue = scheduler(*[make_ticket(flow="busy") for _ in range(10)], max_batch_size=1)
    served(queue, 6)
    for _ in range(4):
        queue.add(make_ticket(flow="late"))
    assert served(queue, 6).count("late") == 3


def test_a_queue_that_is_emptied_by_a_withdrawal_keeps_no_flow_as_one_that_is_emptied_by_a_batch():
    asked, withdrawn = make_ticket(flow="a"), make_ticket(flow="a")
    queue = scheduler(asked, withdrawn, max_batch_size=1)
    assert queue.next_batch(0.0) == [asked]
    queue.remove(withdrawn)
    assert (len(queue.flows), queue.flows.weight, queue.flows.cost) == (0, 0.0, 0.0)


def test_a_flow_that_returns_in_debt_pays_it_first():
    patient = [make_ticket(flow="patient", tokens=10) for _ in range(200)]
    debtor = make_ticket(flow="debtor", tokens=995)
    queue = scheduler(debtor, *patient, max_queue_size=1000, max_batch_size=1)
    assert served(queue, 30) == ["debtor"] + ["patient"] * 29  # the debtor does not linger so long
    queue.add(make_ticket(flow="debtor", tokens=10))
    assert served(queue, 80).index("debtor") == 71  # the other has had 1000 tokens too


def test_flows_without_requests_are_forgotten():
    queue = scheduler(make_ticket(flow="0"), max_batch_size=1)
    for number in range(1, 1000):
        queue.add(make_ticket(flow=str(number)))
        queue.next_batch(9.0)
    assert len(queue.flows) <= 4


def test_a_removed_request_costs_its_flow_nothing():
    queue = scheduler(*[make_ticket(flow="other") for _ in range(9)], max_batch_size=1)
    for _ in range(5):
        queue.add(ticket := make_ticket(flow="hasty"))
        queue.remove(ticket)
        assert len(queue.flows) == 1, "it is forgotten"
    queue.add(make_ticket(flow="hasty"))
    assert "hasty" in served(queue, 2)


def test_clients_that_ask_again_at_once_get_their_share_next_to_a_greedy_one():
    """Three have one request at a time on two instances, with a queue that is never empty."""
    greedy = [make_ticket(flow="greedy") for _ in range(200)]
    queue = scheduler(*greedy, max_batch_size=1, max_queue_size=1000)
    running, counts = deque([[], []]), Counter()
    for flow in "abc":
        queue.add(make_ticket(flow=flow))
    for _ in range(80):
        for done in running.popleft():
            counts[done.flow] += 1
            if done.flow != "greedy":
                queue.add(make_ticket(flow=done.flow))
        running.append(queue.next_batch(9.0))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_members_taken_out_of_turn_do_not_put_a_new_flow_behind_those_they_passed():
    lengths = itertools.cycle([10, 50, 20, 80, 40])
    queue = scheduler(*(make_ticket(1.0, tokens=next(lengths)) for _ in range(60)))
    for _ in range(20):
        batch = queue.next_batch(9.0)
        assert len(batch) > 1
        for _ in batch:
            queue.add(make_ticket(1.0, tokens=next(lengths)))
    new = make_ticket(1.0, tokens=200, flow="new")
    queue.add(new)
    assert new in [queue.next_batch(9.0)[0] for _ in range(2)]


def test_waiting_work_is_counted_by_flow():
    queue = scheduler(make_ticket(flow="a"), make_ticket(flow="b", tokens=500), max_batch_size=1)
    assert queue.flows.cost == 600.0
    assert queue.flows.cost_before(make_ticket(flow="c")) == 600.0
    later = make_ticket(flow="a")
    queue.flows.reserve(later, 50.0)
    queue.flows.reserve(later, -50.0)
    served(queue, 2)
    assert queue.flows.cost == 0.0


def test_a_flow_is_forgotten_when_its_text_ends_and_then_its_last_request_leaves():
    queue = scheduler()
    text, short = make_ticket(flow="a", cost=50.0), make_ticket(flow="a")
    queue.begin(text)
    queue.add(short)
    queue.flows.reserve(text, -50.0)
    queue.remove(short)
    assert len(queue.flows) == 0


def test_cost_until_done_counts_short_flows_as_continuing_and_long_texts_once():
    queue = scheduler(make_ticket(flow="short", weight=2.0))
    queue.begin(make_ticket(flow="long", cost=50.0))
    assert queue.flows.cost_until_done(make_ticket(flow="mine", cost=200.0)) == 200.0 + 400.0 + 50.0


def test_cost_before_a_request_follows_turns_and_weights():
    queue = scheduler(*[make_ticket(flow="a") for _ in range(9)], max_batch_size=1)
    for weight in (1.0, 3.0):
        queue.add(make_ticket(flow="mine", weight=weight))
    cost = queue.flows.cost_before(make_ticket(flow="mine", weight=1.0))
    assert cost == pytest.approx(200.0 + 700.0 / 3)


def test_batch_members_are_sought_among_the_oldest_only():
    leader = make_ticket(flow="0", tokens=100)
    others = [make_ticket(flow=str(n), tokens=300) for n in range(1, 8)]
    twin = make_ticket(flow="late", tokens=100)
    queue = scheduler(leader, *others, twin, max_batch_size=2)
    assert twin not in queue.next_batch(9.0)


def test_batch_members_are_the_nearest_in_length():
    leader = make_ticket(0.0, tokens=100)
    far, near_below, near_above, tie = (make_ticket(1.0, tokens=n) for n in (500, 95, 103, 105))
    queue = scheduler(leader, far, near_below, near_above, tie, max_batch_size=3)
    assert queue.next_batch(2.0) == [leader, near_above, tie]
    assert queue.next_batch(2.0)[0] in {far, near_below}


@pytest.mark.parametrize("lengths", [(90, 95), (105, 110), (95, 105)])
def test_the_shortest_and_the_longest_may_be_members(lengths):
    leader, *others = (make_ticket(flow=str(n), tokens=n) for n in (100, *lengths))
    assert set(scheduler(leader, *others).next_batch(9.0)) == {leader, *others}


def test_members_are_those_whose_turn_starts_within_the_leaders():
    """What a flow asks ahead of its share is no member of another's batch."""
    modest, greedy = make_ticket(flow="modest"), [make_ticket(flow="greedy") for _ in range(20)]
    queue = scheduler(modest, *greedy, max_batch_size=8)
    assert queue.next_batch(9.0) == [modest, *greedy[:3]]


def test_of_a_clients_own_requests_the_heavier_goes_first():
    light, heavy = make_ticket(weight=1.0), make_ticket(weight=10.0)
    queue = scheduler(light, heavy, max_batch_size=1)
    assert [queue.next_batch(9.0) for _ in range(2)] == [[heavy], [light]]


def test_a_heavier_request_does_not_wait_for_the_longer_turn_of_its_flows_lighter_one():
    queue = scheduler(max_batch_size=1)
    queue.add(make_ticket(flow="mine", weight=1.0, min_turn_cost=100.0))
    for _ in range(9):
        queue.add(make_ticket(flow="others", min_turn_cost=100.0))
    assert queue.next_batch(9.0)[0].flow == "mine"
    queue.add(make_ticket(flow="mine", weight=1.0, min_turn_cost=100.0))
    queue.add(make_ticket(flow="mine", weight=10.0, min_turn_cost=100.0))
    assert queue.next_batch(9.0)[0].weight == 10.0


def test_equal_clients_come_in_the_order_in_which_they_ask_and_a_heavier_one_before_them():
    queue = scheduler(max_batch_size=1)
    for flow in ("a", "b", "c"):
        queue.add(make_ticket(flow=flow, min_turn_cost=100.0))
    assert served(queue, 1) == ["a"]
    queue.add(make_ticket(flow="a", min_turn_cost=100.0))
    queue.add(make_ticket(flow="heavy", weight=10.0, min_turn_cost=100.0))
    assert served(queue, 4) == ["heavy", "b", "c", "a"]


def test_a_turn_costs_its_flow_its_minimum_at_least():
    queue = scheduler(max_batch_size=1)
    for tokens in (300, 10):
        for _ in range(20):
            queue.add(make_ticket(flow=str(tokens), tokens=tokens, turn_cost=300.0))
    assert served(queue, 20).count("10") == 10


def test_a_request_put_back_costs_its_flow_nothing():
    queue = scheduler(*[make_ticket(flow="a") for _ in range(4)], max_batch_size=1)
    queue.add(make_ticket(flow="b"))
    (first,) = queue.next_batch(9.0)
    queue.put_back(first)
    assert queue.next_batch(9.0) == [first]
    assert served(queue, 1) == ["b"]


def test_a_queue_is_full_at_its_bound():
    queue = scheduler(make_ticket(), max_queue_size=2)
    assert not queue.is_full()
    queue.add(make_ticket())
    assert queue.is_full()


def full_with_a_retry():
    """A full queue, the request that waits in it, and one to be tried again."""
    waiting, lost = make_ticket(), make_ticket()
    queue = scheduler(waiting, max_queue_size=1)
    queue.retry(lost)
    assert len(queue) == 2
    return queue, waiting, lost


def test_a_retry_runs_first_and_alone_even_when_the_queue_is_full():
    queue, waiting, lost = full_with_a_retry()
    assert [queue.next_batch(0.0) for _ in range(2)] == [[lost], [waiting]]


def test_delay_waits_for_members_until_the_leaders_time_is_up():
    leader = make_ticket(1.0)
    queue = scheduler(leader, max_queue_delay_us=500_000)
    assert queue.next_batch(1.4) == []
    assert queue.next_departure_s() == 1.5
    assert queue.next_batch(1.5) == [leader]


def test_delay_ends_when_the_batch_is_full():
    tickets = [make_ticket(1.0) for _ in range(4)]
    assert len(scheduler(*tickets, max_queue_delay_us=9_000_000).next_batch(1.0)) == 4


def test_expired_requests_leave_and_never_run():
    short, long = make_ticket(deadline_s=1.0), make_ticket(deadline_s=3.0)
    retried = make_ticket(deadline_s=2.0)
    queue = scheduler(long, short, make_ticket())
    queue.retry(retried)
    assert queue.next_deadline_s() == 1.0
    assert queue.expired(0.9) == []
    assert queue.expired(2.0) == [short, retried]
    assert queue.next_deadline_s() == 3.0
    assert short not in queue.next_batch(2.0)


def test_removed_requests_never_run():
    gone, stays, lost = make_ticket(deadline_s=5.0), make_ticket(), make_ticket()
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


@pytest.mark.parametrize("text", ["!?.," * 16_000, "! ? . , " * 8_000, "!" * 50])
def test_signs_are_tokens_each(text):
    num_signs = len(text) - text.count(" ")
    assert num_signs <= estimate_tokens(Request("?", text)) <= 1.3 * num_signs + 4


@pytest.mark.parametrize(
    "text", ["東" * 99_999, "Ada" * 30_000 + "東" * 9_999, "\U0001f600e" * 5000]
)
def test_tokens_of_a_long_text_are_estimated_from_a_sample(text):
    exact = 3 + len(text.encode()) // 4
    assert estimate_tokens(Request("?", text)) == pytest.approx(exact, rel=0.02)


CORE = CostTable((16, 384), (1, 2), ((1.0, 2.0), (30.0, 64.0)))
GPU = CostTable((16, 384), (1, 64), ((1.0, 2.0), (2.0, 20.0)))


@pytest.mark.parametrize(("costs", "size"), [(CORE, 1), (GPU, 4)], ids=["core", "gpu"])
def test_members_join_where_it_saves_more_than_it_costs(costs, size):
    queue = scheduler(*[make_ticket() for _ in range(4)], costs=costs)
    assert {len(queue.next_batch(2.0)) for _ in range(4 // size)} == {size}


def test_a_batch_does_not_wait_for_members_that_do_not_fit():
    leader = make_ticket(1.0)
    queue = scheduler(leader, costs=CORE, max_queue_delay_us=9_000_000)
    assert queue.next_batch(1.0) == [leader]


def test_a_retry_goes_to_an_idle_instance_and_holds_up_no_other():
    queue, waiting, lost = full_with_a_retry()
    assert [queue.next_batch(1.0, is_idle=False) for _ in range(2)] == [[waiting], []]
    assert queue.next_batch(1.0) == [lost]


def test_a_request_put_back_into_a_full_queue_keeps_its_turn():
    taken, waits = make_ticket(0.0), make_ticket(1.0)
    queue = scheduler(taken, max_queue_size=1, max_batch_size=1)
    assert queue.next_batch(2.0) == [taken]
    queue.add(waits)
    queue.put_back(taken)
    assert queue.next_batch(2.0) == [taken]


def test_a_segment_of_an_admitted_text_passes_a_full_queue():
    queue = scheduler(make_ticket(), max_queue_size=1)
    queue.add(make_ticket(core=(0, 1)))
    assert len(queue) == 2


FIGURES = (st.floats(0, 100), st.integers(1, 3000), st.sampled_from("abc"),
           st.just(math.inf) | st.floats(0, 120))  # fmt: skip
requests = st.lists(st.tuples(*FIGURES), max_size=40)
tables = st.sampled_from([None, CORE, GPU])


@given(requests, st.integers(1, 6), st.integers(1, 2000), tables)
def test_each_request_comes_out_exactly_once_and_every_batch_is_within_bounds(
    figures, max_batch_size, max_batch_tokens, costs
):
    tickets = [
        make_ticket(arrived_s, tokens=tokens, flow=flow, deadline_s=deadline_s)
        for arrived_s, tokens, flow, deadline_s in figures
    ]
    bounds = {"max_batch_size": max_batch_size, "max_batch_tokens": max_batch_tokens}
    queue = scheduler(*tickets, **bounds, costs=costs)
    out = queue.expired(100.0)
    assert all(item.deadline_s <= 100.0 for item in out)
    while batch := queue.next_batch(100.0):
        assert len(batch) <= max_batch_size
        padded = len(batch) * max(item.tokens for item in batch)
        assert len(batch) == 1 or padded <= max_batch_tokens
        if costs and len(batch) > 1:
            apart_ms = sum(costs.cost_ms(1, item.tokens) for item in batch)
            assert costs.cost_ms(len(batch), max(item.tokens for item in batch)) < apart_ms
        out += batch
    assert sorted(t.number for t in out) == [t.number for t in tickets]
    assert len(queue) == 0


@given(requests.filter(len), st.integers(1, 6), tables)
def test_a_flows_request_leads_after_one_of_each_other_flow(figures, max_batch_size, costs):
    waiting = make_ticket(0.0, tokens=figures[0][1], flow="waiting")
    others = [make_ticket(0.0, tokens=tokens, flow=flow) for _, tokens, flow, _ in figures]
    queue = scheduler(*others, max_batch_size=max_batch_size, max_batch_tokens=4000, costs=costs)
    queue.add(waiting)
    for tokens, flow in itertools.islice(itertools.cycle([(f[1], f[2]) for f in figures]), 4):
        if waiting in queue.next_batch(9.0):
            return
        for _ in range(9):
            queue.add(make_ticket(9.0, tokens=tokens, flow=flow))
    raise AssertionError("it still waits")
