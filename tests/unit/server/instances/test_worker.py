"""A worker as the loop sees it; the test is the instance at the channel's other end."""

import math
from types import SimpleNamespace

import pytest

from qa_service.instance.batch_cost import CostTable
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.stages import StagesMs
from qa_service.instance.worker_messages import Answers, ModelFacts, Ready, Results, Setup
from qa_service.net.event_loop import EventLoop
from qa_service.server.instances.base import InFlight, WorkerState
from tests.unit.calls import make_ticket
from tests.unit.server.handled_worker import HandledWorker

COST_MS = 40.0
SETUP = Setup("", InstanceOptions(inference_engine_type="instant"))
TABLE = CostTable((100,), (1,), ((COST_MS,),))


class Pool:
    def __init__(self, costs=TABLE, device="cpu"):
        self.loop = EventLoop()
        self.results, self.deaths = [], 0
        self.worker = HandledWorker(self.loop, self, SETUP)
        self.peer = self.worker.peer
        assert self.peer.receive() == SETUP
        self.peer.send(Ready(ModelFacts("a model"), costs, device))
        self.loop.run()

    def on_worker_ready(self, worker):
        self.loop.stop()

    def on_worker_results(self, worker, batch, results):
        self.results.append(batch)
        self.loop.stop()

    def on_worker_tested(self, worker):
        pass

    def on_worker_death(self):
        self.worker.state = WorkerState.DEAD
        self.deaths += 1
        self.loop.stop()

    def give(self, *members):
        self.worker.run(members)
        return self.peer.receive()

    def finish(self, batch, inference_ms=COST_MS, costs=None, read_ms=0.0):
        answers = [Answers([]) for _ in batch.tasks]
        stages_ms = StagesMs(read=read_ms)
        self.peer.send(Results(batch.number, [*answers], 0.0, inference_ms, stages_ms, costs))
        self.loop.run()

    def close(self):
        self.worker.child.kill()
        self.peer.close()
        self.loop.close()


@pytest.fixture
def pool():
    made = Pool()
    yield made
    made.close()


def test_an_idle_instance_takes_a_batch_at_any_time(pool):
    assert pool.worker.is_idle
    assert pool.worker.takes_from_s() == -math.inf


def test_the_second_batch_may_come_when_half_of_the_first_should_be_over(pool):
    before_s = pool.loop.now_s()
    pool.give(make_ticket())
    takes_from_s = pool.worker.takes_from_s()
    assert before_s <= takes_from_s - COST_MS / 2e3 <= pool.loop.now_s()


def test_the_times_of_an_instance_only_grow_and_it_waits_while_it_holds_no_batch(pool):
    worker, moments = pool.worker, iter([10.0, 14.0])
    worker._clock = SimpleNamespace(now_s=lambda: next(moments, 30.0))
    worker.times.begin(4.0)
    worker.since_s = 8.0
    idle = worker.report()
    assert idle["seconds"] == dict.fromkeys(("tokenize", "model", "read", "lock"), 0.0) | {
        "ready": 6.0, "waiting": 2.0,
    }  # fmt: skip
    stages_ms = StagesMs(tokenize=250.0, model=1000.0, read=500.0, lock=125.0)
    worker.times.add(Results(0, [Answers([])] * 3, 0.0, 1750.0, stages_ms, waited_ms=3000.0))
    worker.in_flight[1] = InFlight((), is_retry=False, cost_s=1.0)
    busy = worker.report()
    assert busy["seconds"] == {"ready": 10.0, "waiting": 3.0, "tokenize": 0.25, "model": 1.0,
                               "read": 0.5, "lock": 0.125}  # fmt: skip
    assert (busy["batches"], busy["requests"]) == (1, 3)
    worker.times.end(15.0)
    assert worker.report()["seconds"]["ready"] == 11.0


def test_a_third_batch_waits_for_results(pool):
    first, _ = pool.give(make_ticket(number=0)), pool.give(make_ticket(number=1))
    assert pool.worker.takes_from_s() == math.inf
    pool.finish(first)
    assert pool.worker.takes_from_s() < math.inf
    assert [[item.number for item in batch] for batch in pool.results] == [[0]]


def test_an_accelerator_gets_a_third_batch_when_the_first_should_be_over():
    pool = Pool(device="cuda:0")
    first = pool.give(make_ticket(number=0))
    started_s = next(iter(pool.worker.in_flight.values())).since_s
    assert pool.worker.takes_from_s() - started_s == pytest.approx(COST_MS / 2e3)
    pool.give(make_ticket(number=1))
    assert pool.worker.takes_from_s() - started_s == pytest.approx(COST_MS / 1e3)
    pool.give(make_ticket(number=2))
    assert pool.worker.takes_from_s() == math.inf
    pool.finish(first)
    assert pool.worker.takes_from_s() < math.inf
    pool.close()


@pytest.mark.parametrize(("device", "overlap_ms"), [("cpu", 0.0), ("cuda:0", 1000.0)])
def test_an_accelerator_runs_the_next_batch_while_it_reads_one(device, overlap_ms):
    pool = Pool(device=device)
    first, _ = pool.give(make_ticket(number=0)), pool.give(make_ticket(number=1))
    before_s = pool.loop.now_s()
    pool.finish(first, inference_ms=COST_MS + overlap_ms, read_ms=overlap_ms)
    (batch,) = pool.worker.in_flight.values()
    assert before_s <= batch.since_s + overlap_ms / 1e3 <= pool.loop.now_s()
    expected_s = pool.worker.takes_from_s() - batch.since_s
    assert expected_s == pytest.approx(COST_MS / 2e3)
    pool.close()


def test_an_accelerator_with_a_retry_gets_no_further_batch():
    pool = Pool(device="cuda:0")
    pool.give(make_ticket())
    pool.give(make_ticket(attempts=1))
    assert pool.worker.takes_from_s() == math.inf
    pool.close()


@pytest.mark.parametrize(("device", "begun"), [("cpu", 1), ("cuda:0", 2)])
def test_all_but_the_last_batch_may_have_begun(device, begun):
    pool = Pool(device=device)
    assert pool.worker.max_begun == begun
    pool.close()


def test_a_retry_has_the_instance_to_itself(pool):
    batch = pool.give(make_ticket(attempts=1))
    assert pool.worker.takes_from_s() == math.inf
    pool.finish(batch)
    assert pool.worker.is_idle


def test_only_the_first_batch_counts_as_begun(pool):
    batch = pool.give(make_ticket(number=1))
    pool.give(make_ticket(number=2))
    began = [item.since_s < math.inf for item in pool.worker.in_flight.values()]
    assert began == [True, False]
    pool.finish(batch)
    assert all(item.since_s < math.inf for item in pool.worker.in_flight.values())


def test_expected_times_follow_measured_ones(pool):
    for _ in range(60):
        pool.finish(pool.give(make_ticket()), inference_ms=3 * COST_MS)
    pool.give(make_ticket())
    (item,) = pool.worker.in_flight.values()
    half_s = pool.worker.takes_from_s() - item.since_s
    assert half_s == pytest.approx(1.5 * COST_MS / 1e3, rel=0.05)


def test_batches_are_made_by_learned_costs(pool):
    learned = CostTable((100,), (1,), ((2 * COST_MS,),))
    for costs in (learned, None):
        pool.finish(pool.give(make_ticket()), costs=costs)
        assert pool.worker.rule.costs == learned


def test_without_a_table_the_second_batch_may_come_at_once():
    pool = Pool(costs=None)
    pool.give(make_ticket())
    assert pool.worker.takes_from_s() <= pool.loop.now_s()
    pool.close()


def test_end_of_file_counts_as_the_instances_death(pool):
    pool.peer.close()
    pool.loop.run()
    assert pool.deaths == 1
    assert pool.worker.takes_from_s() == math.inf


@pytest.mark.parametrize("num_outcomes", [0, 1, 3])
def test_results_that_match_no_batch_lose_no_request(pool, num_outcomes):
    """A worker that answers another number than was asked is given up with what it holds."""
    batch = pool.give(make_ticket(), make_ticket())
    outcomes = [Answers([])] * num_outcomes
    pool.peer.send(Results(batch.number, [*outcomes], 0.0, COST_MS, StagesMs()))
    pool.loop.run()
    assert (pool.deaths, pool.results) == (1, [])
    assert len(pool.worker.in_flight[batch.number].members) == 2
    assert pool.worker.child.failure == "it sent results that fit no batch"


def test_bytes_that_are_no_message_end_the_worker(pool, caplog):
    batch = pool.give(make_ticket())
    pool.peer._sock.sendall(b"\0\0\0\3???")
    pool.loop.run()
    assert (pool.deaths, list(pool.worker.in_flight)) == (1, [batch.number])
    assert pool.worker.child.failure.startswith("it sent an invalid message")
    assert not caplog.records
