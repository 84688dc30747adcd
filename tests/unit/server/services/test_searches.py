"""The queue before a search process: shares, deadlines, deaths, hangs."""

from typing import cast

import pytest

from qa_service.errors import QueueFullError, UnavailableError
from qa_service.net.event_loop import EventLoop
from qa_service.retrieval.search_messages import Found, List, Open, Opened, Refused, Search
from qa_service.server.services.searches import DIED, FIRST_TIMES, HUNG, MAX_DEATHS_IN_ROW, Searches
from tests.unit.calls import make_call
from tests.unit.server.fake_services import ManualClock
from tests.unit.server.services.search_processes import FakeProcess, concurrency_of

FOUND = Found([], 1.0)
TIMEOUT_S = 10.0


class Setting:
    def __init__(self, concurrency=1, max_waiting=1000):
        self.clock, self.results, self.outcomes, self.faults = ManualClock(), [], {}, []
        self.starts = self.deaths = 0
        self.searches = Searches(
            cast(EventLoop, self.clock),
            "docs",
            concurrency_of(concurrency),
            concurrency=concurrency,
            max_waiting=max_waiting,
            timeout_s=TIMEOUT_S,
            on_start=self.on_start,
            on_death=self.on_death,
            on_fault=self.on_fault,
        )
        self.process = FakeProcess.made["docs"]

    def on_start(self, _):
        self.starts += 1

    def on_death(self, _):
        self.deaths += 1

    def on_fault(self, work, reason):
        self.faults.append((work.question, reason))

    def ask(self, name, **fields):
        call = make_call(self.clock.time_s, question=name, **fields)
        call.then(lambda outcome: self.outcomes.update({name: outcome.code}))
        work = Search("docs", name, 10)
        self.searches.submit(call, work, lambda _: self.results.append(name))
        return call

    @property
    def running(self):
        return [getattr(work, "question", work) for work in self.process.waiting]


@pytest.fixture
def setting():
    return Setting()


def test_the_process_starts_with_the_first_search(setting):
    assert setting.process.starts == 0
    setting.ask("a")
    assert (setting.process.starts, setting.running) == (1, ["a"])
    setting.process.reply(FOUND)
    assert setting.results == ["a"]


def test_one_clients_searches_do_not_block_other_clients(setting):
    for number in range(300):
        setting.ask(f"greedy {number}", flow="greedy")
    setting.ask("other", flow="other")
    for _ in range(2):
        setting.process.reply(FOUND)
    assert setting.running == ["other"]


def test_clients_have_turns_one_after_another(setting):
    setting.ask("first", flow="x")
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        setting.ask(name, flow=name[0])
    for _ in range(7):
        setting.process.reply(FOUND)
    assert setting.results == ["first", "a1", "b1", "c1", "a2", "b2", "a3"]
    assert setting.searches.num_waiting == 0


def test_a_search_cancelled_in_the_queue_does_not_run(setting):
    setting.ask("a")
    setting.ask("b").cancel()
    setting.ask("c")
    setting.process.reply(FOUND)
    assert setting.running == ["c"]
    assert setting.searches.num_waiting == 0


def test_passages_for_a_cancelled_call_are_dropped(setting):
    setting.ask("a").cancel()
    setting.process.reply(FOUND)
    assert setting.results == []


def test_deadlines_hold_while_a_search_waits_and_while_it_is_made(setting):
    setting.ask("running", deadline_s=101.0)
    setting.ask("waiting", deadline_s=102.0)
    setting.clock.advance(0.9)
    assert setting.outcomes == {}
    setting.clock.advance(0.2)
    assert setting.outcomes == {"running": "deadline_exceeded"}
    setting.clock.advance(1.0)
    assert setting.outcomes["waiting"] == "deadline_exceeded"
    setting.process.reply(FOUND)
    assert (setting.running, setting.results) == ([], [])


def test_waiting_searches_are_bounded():
    setting = Setting(max_waiting=2)
    for name in "abc":
        setting.ask(name)
    with pytest.raises(QueueFullError):
        setting.ask("d")


def test_searches_run_up_to_the_concurrency():
    setting = Setting(concurrency=2)
    for name in "abc":
        setting.ask(name)
    assert setting.running == ["a", "b"]


def test_indexes_are_opened_before_searches():
    setting = Setting(concurrency=4)
    opened = []
    setting.searches.run(Open("docs"), opened.append)
    setting.ask("a")
    assert setting.running == [Open("docs")]
    setting.process.reply(Opened("one"))
    assert (opened, setting.running) == ([Opened("one")], ["a"])


def test_a_search_whose_process_dies_is_retried_once(setting):
    setting.ask("a")
    setting.process.die()
    assert setting.outcomes == {}
    setting.process.start()
    assert setting.running == ["a"]
    setting.process.reply(FOUND)
    assert (setting.results, setting.faults) == (["a"], [("a", DIED)])


def test_a_search_that_kills_two_processes_fails(setting):
    setting.ask("a")
    setting.ask("b")
    for _ in range(2):
        setting.process.die()
        setting.process.start()
    assert setting.outcomes == {"a": "unavailable"}
    assert setting.running == ["b"]


def test_work_for_no_call_is_refused_when_its_process_dies(setting):
    results = []
    setting.searches.run(List("folder"), results.append)
    setting.process.die()
    assert results == [Refused(DIED, "damaged")]


def test_searches_are_refused_while_processes_die_one_after_another(setting):
    setting.ask("a")
    setting.ask("b")
    for _ in range(MAX_DEATHS_IN_ROW):
        setting.process.is_running or setting.process.start()
        setting.process.die()
    assert set(setting.outcomes.values()) == {"unavailable"}
    with pytest.raises(UnavailableError):
        setting.ask("c")
    setting.process.start()
    setting.ask("d")
    assert setting.running == ["d"]


def test_a_process_that_hangs_is_replaced_and_others_are_searched(setting):
    setting.ask("hangs")
    setting.ask("waits")
    setting.clock.advance(TIMEOUT_S - 0.1)
    assert setting.deaths == 0
    setting.clock.advance(0.1)
    assert setting.deaths == 1
    assert setting.outcomes == {"hangs": "unavailable"}
    assert setting.faults == [("hangs", HUNG)]
    setting.process.start()
    assert setting.running == ["waits"]


def test_opening_an_index_has_a_longer_timeout(setting):
    results = []
    setting.searches.run(Open("docs"), results.append)
    setting.clock.advance(FIRST_TIMES * TIMEOUT_S - 0.1)
    assert setting.deaths == 0
    setting.clock.advance(0.1)
    assert results == [Refused(HUNG, "damaged")]


def test_only_the_hanging_search_fails():
    setting = Setting(concurrency=2)
    setting.ask("hangs")
    setting.clock.advance(5.0)
    setting.ask("is quick")
    setting.clock.advance(5.0)
    assert setting.outcomes == {"hangs": "unavailable"}
    setting.process.start()
    assert setting.running == ["is quick"]


@pytest.mark.parametrize("pause_s", [0, 2 * TIMEOUT_S])
def test_a_result_that_comes_in_time_but_for_a_pause_replaces_no_process(setting, pause_s):
    for _ in range(3):
        setting.ask("a")
        setting.clock.pause(pause_s)
        setting.clock.advance(TIMEOUT_S - 1)
        setting.process.reply(FOUND)
    assert (setting.deaths, setting.results) == (0, ["a"] * 3)
