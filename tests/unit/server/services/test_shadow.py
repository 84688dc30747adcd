"""Shadow traffic, with versions of the test's own."""

import random
from functools import partial

import pytest

from qa_service.errors import QueueFullError, WorkerCrashedError
from qa_service.server.services.shadow import Shadow
from qa_service.server.telemetry.services import ServiceCounts
from qa_service.wire.http.prometheus import write_text
from qa_service.wire.messages import Answer, Answered, AnswerSource, Timings
from tests.unit.server.fake_services import ANSWER, TIMINGS, Client, FakeService

OTHER = Answer("London", 0.4, 23, 29)


class Setting:
    """Version 3 answers; version 4 is to get copies."""

    def __init__(self, percent=100):
        self.service, self.router = FakeService(), FakeService()
        self.name, self.idle = "builtin", True
        self.set_shadow({4: percent})
        self.counts = ServiceCounts()
        self.submit = self.router.submit
        self.client = self.make_client(3)
        self.ask, self.of = self.client.ask, self.client.of

    def make_client(self, version):
        """A client of that version, with this in the place of the model."""
        counts_of = partial(self.counts.shadow, self.name)
        draw = random.Random(0).random
        return Client(Shadow(self.service, self, version, counts_of, draw=draw))

    def set_shadow(self, percents):
        self.shadow = percents

    def is_idle(self, version):
        return self.idle

    @property
    def copies(self):
        return self.router.submitted

    @property
    def outcomes(self):
        counts = self.counts.shadow("builtin", 4)
        return {name: count for name, count in counts.outcomes.items() if count}


@pytest.fixture
def setting():
    return Setting()


@pytest.mark.parametrize(("answer", "outcome"), [(ANSWER, "agreed"), (OTHER, "differed")])
@pytest.mark.parametrize("is_copy_first", [False, True])
def test_both_answers_are_compared_whichever_comes_first(setting, answer, outcome, is_copy_first):
    call = setting.ask()
    for is_copys in (is_copy_first, not is_copy_first):
        if is_copys:
            setting.router.resolve(answer)
        else:
            setting.service.resolve(ANSWER)
            assert setting.of(call) == ANSWER
    assert setting.outcomes == {outcome: 1}


def test_a_copy_names_the_version_and_has_a_separate_share(setting):
    setting.ask(flow="ada", weight=5.0, model="default", deadline_s=130.0)
    [copy] = setting.copies
    assert (copy.request.model, copy.request.version) == ("builtin", 4)
    scope = copy.scope
    assert (scope.flow, scope.weight, scope.deadline_s) == ("shadow copy", 1.0, 130.0)


@pytest.mark.parametrize("when", ["at once", "first", "last"])
def test_a_copys_error_does_not_reach_the_client(setting, when):
    setting.router.refuse = QueueFullError() if when == "at once" else None
    call = setting.ask()
    if when == "first":
        setting.copies[0].fail(WorkerCrashedError())
    setting.service.resolve()
    if when == "last":
        setting.copies[0].fail(WorkerCrashedError())
    assert (setting.of(call), setting.outcomes) == (ANSWER, {"failed": 1})


def test_no_copy_is_made_where_no_instance_is_idle(setting):
    setting.idle = False
    setting.ask()
    assert (setting.copies, setting.outcomes) == ([], {"dropped": 1})


def test_a_call_refused_at_once_is_not_shadowed(setting):
    setting.service.refuse = QueueFullError()
    setting.ask()
    assert (setting.copies, setting.counts.shadows) == ([], {})


def test_neither_copies_nor_the_shadows_own_requests_are_copied(setting):
    setting.make_client(4).ask()
    setting.ask(flow="shadow copy")
    assert setting.copies == []


def test_the_share_of_copies_is_about_the_configured_one():
    setting = Setting(percent=10)
    for _ in range(2000):
        setting.ask()
    assert len(setting.copies) == pytest.approx(200, abs=40)
    setting.set_shadow({4: 0})
    before = len(setting.copies)
    setting.ask()
    assert len(setting.copies) == before


@pytest.mark.parametrize("error", [None, WorkerCrashedError()], ids=["cancelled", "failed"])
def test_a_request_that_is_cancelled_or_fails_cancels_its_copy(setting, error):
    call = setting.ask()
    if error:
        setting.service.submitted[0].fail(error)
    else:
        call.cancel()
    assert setting.of(call) == (error and error.code)
    assert setting.service.cancelled == ([] if error else [call])
    assert setting.router.cancelled == setting.copies
    assert setting.copies[0].is_settled
    assert setting.outcomes == {"unpaired": 1}


def test_two_shadow_versions_are_counted_separately(setting):
    setting.set_shadow({4: 100, 5: 100})
    call = setting.ask()
    setting.service.resolve()
    setting.copies[0].resolve([ANSWER], TIMINGS)
    setting.copies[1].resolve([OTHER], TIMINGS)
    assert setting.of(call) == ANSWER
    assert setting.counts.shadow("builtin", 4).outcomes["agreed"] == 1
    assert setting.counts.shadow("builtin", 5).outcomes["differed"] == 1


def test_share_agreement_and_latency_are_reported(setting):
    for answer in (ANSWER, ANSWER, OTHER):
        setting.ask()
        setting.copies[-1].resolve([answer], Timings(1.0, 20.0))
        setting.service.resolve()
    setting.idle = False
    setting.ask()
    [report] = setting.counts.report({}, {})["shadows"]
    assert (report["model"], report["version"], report["seen"]) == ("builtin", 4, 4)
    assert (report["share"], report["agreement"]) == (0.75, 0.6667)
    assert report["request_ms"]["max"] == 21.0
    text = write_text(setting.counts.families({})).decode()
    outcome = 'qa_shadow_requests_total{model="builtin",version="4",outcome="differed"} 1\n'
    assert outcome in text
    assert 'qa_shadow_request_seconds_count{model="builtin",version="4"} 3\n' in text


def test_a_cached_answer_is_not_counted_in_latency(setting):
    setting.ask()
    [copy] = setting.copies
    copy.settle(Answered([ANSWER], Timings(0.0, 0.0), AnswerSource(is_cached=True)))
    assert setting.counts.shadow("builtin", 4).request_ms.report()["count"] == 0
