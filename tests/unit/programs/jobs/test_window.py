"""The window of questions in flight."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.programs.jobs.asker import AdaptiveLimit, StoppedError, Window


def test_the_limit_doubles_each_round_trip_until_the_first_refusal():
    limit = AdaptiveLimit(most=100)
    for expected in (2, 4, 8):
        for _ in range(int(limit.value)):
            limit.answered()
        assert limit.value == expected


def test_a_refusal_halves_it_once_for_all_that_was_asked_before():
    limit = AdaptiveLimit(most=64, start=64)
    epoch = limit.epoch
    limit.refused(epoch)
    limit.refused(epoch)
    assert limit.value == 32
    limit.refused(limit.epoch)
    assert limit.value == 16


def test_after_a_refusal_it_grows_by_about_one_each_round_trip():
    limit = AdaptiveLimit(most=64, start=16)
    limit.refused(limit.epoch)
    for _ in range(8):
        limit.answered()
    assert limit.value == pytest.approx(9, abs=0.1)


@given(st.lists(st.booleans()), st.integers(1, 100))
def test_the_limit_stays_within_its_bounds(outcomes, most):
    limit = AdaptiveLimit(most)
    for is_answered in outcomes:
        if is_answered:
            limit.answered()
        else:
            limit.refused(limit.epoch)
        assert 1 <= limit.value <= most


def with_window(scenario):
    """A test that plays a scenario with an open window of one place."""

    async def play():
        window = Window(AdaptiveLimit(1))
        window.set_open(True)
        await scenario(window)

    return lambda: asyncio.run(play())


async def settle():
    """Lets every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def begins_to_wait(window):
    """Has a task ask for a place, as far as it comes."""
    task = asyncio.ensure_future(window.enter(1))
    await settle()
    return task


@with_window
async def test_waiters_are_admitted_by_order(window):
    entered = []

    async def enter(order):
        await window.enter(order)
        entered.append(order)
        window.leave()

    await window.enter(0)
    tasks = [asyncio.ensure_future(enter(order)) for order in (3, 1, 2)]
    await settle()
    assert entered == []
    window.leave()
    await asyncio.gather(*tasks)
    assert entered == [1, 2, 3]


@with_window
async def test_a_shut_window_admits_no_waiter(window):
    window.set_open(False)
    task = await begins_to_wait(window)
    assert not task.done()
    window.set_open(True)
    await task
    assert window.in_flight == 1


@with_window
async def test_a_pause_admits_waiters_only_at_its_end(window):
    window.pause(0.2)  # so long that everybody has had a turn meanwhile
    window.pause(0)  # a longer pause stays
    task = await begins_to_wait(window)
    assert not task.done()
    await task


@with_window
async def test_a_cancelled_waiter_takes_no_place(window):
    await window.enter(0)
    gone = await begins_to_wait(window)
    gone.cancel()
    await settle()
    window.leave()
    await window.enter(2)
    assert window.in_flight == 1


@with_window
async def test_a_waiter_cancelled_when_admitted_gives_its_place_back(window):
    await window.enter(0)
    gone = await begins_to_wait(window)
    window.leave()  # lets it in
    gone.cancel()  # before it has run
    await settle()
    assert window.in_flight == 0


@with_window
async def test_a_stopped_window_refuses_all_waiters(window):
    await window.enter(0)
    waiting = await begins_to_wait(window)
    window.stop()
    for attempt in (waiting, window.enter(2)):
        with pytest.raises(StoppedError):
            await attempt
