"""Shares and weights, with batches and over simulated instances: counts of answers, not times."""

import itertools
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_service.instance.batch_cost import CostTable
from tests.unit.server.scheduling.simulated_clients import CORE, Client, Machine, table_of

GPU = table_of(3.0, 0.3)
NO_GAIN = table_of(0.1, 10.0)
MEASURED = CostTable(
    (16, 32, 64, 128, 256, 384),
    (1, 2, 4, 8),
    ((2.9, 3.4, 4.7, 7.6), (3.5, 4.7, 7.7, 13.8), (5.0, 7.8, 14.0, 27.0), (8.8, 15.1),
     (16.5, 32.0), (26.4, 51.2)),
)  # fmt: skip
"""The built-in model in int8 on a core of an EPYC: short texts gain by batches."""
FLOAT32 = CostTable(
    (16, 32, 64, 128, 256, 384),
    (1, 2),
    ((2.2, 3.6), (3.9, 7.3), (7.4, 14.4), (15.2, 30.6), (32.0, 66.0), (50.0, 103.0)),
)
"""The same in float32: nothing gains by batches."""
TABLES = {"core": CORE, "gpu": GPU, "no gain": NO_GAIN}
MEASURED_TABLES = {"int8": MEASURED, "float32": FLOAT32, "gpu": GPU}
PARAGRAPHS = (60, 100, 150, 200, 300)
SQUAD = (
    59, 79, 94, 104, 110, 116, 133, 143, 148, 152, 158, 163, 167, 170, 174, 176, 179, 181, 185, 188,
    191, 196, 203, 207, 212, 217, 222, 229, 236, 240, 245, 253, 263, 270, 282, 296, 307, 324, 342,
    523,
)  # fmt: skip
"""Forty quantiles of the tokens that are estimated for SQuAD's dev questions."""


@pytest.mark.parametrize("weight", [8.0, 10.0], ids=["weight 8 to 1", "priority 9 to 0"])
@pytest.mark.parametrize("table", ["core", "no gain"])
def test_of_two_clients_with_sixty_in_flight_each_gets_by_its_weight(weight, table):
    clients = [Client("heavy", weights=[weight]), Client("light")]
    answered = Machine(clients, TABLES[table]).run(2000, skip=200).answered
    assert answered["heavy"] / answered["light"] == pytest.approx(weight, rel=0.1)


def test_nearly_free_batches_take_all_requests_of_the_heavier_client():
    clients = [Client("heavy", weights=[8.0]), Client("light")]
    answered = Machine(clients, GPU).run(2000, skip=200).answered
    assert answered["heavy"] / answered["light"] >= 6


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.5, 8), st.lists(st.integers(16, 384), min_size=1, max_size=4)),
        min_size=2,
        max_size=5,
    ),
    st.sampled_from(sorted(TABLES)),
    st.integers(1, 3),
)
def test_shares_are_as_weights_with_batches(figures, table, num_instances):
    """Of clients that always have something waiting."""
    clients = [
        Client(str(number), in_flight=600, weights=[weight], lengths=lengths)
        for number, (weight, lengths) in enumerate(figures)
    ]
    work = Machine(clients, TABLES[table], num_instances).run(2500, skip=300).work
    for client in clients:
        fair = sum(work.values()) * client.weights[0] / sum(other.weights[0] for other in clients)
        assert work[client.name] == pytest.approx(fair, rel=0.1)


@pytest.mark.parametrize("table", TABLES)
def test_requests_of_all_priorities_get_no_more_than_those_of_the_highest(table):
    clients = [
        Client("spread", weights=[1.0 + priority for priority in range(10)]),
        Client("highest", weights=[10.0]),
        Client("lowest"),
    ]
    answered = Machine(clients, TABLES[table]).run(2500, skip=300).answered
    assert answered["lowest"] < answered["spread"] <= 1.1 * answered["highest"]


def test_a_client_of_little_weight_that_asks_one_at_a_time_takes_nothing_from_the_others():
    equal = [Client("a"), Client("b")]
    with_light = Machine([*equal, Client("light", 1, weights=[0.001])], NO_GAIN).run(2000, skip=300)
    assert with_light.answered["a"] == pytest.approx(with_light.answered["b"], rel=0.05)
    assert with_light.answered["light"] <= 20
    single = [Client("one", 1), Client("many"), Client("light", 1, weights=[0.001])]
    answered = Machine(single, NO_GAIN).run(2000, skip=300).answered
    assert answered["one"] >= 0.2 * answered["many"]


@pytest.mark.parametrize("table", TABLES)
def test_a_client_that_asks_one_at_a_time_waits_for_few_of_a_greedy_ones(table):
    clients = [Client("one", 1, lengths=PARAGRAPHS), Client("greedy", lengths=PARAGRAPHS)]
    machine = Machine(clients, TABLES[table]).run(2000, skip=300)
    longest_ms = TABLES[table].cost_ms(8, max(PARAGRAPHS))
    assert max(machine.waited_ms["one"][5:]) <= 2.5 * longest_ms


@pytest.mark.parametrize("num_clients", [20, 50])
def test_equal_clients_are_served_as_they_come(num_clients):
    """What a client asked last does not put it behind its neighbours: they all take turns."""
    clients = [Client(str(n), 1, lengths=PARAGRAPHS) for n in range(num_clients)]
    machine = Machine(clients, NO_GAIN, seed=1).run(60 * num_clients)
    assert max(machine.answered.values()) - min(machine.answered.values()) <= 2


@pytest.mark.parametrize("num_clients", [5, 50])
@pytest.mark.parametrize("num_instances", [1, 2])
@pytest.mark.parametrize("table", MEASURED_TABLES)
def test_the_tail_of_equal_clients_is_that_of_first_come_first_served(
    table, num_instances, num_clients
):
    """Who is served early, as a batch member, or asks for more than a page, is not late next."""
    equal = [Client(str(n), 1, lengths=SQUAD) for n in range(num_clients)]
    one_flow = [Client("all", num_clients, lengths=SQUAD)]
    in_turn, as_they_come = (
        Machine(clients, MEASURED_TABLES[table], num_instances).run(2500)
        for clients in (equal, one_flow)
    )
    assert _p99_ms(in_turn) <= 1.1 * _p99_ms(as_they_come)
    assert in_turn.now_ms <= 1.01 * as_they_come.now_ms


@pytest.mark.parametrize("num_clients", [20, 50])
def test_batches_of_equal_clients_make_the_tail_shorter_where_they_are_cheaper(num_clients):
    equal = [Client(str(n), 1, lengths=PARAGRAPHS) for n in range(num_clients)]
    batches = Machine(equal, MEASURED).run(4000)
    none = Machine(equal, MEASURED, max_batch_size=1).run(4000)
    assert _p99_ms(batches) <= 1.1 * _p99_ms(none)
    assert batches.num_batches < 0.9 * none.num_batches
    assert batches.now_ms < none.now_ms


@pytest.mark.parametrize("table", ["int8", "float32"])
def test_a_client_of_ten_shares_that_asks_one_at_a_time_is_answered_before_the_others(table):
    light = [Client(str(n), 1, lengths=PARAGRAPHS) for n in range(49)]
    heavy = Client("heavy", 1, weights=[10.0], lengths=PARAGRAPHS)
    waited_ms = Machine([*light, heavy], MEASURED_TABLES[table]).run(4000).waited_ms
    assert statistics.median(waited_ms["heavy"]) <= statistics.median(waited_ms["0"]) / 5


def test_clients_that_ask_two_pages_at_a_time_get_half_as_many_answers():
    paragraphs = [Client(f"paragraph {n}", 1) for n in range(10)]
    pages = [Client(f"pages {n}", 1, lengths=[1024]) for n in range(10)]
    work = Machine([*paragraphs, *pages], NO_GAIN).run(4000, skip=400).work
    assert max(work.values()) <= 1.1 * min(work.values())


def test_a_client_after_a_long_text_waits_no_longer_next_time():
    """The neighbours all pay the same, so each of them goes before one that pays a little more."""
    page = Client("page", 1, lengths=[100, 450])
    machine = Machine([page, *[Client(str(n), 1) for n in range(49)]], NO_GAIN).run(4000)
    waited_ms = machine.waited_ms["page"][1:]
    assert max(waited_ms) <= 1.2 * statistics.median(waited_ms)


def _p99_ms(machine):
    waited_ms = sorted(itertools.chain.from_iterable(machine.waited_ms.values()))
    return waited_ms[int(0.99 * len(waited_ms))]


def test_a_greedy_client_alone_fills_batches():
    machine = Machine([Client("greedy")], GPU, num_instances=1).run(600, skip=100)
    assert machine.answered.total() / machine.num_batches >= 25
