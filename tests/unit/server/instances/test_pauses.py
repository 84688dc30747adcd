"""A process that stood still: what came meanwhile came in time, and nothing was measured."""

import math
import socket

import pytest

from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.stages import StagesMs
from qa_service.instance.worker_messages import Answers, Batch, Ready, Results
from tests.support import FakeTimeLoop, run_until
from tests.unit.calls import make_ticket
from tests.unit.server.handled_worker import HandledPool

TIMEOUT_S = 5.0


class PausedSelector:
    """Stands still once in `select`, as an epoll that is stopped: it then returns nothing."""

    def __init__(self, loop, pause):
        self._selector, self._pause = loop._selector, pause

    def __getattr__(self, name):
        return getattr(self._selector, name)

    def select(self, timeout):
        if self._pause:
            pause, self._pause = self._pause, None
            pause()
            return []
        return self._selector.select(timeout)


@pytest.fixture
def loop():
    made = FakeTimeLoop()
    yield made
    made.close()


def pause_in(loop, seconds, meanwhile):
    """Has the loop stand still in its next round."""

    def pause():
        meanwhile()
        loop.clock.pass_s(seconds)

    loop._selector = PausedSelector(loop, pause)


def test_data_from_a_pause_is_read_before_timers_run(loop, caplog):
    ours, theirs = socket.socketpair()
    seen: list[bytes | str] = []
    with ours, theirs:
        loop.watch(ours, lambda: seen.append(ours.recv(1)))
        loop.call_at(loop.now_s() + TIMEOUT_S, lambda: seen.append("timer"))
        pause_in(loop, 2 * TIMEOUT_S, lambda: theirs.send(b"x"))
        run_until(loop, lambda: len(seen) == 2)
        loop.watch(ours)
    assert seen == [b"x", "timer"]
    assert loop.last_pause_s == loop.now_s()
    assert "nothing ran for 10.0 s" in caplog.text


def test_waiting_for_events_is_not_a_pause(loop):
    ran = []
    loop.call_at(loop.now_s() + 0.9, lambda: ran.append(1))
    pause_in(loop, 0.95, lambda: None)
    run_until(loop, lambda: bool(ran))
    assert loop.last_pause_s == -math.inf


class Pool(HandledPool):
    """A pool of one instance, which the test plays."""

    def __init__(self, loop):
        options = InstanceOptions(
            num_inference_sessions=1, execution_timeout_ms=int(TIMEOUT_S * 1e3)
        )
        super().__init__(loop, options)
        self.pool.resize(1)
        self.worker.peer.send(Ready())
        run_until(loop, lambda: self.pool.is_complete)

    @property
    def worker(self):
        return self.workers[0]

    def give(self):
        self.worker.run([make_ticket()])
        batch = self.worker.peer.receive()
        assert isinstance(batch, Batch)
        return Results(batch.number, [Answers([])], self.loop.now_s(), 1e3, StagesMs())


@pytest.fixture
def pool(loop):
    made = Pool(loop)
    yield made
    made.close()


def test_an_instance_that_answered_during_a_pause_is_not_overdue(loop, pool):
    results = pool.give()
    pause_in(loop, 2 * TIMEOUT_S, lambda: pool.worker.peer.send(results))
    run_until(loop, lambda: bool(pool.results or pool.lost))
    assert (len(pool.results), pool.lost) == (1, [])
    assert pool.worker._pace.value == 1.0


def test_an_instance_that_paused_too_gets_its_time_again(loop, pool):
    results = pool.give()
    pause_in(loop, 2 * TIMEOUT_S, lambda: None)
    run_until(loop, lambda: loop.last_pause_s > 0)
    loop.clock.pass_s(TIMEOUT_S - 1)
    pool.worker.peer.send(results)
    run_until(loop, lambda: bool(pool.results or pool.lost))
    assert (len(pool.results), pool.lost) == (1, [])


def test_an_instance_that_hangs_is_overdue_after_a_pause(loop, pool):
    pool.give()
    pause_in(loop, 2 * TIMEOUT_S, lambda: None)
    run_until(loop, lambda: loop.last_pause_s > 0)
    for _ in range(6):
        loop.clock.pass_s(1)  # no pause: an instance is given time once
        loop._looked_s = loop.now_s()
    run_until(loop, lambda: bool(pool.lost))
    assert not pool.results
