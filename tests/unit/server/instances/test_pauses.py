"""A process that stood still: what came meanwhile came in time, and nothing was measured."""

import math
import socket

import pytest

from qa_service.instance.stages import StagesMs
from qa_service.instance.worker_messages import Answers, Results
from tests.support import FakeTimeLoop, run_until
from tests.unit.calls import make_ticket

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


def test_an_instance_that_answered_during_a_pause_is_not_overdue(start):
    pool = start(1, execution_timeout_ms=int(TIMEOUT_S * 1e3))
    pool.become_ready(0)
    batch, worker = pool.give(0, make_ticket()), pool.workers[0]
    results = Results(batch.number, [Answers([])], pool.loop.now_s(), 1e3, StagesMs())
    pause_in(pool.loop, 2 * TIMEOUT_S, lambda: worker.peer.send(results))
    run_until(pool.loop, lambda: bool(pool.results or pool.lost))
    assert (len(pool.results), pool.lost) == (1, [])
    assert worker._pace.value == 1.0
