"""Long texts in the real scheduler: read one after another, at nobody's cost. Counts, not times."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_service.instance.batch_cost import BatchRule
from qa_service.server.scheduling.scheduler import QueueOptions, Scheduler
from tests.unit.calls import make_ticket

SEGMENT_COST, PARAGRAPH_COST = 60.0, 30.0
AHEAD = 4


class Reading:
    """Texts of this many segments each, and clients that ask a paragraph at a time."""

    def __init__(self, lengths, num_paragraph_clients=0, flows=None, weights=None):
        self.scheduler = Scheduler(QueueOptions(max_queue_size=10_000))
        self.left_to_queue, self.left_to_read, self.texts = Counter(), Counter(lengths), {}
        self.done, self.order = {}, []
        for name, count in lengths.items():
            cost = count * SEGMENT_COST
            weight = (weights or {}).get(name, 1.0)
            text = make_ticket(
                flow=(flows or {}).get(name, name),
                cost=cost,
                weight=weight,
                min_turn_cost=PARAGRAPH_COST,
            )
            self.texts[name] = text
            self.scheduler.begin(text)
            self.left_to_queue[name] = count
            for _ in range(AHEAD):
                self.queue_segment(name)
        for number in range(num_paragraph_clients):
            self.ask(f"paragraphs {number}")

    def queue_segment(self, name):
        if self.left_to_queue[name]:
            self.left_to_queue[name] -= 1
            text = self.texts[name]
            segment = make_ticket(
                flow=text.flow, weight=text.weight, cost=SEGMENT_COST, tokens=768, core=(0, 1),
                min_turn_cost=PARAGRAPH_COST, finish=text.finish, text=name,
            )  # fmt: skip
            self.scheduler.add(segment)
            self.scheduler.flows.reserve(text, -SEGMENT_COST)

    def ask(self, flow):
        cost = PARAGRAPH_COST
        self.scheduler.add(
            make_ticket(flow=flow, cost=cost, turn_cost=cost, min_turn_cost=cost, text="")
        )

    def step(self):
        (ticket,) = self.scheduler.next_batch(9.0, BatchRule(1))
        name = ticket.call.request.text
        self.order.append(name or ticket.flow)
        if not name:
            self.ask(ticket.flow)
            return
        self.left_to_read[name] -= 1
        self.queue_segment(name)
        if not self.left_to_read[name]:
            self.done[name] = len(self.order)

    def read_all(self):
        while self.left_to_read.total():
            assert len(self.order) < 100_000
            self.step()
        return self


def equal_texts(number, num_segments=10):
    return {f"text {n:02}": num_segments for n in range(number)}


def test_texts_that_came_together_are_read_one_after_another():
    reading = Reading(equal_texts(40)).read_all()
    assert list(reading.done.values()) == [10 * n for n in range(1, 41)]


def test_a_shorter_text_does_not_wait_for_longer_ones():
    reading = Reading({"a book": 400, "an article": 10}).read_all()
    assert reading.done["an article"] <= 22


def test_the_text_of_a_heavier_client_is_read_first():
    reading = Reading(equal_texts(5), weights={"text 03": 3.0}).read_all()
    assert reading.done["text 03"] == 10


@pytest.mark.parametrize("num_clients", [1, 10])
def test_among_paragraphs_no_text_is_done_later_than_with_equal_shares(num_clients):
    reading = Reading(equal_texts(20), num_clients).read_all()
    share = 10 * SEGMENT_COST / PARAGRAPH_COST
    with_equal_shares = 20 * 10 + num_clients * share
    assert max(reading.done.values()) <= 1.05 * with_equal_shares
    assert reading.done["text 00"] <= 1.2 * with_equal_shares / 20 + 30


def test_paragraphs_are_served_as_often_as_among_texts_that_share_the_time():
    """Whichever text is read in a turn, the turns are the same."""
    reading = Reading(equal_texts(20), 5).read_all()
    asked = [number for number, name in enumerate(reading.order) if name == "paragraphs 0"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert max(gaps) <= 2 * (5 + 20 / 2)


def test_a_clients_paragraphs_are_not_held_up_by_its_own_text():
    reading = Reading(equal_texts(5, 40))
    for _ in range(20):
        reading.step()
    reading.ask("text 04")
    asked = len(reading.order)
    while "text 04" not in reading.order[asked:]:
        assert len(reading.order) - asked < 20
        reading.step()


def test_a_client_gets_no_more_with_several_texts():
    lengths = equal_texts(12)
    flows = dict.fromkeys(list(lengths)[:10], "greedy")
    reading = Reading(lengths, flows=flows).read_all()
    others = [end for name, end in reading.done.items() if name not in flows]
    assert max(others) <= 30


def test_a_disconnected_clients_text_leaves_no_state():
    reading = Reading(equal_texts(3))
    scheduler = reading.scheduler
    for _ in range(5):
        reading.step()
    for turn in list(scheduler.flows.turns()):
        assert scheduler.remove(turn.ticket)
    for name, left in reading.left_to_queue.items():
        scheduler.flows.reserve(reading.texts[name], -left * SEGMENT_COST)
    assert len(scheduler) == 0
    assert scheduler.flows.cost == pytest.approx(0.0)
    scheduler.add(make_ticket(flow="new"))
    assert len(scheduler.next_batch(9.0, BatchRule(1))) == 1
    assert len(scheduler.flows) == 0


def test_a_request_behind_a_segment_that_another_flow_reads_has_its_turn():
    scheduler = Scheduler(QueueOptions())
    waiting = []

    def add(flow, **fields):
        waiting.append(make_ticket(flow=flow, **fields))
        scheduler.add(waiting[-1])

    def begin(flow):
        text = make_ticket(flow=flow, cost=300.0)
        scheduler.begin(text)
        return text

    text = begin("a")
    add("a", turn_cost=900.0, min_turn_cost=30.0)
    add("a", core=(0, 1), finish=text.finish)
    add("b", core=(0, 1), finish=begin("b").finish)
    add("a", core=(0, 1), finish=text.finish)
    turns = [turn.ticket for turn in scheduler.flows.turns()]
    assert sorted(map(id, turns)) == sorted(map(id, waiting))


actions = st.lists(
    st.tuples(
        st.sampled_from(["add", "text", "segment", "batch", "batch", "remove", "put back", "end"]),
        st.sampled_from("abcd"),
        st.sampled_from([0.001, 1.0, 2.0, 10.0]),
        st.integers(1, 4),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(actions)
def test_random_operations_keep_flows_equal_to_the_waiting_requests(steps):
    scheduler = Scheduler(QueueOptions(max_queue_size=1000))
    flows = scheduler.flows
    waiting, taken, texts = [], [], []

    def queue(flow, weight, **fields):
        waiting.append(make_ticket(flow=flow, weight=weight, **fields))
        scheduler.add(waiting[-1])

    for action, flow, weight, number in steps:
        if action == "add":
            queue(flow, weight, turn_cost=30.0 * number, min_turn_cost=30.0)
        elif action == "text":
            texts.append(make_ticket(flow=flow, weight=weight, cost=300.0))
            scheduler.begin(texts[-1])
        elif action == "segment" and texts:
            text = texts[number % len(texts)]
            queue(text.flow, text.weight, core=(0, 1), finish=text.finish)
        elif action == "batch":
            batch = scheduler.next_batch(9.0, BatchRule(number), num_instances=number)
            assert bool(batch) == bool(waiting)
            waiting = [ticket for ticket in waiting if ticket not in batch]
            taken += batch
        elif action == "remove" and waiting:
            assert scheduler.remove(waiting.pop(number % len(waiting)))
        elif action == "put back" and taken:
            waiting.append(taken.pop(number % len(taken)))
            scheduler.put_back(waiting[-1])
        elif action == "end" and texts:
            scheduler.flows.reserve(texts.pop(number % len(texts)), -300.0)
        assert len(scheduler) == len(waiting)
        assert scheduler.flows.cost == pytest.approx(
            sum(ticket.cost for ticket in waiting) + 300.0 * len(texts)
        )
        present = {ticket.flow for ticket in waiting}
        assert flows.weight >= sum(flows._flows[name].weight for name in present) * 0.999
        turns = [turn.ticket for turn in flows.turns()]
        assert sorted(map(id, turns)) == sorted(map(id, waiting))
    for text in texts:
        scheduler.flows.reserve(text, -300.0)
    while scheduler.next_batch(9.0, BatchRule(2)):
        pass
    assert len(scheduler) == 0
    scheduler.add(make_ticket(flow="last"))
    scheduler.next_batch(9.0, BatchRule(1))
    assert len(flows) == 0
