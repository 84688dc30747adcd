"""Sockets, timers and signals on the real clock, waiting for events and never for time."""

import logging
import os
import signal
import socket
import threading
import time

from qa_service.net.timers import MIN_SWEEP, LazyTimer
from tests.support import run_until


def test_timers_run_in_order_of_their_times(loop):
    ran = []
    now_s = loop.now_s()
    loop.call_at(now_s + 0.002, lambda: ran.append("second"))
    loop.call_at(now_s + 0.001, lambda: ran.append("first"))
    loop.call_at(now_s, lambda: ran.append("cancelled")).cancel()
    run_until(loop, lambda: len(ran) == 2)
    assert ran == ["first", "second"]
    assert loop.now_s() >= now_s + 0.002


def test_an_idle_loop_sleeps(loop):
    rounds = []
    loop.after_each = lambda: rounds.append(1)
    loop.call_at(loop.now_s() + 0.05, loop.stop)
    loop.run()
    assert len(rounds) <= 3  # the kernel may wake it a little before the timer is due


def test_time_on_a_core_and_time_spent_waiting_are_counted_apart(loop):
    def burn():
        until_s = time.thread_time() + 0.02
        while time.thread_time() < until_s:
            pass
        loop.call_at(loop.now_s() + 0.02, loop.stop)

    loop.call_soon(burn)
    before, began_s = loop.times, time.monotonic()
    loop.run()
    took_s = time.monotonic() - began_s
    spent = {name: loop.times[name] - before[name] for name in before}
    assert spent["cpu"] >= 0.02
    assert 0.0 < spent["waiting"] < took_s - 0.02


def test_run_in_thread_runs_off_the_loop_and_returns_the_result_on_it(loop):
    may_end, came, ran = threading.Event(), [], []

    def work():
        assert may_end.wait(20)
        return threading.current_thread()

    loop.run_in_thread(work, lambda thread: came.append((thread, threading.current_thread())))
    loop.call_at(loop.now_s(), lambda: ran.append(came[:]) or may_end.set())
    run_until(loop, lambda: bool(came))
    assert ran == [[]]  # the loop went on
    ((its, ours),) = came
    assert (its, ours) == (its, threading.current_thread())
    assert its is not ours


def test_an_exception_in_a_thread_is_returned_and_does_not_stop_other_threads(loop, caplog):
    came = []
    loop.run_in_thread(lambda: 1 / 0, lambda error: came.append(error) or 1 / 0)
    run_until(loop, lambda: bool(came))
    assert isinstance(came[0], ZeroDivisionError)
    assert "a callback of the event loop failed" in caplog.text
    loop.run_in_thread(lambda: 7, came.append)
    run_until(loop, lambda: len(came) == 2)
    assert came[1] == 7


def test_a_thread_that_cannot_start_is_an_error_that_is_returned(loop, monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    came = []
    monkeypatch.setattr(threading.Thread, "start", start)
    loop.run_in_thread(lambda: 7, came.append)
    assert came == []
    run_until(loop, lambda: bool(came))
    assert isinstance(came[0], OSError)
    assert str(came[0]) == "can't start new thread"


def test_a_mark_is_reconciled_once_at_the_end_of_the_round(loop):
    seen = []
    loop.on_mark, loop.after_each = lambda: seen.append("mark"), lambda: seen.append("each")
    loop.mark()  # also what is marked before the loop runs
    loop.call_soon(loop.mark)
    loop.call_soon(loop.stop)
    loop.run()
    assert seen == ["mark", "each"]


def test_a_mark_made_while_reconciling_gets_another_round_at_once(loop):
    seen = []
    loop.on_mark = lambda: seen.append(1) or (loop.mark if len(seen) < 3 else loop.stop)()
    loop.mark()
    loop.run()
    assert len(seen) == 3


def test_readable_and_writable_are_distinguished_and_unregistered(loop):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        seen = []
        loop.watch(ours, lambda: seen.append("r"), lambda: seen.append("w"))
        run_until(loop, lambda: bool(seen))
        assert set(seen) == {"w"}
        loop.watch(ours, lambda: seen.append("r"))
        theirs.send(b"x")
        run_until(loop, lambda: "r" in seen)
        loop.watch(ours)
        seen.clear()
        run_until(loop, lambda: True)
        assert seen == []


def test_a_signal_is_handled_in_the_loop(loop):
    seen = []
    loop.on_signal(signal.SIGUSR1, lambda: seen.append("usr1"))
    loop.call_soon(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    run_until(loop, lambda: bool(seen))
    assert seen == ["usr1"]


def test_a_failing_callback_is_logged_and_the_loop_goes_on(loop, caplog):
    ran = []
    loop.call_soon(lambda: 1 / 0)
    loop.call_soon(lambda: ran.append(1))
    with caplog.at_level(logging.ERROR):
        run_until(loop, lambda: bool(ran))
    assert "ZeroDivisionError" in caplog.text


def test_cancelled_timers_do_not_pile_up(loop):
    for _ in range(10_000):
        loop.call_at(loop.now_s() + 600, lambda: None).cancel()
    assert len(loop._timers._items) <= 2 * MIN_SWEEP


def test_a_lazy_timer_calls_at_the_earliest_time_set(loop):
    ran = []
    timer = LazyTimer(loop, lambda: ran.append(loop.now_s()))
    soon_s = loop.now_s() + 0.01
    timer.arm(soon_s + 600)
    timer.arm(soon_s)
    timer.arm(soon_s + 300)
    run_until(loop, lambda: bool(ran))
    assert ran[0] >= soon_s
    timer.arm(loop.now_s())
    timer.cancel()
    run_until(loop, lambda: True)
    assert len(ran) == 1
