"""The response cache and single flight, with a service and a clock of the test's own."""

import gc
import math
import random
from operator import eq

import msgspec
import pytest

from qa_service.errors import (
    DeadlineExceededError,
    ExecutionTimeoutError,
    WorkerCrashedError,
)
from qa_service.server.services.cache import (
    ENTRY_BYTES,
    NO_TIME,
    SHARD_BYTES,
    Cached,
    CacheStore,
    cache_key,
)
from qa_service.server.telemetry.metrics import ModelMetrics
from qa_service.wire.messages import Answer, Answered, AnswerSource, Passage, Place, Question
from tests.support import present
from tests.unit.server.fake_services import (
    ANSWER,
    NO_ANSWER,
    TEXT,
    TIMINGS,
    Client,
    FakeService,
    ManualClock,
)


class Setting:
    def __init__(self, max_bytes=SHARD_BYTES):
        self.model, self.counts = "one", ModelMetrics([])
        self.service, self.clock, self.store = FakeService(), ManualClock(), CacheStore(max_bytes)
        self.cached = Cached(
            self.service,
            self.store,
            lambda _: self.model,
            self.clock,
            self.counts,
            max_queue_size=100,
        )
        self.client = Client(self.cached)
        self.ask, self.of = self.client.ask, self.client.of

    def is_cached(self, call):
        return self.client.outcomes[call].source.is_cached

    @property
    def runs(self):
        return self.service.submitted


@pytest.fixture
def setting():
    return Setting()


# The cache.


def test_an_equal_request_is_answered_from_the_cache(setting):
    """Whatever its id, its time and its priority are."""
    first = setting.ask(id=b"1", timeout_ms=50.0)
    setting.service.resolve()
    second = setting.ask(id=b"2", priority=9)
    assert [setting.of(first), setting.of(second)] == [ANSWER, ANSWER]
    assert [setting.is_cached(call) for call in (first, second)] == [False, True]
    assert len(setting.runs) == 1
    assert (setting.counts.cache_hits_total, setting.counts.cache_misses_total) == (1, 1)


@pytest.mark.parametrize(
    "answers", [[NO_ANSWER], [ANSWER, NO_ANSWER, Answer("London", 0.01, 23, 29)]], ids=len
)
def test_all_answers_and_no_answer_are_kept(setting, answers):
    setting.ask(top_k=3)
    setting.runs[0].resolve(answers, TIMINGS)
    assert setting.client.outcomes[setting.ask(top_k=3)].answers == answers


@pytest.mark.parametrize(
    "other",
    [{"question": "Who"}, {"question": " Who?"}, {"text": TEXT + " "}, {"text": " " + TEXT},
     {"top_k": 2}],
)  # fmt: skip
def test_a_request_that_differs_in_one_field_is_not_cached(setting, other):
    setting.ask()
    setting.service.resolve()
    assert setting.of(setting.ask(**other)) is None
    assert len(setting.runs) == 2


def test_a_cached_answer_stands_where_it_stood_behind_leading_spaces(setting):
    text = f"  \n {TEXT}"
    start = text.index("London")
    answer = Answer("London", 0.9, start, start + 6)
    setting.ask(text=text)
    setting.runs[0].resolve([answer], TIMINGS)
    [kept] = setting.client.outcomes[setting.ask(text=text)].answers
    assert (kept.start, kept.end, text[kept.start : kept.end]) == (start, start + 6, "London")


def test_question_and_text_are_separate_in_the_key():
    keys = {cache_key("m", Question("ab", "c")), cache_key("m", Question("a", "bc")),
            cache_key("ma", Question("b", "c"))}  # fmt: skip
    assert len(keys) == 3


@pytest.mark.parametrize("at_once", [False, True])
def test_an_error_is_not_kept(setting, at_once):
    error = WorkerCrashedError()
    setting.service.refuse = error if at_once else None
    first = setting.ask()
    setting.service.refuse = None
    setting.runs[0].fail(error)
    second = setting.ask()
    assert (setting.of(first), setting.of(second)) == ("worker_crashed", None)
    assert len(setting.runs) == 2


def test_answers_of_the_old_model_are_not_used_after_a_reload(setting):
    setting.ask()
    setting.service.resolve()
    setting.model = "two"
    assert setting.of(setting.ask()) is None
    setting.model = "one"
    assert setting.of(setting.ask()) == ANSWER


def test_an_answer_that_comes_after_a_reload_is_given_but_not_kept(setting):
    first = setting.ask()
    setting.model = "two"
    setting.service.resolve()
    assert setting.of(first) == ANSWER
    assert len(setting.store) == 0


# Single flight.


def test_the_run_has_the_leaders_share_and_deadline(setting):
    setting.ask(flow="ada", weight=2.0, deadline_s=101.0)
    setting.ask(flow="bob", weight=5.0, deadline_s=109.0)
    [run] = setting.runs
    assert (run.scope.flow, run.scope.weight, run.scope.deadline_s) == ("ada", 2.0, 101.0)


def test_the_run_continues_if_its_leader_disconnects(setting):
    leader, follower = setting.ask(), setting.ask()
    leader.cancel()
    assert setting.service.cancelled == []
    setting.service.resolve()
    assert [setting.of(leader), setting.of(follower)] == [None, ANSWER]
    assert len(setting.runs) == 1


def test_a_run_without_waiters_is_cancelled(setting):
    leader, follower = setting.ask(), setting.ask()
    follower.cancel()
    leader.cancel()
    assert setting.service.cancelled == setting.runs
    assert setting.runs[0].is_settled
    setting.ask()
    assert len(setting.runs) == 2


def test_a_followers_deadline_ends_its_waiting_and_no_other(setting):
    leader, short, long = (setting.ask(deadline_s=d) for d in (130.0, 101.0, 105.0))
    setting.clock.advance(1.0)
    assert setting.of(short) == "deadline_exceeded"
    setting.clock.advance(4.0)
    assert setting.of(long) == "deadline_exceeded"
    setting.service.resolve()
    assert setting.of(leader) == ANSWER


def test_a_leader_whose_run_has_begun_is_not_ended_by_its_deadline(setting):
    leader = setting.ask(deadline_s=101.0)
    setting.ask(deadline_s=101.0)
    setting.clock.advance(2.0)
    assert setting.of(leader) is None
    setting.service.resolve()
    assert setting.of(leader) == ANSWER


def test_the_last_followers_timeout_cancels_the_run_of_a_disconnected_leader(setting):
    leader, follower = setting.ask(deadline_s=130.0), setting.ask(deadline_s=101.0)
    leader.cancel()
    setting.clock.advance(1.0)
    assert setting.of(follower) == "deadline_exceeded"
    assert setting.service.cancelled == setting.runs


@pytest.mark.parametrize("error", [DeadlineExceededError, ExecutionTimeoutError])
def test_the_waiter_with_most_time_leads_when_the_leader_times_out(setting, error):
    leader = setting.ask(deadline_s=101.0, flow="ada")
    setting.ask(deadline_s=102.0, flow="bob")
    setting.ask(deadline_s=103.0, flow="eve")
    setting.runs[0].fail(error())
    assert setting.of(leader) == error.code
    assert [(run.scope.flow, run.scope.deadline_s) for run in setting.runs[1:]] == [("eve", 103.0)]
    setting.service.resolve()
    assert [setting.of(p) for p in setting.client.outcomes] == [error.code, ANSWER, ANSWER]


@pytest.mark.parametrize("error", [DeadlineExceededError, WorkerCrashedError])
def test_an_error_or_a_deadline_that_all_share_ends_all_who_wait(setting, error):
    asked = [setting.ask(deadline_s=101.0) for _ in range(3)]
    setting.runs[0].fail(error())
    assert {setting.of(call) for call in asked} == {error.code}
    assert len(setting.runs) == 1


def test_an_outcome_that_cancels_another_member_is_handled(setting):
    first, second = setting.ask(), setting.ask()
    first.then(lambda outcome: second.cancel())
    setting.runs[0].fail(WorkerCrashedError())
    assert setting.of(second) is None


def test_requests_over_the_bound_on_waiters_run_themselves(setting):
    asked = [setting.ask(id=b"%d" % number) for number in range(102)]
    assert len(setting.runs) == 2
    asked[-1].cancel()
    assert setting.service.cancelled == asked[-1:]
    setting.service.resolve(number=0)
    assert sum(setting.of(call) == ANSWER for call in asked) == 101


def test_an_ended_run_leaves_no_reference_cycle(setting):
    gc.collect()
    gc.disable()
    try:
        for leaves in (False, True):
            setting.ask(question=f"Who {leaves}?")
            joined = setting.ask(question=f"Who {leaves}?", deadline_s=101.0)
            if leaves:
                joined.cancel()
            setting.service.resolve()
        setting.service.submitted.clear()
        setting.client.outcomes.clear()
        assert gc.collect() == 0
    finally:
        gc.enable()


# The store.


def test_the_timer_of_a_run_that_has_ended_is_cancelled(setting):
    setting.ask(deadline_s=110.0)
    setting.ask(deadline_s=109.0)
    assert setting.clock.timers.next_due_s() == 109.0
    setting.service.resolve()
    assert setting.clock.timers.next_due_s() == math.inf


def test_two_versions_of_equal_files_keep_an_answer_once(setting):
    """As with shadow traffic: both run before either answer is kept."""
    other_service = FakeService()
    other = Cached(
        other_service,
        setting.store,
        lambda _: "one",
        setting.clock,
        setting.counts,
        max_queue_size=100,
    )
    setting.ask()
    Client(other).ask()
    setting.service.resolve()
    num_bytes = setting.store.num_bytes
    other_service.resolve()
    assert (len(setting.store), setting.store.num_bytes) == (1, num_bytes)


def test_an_answer_kept_again_replaces_the_one_before():
    store, key = CacheStore(4 * ENTRY_BYTES), cache_key("m", Question("Who?", TEXT))
    for number in range(100):
        answers = [ANSWER, NO_ANSWER][: 1 + number % 2]
        assert store.put(key, Answered(answers, NO_TIME)) == 0
        assert present(store.get(key, TEXT)).answers == answers
    assert len(store) == 1
    assert ENTRY_BYTES < store.num_bytes < 2 * ENTRY_BYTES


def test_each_field_of_an_answer_and_of_a_reply_is_kept():
    store, key = CacheStore(SHARD_BYTES), cache_key("m", Question("Who?", ""))
    passage = Passage("a.md", "A", "B > C", 3, 3 + len(TEXT), TEXT, 1)
    answer = Answer(TEXT[2:6], 0.9, 5, 9, passage, (Place(5, 9, "a.md"), Place(9, 12, "b.md")))
    source = AnswerSource("m", 2, True, 3, (passage, Passage("b", "B", "", 0, 3, "Ida")), (ANSWER,))
    for one in (answer, source):
        defaults = [field.default for field in msgspec.structs.fields(one)]
        assert not any(map(eq, msgspec.structs.astuple(one), defaults))
    answered = Answered([answer, NO_ANSWER], NO_TIME, source)
    store.put(key, answered)
    assert store.get(key, "") == answered


def test_the_least_recently_used_is_dropped_first():
    store = CacheStore(3 * (ENTRY_BYTES + 20))
    keys = [cache_key("m", Question(str(number), TEXT)) for number in range(4)]
    assert [store.put(key, Answered([ANSWER], NO_TIME)) for key in keys[:3]] == [0, 0, 0]
    store.get(keys[0], TEXT)
    assert store.put(keys[3], Answered([ANSWER], NO_TIME)) == 1
    there = [bool(store.get(key, TEXT)) for key in keys]
    assert there == [True, False, True, True]


@pytest.mark.parametrize("max_bytes", [0, 100, 10_000, 3 * SHARD_BYTES])
def test_bytes_stay_within_the_bound(max_bytes):
    store, rng, num_dropped = CacheStore(max_bytes), random.Random(0), 0
    for number in range(20_000):
        answers = [ANSWER] * rng.randint(1, 20)
        key = cache_key("m", Question(str(number), TEXT))
        num_dropped += store.put(key, Answered(answers, NO_TIME))
        assert store.num_bytes <= max_bytes
    assert (len(store) > 0) == (max_bytes >= ENTRY_BYTES * 2)
    assert len(store) + num_dropped == 20_000
