"""One version of a model, with workers that the test plays."""

from pathlib import Path
from typing import Any

import pytest

from qa_service.errors import ERROR_KINDS, InternalError, UnavailableError
from qa_service.server.models.on_disk import FoundVersion
from qa_service.server.models.plan import VersionSpec
from qa_service.server.models.version import Version, VersionState
from qa_service.server.scheduling.scheduler import QueueOptions, Scheduler
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.telemetry.metrics import ModelMetrics
from qa_service.wire.messages import Answered, AnswerSource, Passage
from tests.support import run_until
from tests.unit.calls import make_call
from tests.unit.server.fake_services import ANSWER, TIMINGS, FakeService
from tests.unit.server.handled_worker import HandledPool, HandledProcess

PASSAGE = Passage("a.md", "A", "", 0, 3, "Ada")


class HungPool(HandledPool):
    """Its processes end when they are killed, and not before."""

    def launch(self):
        self.launched = HandledProcess(None, obeys=True)
        return self.launched, self.launched.ours


def make_version(loop, service=None):
    hung = HungPool(loop, drain_timeout_s=0.001)
    spec = VersionSpec("m", FoundVersion(1, Path("m"), "f"), hung.options)
    pool, metrics = hung.pool, ModelMetrics(ERROR_KINDS)
    dispatcher = Dispatcher(loop, Scheduler(QueueOptions()), pool, metrics)
    return Version(spec, loop, pool, dispatcher, service or dispatcher, metrics=metrics)


@pytest.fixture
def version(loop):
    made = make_version(loop)
    loop.on_mark = made.end_if_done
    yield made
    made.close()


def test_submit_after_close_fails(version):
    outcomes = []
    version.close()
    version.submit(make_call(on_settled=outcomes.append))
    assert [type(outcome) for outcome in outcomes] == [UnavailableError]
    assert version.dispatcher.queue_length == 0


def test_a_call_failed_by_its_owner_leaves_the_queue(version):
    call = make_call()
    version.submit(call)
    assert version.dispatcher.queue_length == 1
    call.fail(InternalError())
    assert version.dispatcher.queue_length == 0


def test_a_draining_version_ends_after_its_last_answer(version, loop):
    call = make_call()
    version.submit(call)
    version.make_ready()
    version.drain()
    run_until(loop, lambda: True)
    assert version.state is VersionState.DRAINING
    call.cancel()
    run_until(loop, lambda: version.state is VersionState.GONE)


def test_kill_fails_queued_calls(version):
    outcomes = []
    version.submit(make_call(on_settled=outcomes.append))
    version.kill()
    assert [type(outcome) for outcome in outcomes] == [UnavailableError]


def test_an_answer_says_which_version_it_is_of_and_keeps_what_else_is_known(loop):
    service, outcomes = FakeService(), []
    version = make_version(loop, service)
    version.submit(make_call(on_settled=outcomes.append))
    known: dict[str, Any] = {
        "is_cached": True,
        "models_asked": 2,
        "passages": (PASSAGE,),
        "unsure": (ANSWER,),
    }
    assert {"model", "version", *known} == set(AnswerSource.__struct_fields__)
    service.submitted[0].settle(Answered([ANSWER], TIMINGS, AnswerSource(**known)))
    assert [outcome.source for outcome in outcomes] == [AnswerSource("m", 1, **known)]
    assert version.metrics.model_requests_total["answered"] == 1


def test_a_cancelled_call_leaves_the_queue_and_is_counted(version):
    call = make_call()
    version.submit(call)
    call.cancel()
    assert version.dispatcher.queue_length == 0
    assert version.metrics.model_requests_total["abandoned"] == 1


def test_an_instance_that_hangs_when_it_is_to_end_is_killed(version, loop, monkeypatch):
    """What waits for its end, as the next version does, does not wait for ever."""
    monkeypatch.setattr("qa_service.server.children.child.REAP_INTERVAL_S", 0.0)
    version.pool.resize(1)
    [worker] = version.pool.workers
    version.close()
    assert (version.state, worker.process.is_killed) == (VersionState.ENDING, False)
    run_until(loop, lambda: version.state is VersionState.GONE)
    assert worker.process.is_killed
