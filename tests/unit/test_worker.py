"""A worker as the loop sees it; the test is the session at the channel's other end."""

from __future__ import annotations

import math

import pytest

from qa_service.batching import BatchRule, CostTable
from qa_service.event_loop import EventLoop
from qa_service.placement import Placement
from qa_service.protocol import Request
from qa_service.reading.stopwatch import StagesMs
from qa_service.scheduler import Ticket
from qa_service.workers.base import Worker
from qa_service.workers.channel import Answers, Ready, Results, WorkerChannel

COST_MS = 40.0
TABLE = CostTable((100,), (1,), ((COST_MS,),))


class HandledWorker(Worker):
    """Its session is played by the test."""

    def _launch(self, channel):
        self.session = WorkerChannel(channel)

    def kill(self):
        pass

    def exit_status(self):
        return "ended"


class Pool:
    """One worker, and what it reports."""

    def __init__(self, costs=TABLE):
        self.loop = EventLoop()
        self.worker = HandledWorker(0, self.loop, self, Placement(), BatchRule())
        self.results, self.deaths = [], 0
        self.session = self.worker.session
        self.session.send(Ready("a model", costs))
        self.loop.run()

    def on_worker_ready(self, worker):
        self.loop.stop()

    def on_worker_results(self, worker, tickets, results):
        self.results.append(tickets)
        self.loop.stop()

    def on_worker_death(self, worker):
        self.deaths += 1
        self.loop.stop()

    def give(self, *tickets):
        self.worker.run(tickets)
        return self.session.receive()

    def finish(self, batch, inference_ms=COST_MS):
        answers = [Answers([]) for _ in batch.questions]
        self.session.send(Results(batch.number, answers, 0.0, inference_ms, StagesMs()))
        self.loop.run()

    def close(self):
        self.worker.hang_up()
        self.session.close()
        self.loop.close()


@pytest.fixture
def pool():
    made = Pool()
    yield made
    made.close()


def ticket(key=0, *, is_long=False, attempts=0):
    return Ticket(key, Request("q", "t"), None, 0.0, math.inf, 100, is_long, attempts)


def test_an_idle_session_takes_work_at_any_time(pool):
    assert pool.worker.is_idle
    assert pool.worker.takes_from_s() == -math.inf


def test_the_second_batch_may_come_when_half_of_the_first_should_be_over(pool):
    before_s = pool.loop.now_s()
    pool.give(ticket())
    takes_from_s = pool.worker.takes_from_s()
    assert before_s <= takes_from_s - COST_MS / 2e3 <= pool.loop.now_s()


def test_a_third_batch_waits_for_results(pool):
    first, _ = pool.give(ticket(0)), pool.give(ticket(1))
    assert pool.worker.takes_from_s() == math.inf
    pool.finish(first)
    assert pool.worker.takes_from_s() < math.inf
    assert [[t.key for t in tickets] for tickets in pool.results] == [[0]]


def test_a_long_text_leaves_room_for_others_but_not_for_another(pool):
    long = pool.give(ticket(is_long=True))
    assert long.is_long
    assert pool.worker.takes_from_s() == 0.0
    assert not pool.worker.takes_long
    assert not pool.worker.is_idle
    pool.give(ticket(1))
    pool.finish(long)
    assert pool.worker.takes_long


def test_what_is_retried_has_the_session_to_itself(pool):
    batch = pool.give(ticket(attempts=1))
    assert pool.worker.takes_from_s() == math.inf
    pool.finish(batch)
    assert pool.worker.is_idle


def test_only_what_may_have_run_is_known_to_have_run(pool):
    long, first, second = ticket(is_long=True), ticket(1), ticket(2)
    pool.give(long)
    batch = pool.give(first)
    pool.give(second)
    began = [item.since_s < math.inf for item in pool.worker.in_flight.values()]
    assert began == [True, True, False]
    pool.finish(batch)
    assert all(item.since_s < math.inf for item in pool.worker.in_flight.values())


def test_expectations_follow_what_batches_really_take(pool):
    for _ in range(60):
        pool.finish(pool.give(ticket()), inference_ms=3 * COST_MS)
    pool.give(ticket())
    (item,) = pool.worker.in_flight.values()
    assert item.cost_s == pytest.approx(3 * COST_MS / 1e3, rel=0.05)


def test_without_a_table_the_second_batch_may_come_at_once():
    pool = Pool(costs=None)
    pool.give(ticket())
    assert pool.worker.takes_from_s() <= pool.loop.now_s()
    pool.close()


def test_the_sessions_end_is_its_death(pool):
    pool.session.close()
    pool.loop.run()
    assert pool.deaths == 1
    assert pool.worker.takes_from_s() == math.inf
