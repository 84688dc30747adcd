"""What the gateway makes of each outcome, with a broker in memory and a server that is scripted."""

import asyncio
import contextlib
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

pytest.importorskip("aio_pika", reason="no aio-pika: pip install '.[jobs]'")

from harness.server import ROOT
from qa_service.client import ConnectionLostError, QaServerError
from qa_service.programs.jobs import job_gateway
from qa_service.programs.jobs.asker import AdaptiveLimit, Asker, ExpiredError, StoppedError, Window
from qa_service.programs.jobs.brokers import (
    BrokerError,
    Message,
    NotTakenError,
    UnreadableError,
    UnroutableError,
)
from qa_service.programs.jobs.job import Job
from qa_service.programs.jobs.job_gateway import MAX_NOT_TAKEN, GatewayMetrics, JobGateway
from qa_service.programs.jobs.jobs_options import AskingOptions, BrokerOptions, GatewayOptions

BODY = b'{"id": "n1", "question": "q", "text": "t"}'


@dataclass
class FakeBroker:
    """Queues in memory; `refusals` are raised by the next publications."""

    jobs: list[Job]
    published: list[tuple[str, Message]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    given_back: list[str] = field(default_factory=list)
    refusals: list[Exception] = field(default_factory=list)
    opened: int = 0
    loss: BrokerError = field(default_factory=lambda: BrokerError("lost"))
    prefetches: list[int] = field(default_factory=list)

    async def open(self):
        self.opened += 1
        self.is_lost = asyncio.Event()

    async def close(self):
        pass

    async def lost(self):
        await self.is_lost.wait()
        raise self.loss

    async def consume(self, queue, take, prefetch):
        self.is_consuming = True
        self.prefetches.append(prefetch)
        for job in self.jobs:
            take(job)

    async def stop_consuming(self):
        self.is_consuming = False

    async def publish(self, queue, message):
        if self.refusals:
            raise self.refusals.pop(0)
        self.published.append((queue, message))

    async def acknowledge(self, job):
        self.acknowledged.append(job.message_id)

    async def give_back(self, job):
        self.given_back.append(job.message_id)

    def drain(self, queue):
        raise NotImplementedError

    async def count(self, queue):
        raise NotImplementedError


class FakeAsker:
    """A server that does with each question what is scripted."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.window = Window(AdaptiveLimit(1))

    async def ask(self, request, order, deadline_s):
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def running(self):
        return contextlib.nullcontext()

    async def connected(self):
        pass


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(job_gateway, "_NOT_TAKEN_PAUSE_S", 0)
    monkeypatch.setattr(job_gateway, "_RECONNECT_S", 0)


def make_job(message_id="m1", **fields):
    absent = dict.fromkeys(("correlation_id", "reply_to", "deadline_s", "reason", "receipt"))
    usual: dict[str, Any] = {**absent, "attempts": 0, "arrived_s": time.monotonic()}
    return Job(BODY, message_id, **(usual | fields))


def play(broker, asker, asking=None, until=lambda broker: True):
    """Runs a gateway until the broker has been given all that it was to be given."""

    async def run():
        options = GatewayOptions(asking=asking or AskingOptions(), broker=BrokerOptions())
        played = JobGateway(broker, asker, options, GatewayMetrics())
        running = asyncio.ensure_future(played.run())
        async with asyncio.timeout(20):
            while not until(broker):
                await asyncio.sleep(0)
        played.stop()
        await running

    asyncio.run(run())
    return broker


def is_acknowledged(broker):
    return broker.acknowledged


def play_one(outcome, settings=None, refusals=(), **fields):
    broker = FakeBroker([make_job(**fields)], refusals=list(refusals))
    return play(broker, FakeAsker(outcome), settings, is_acknowledged)


def test_an_answer_is_published_and_then_the_job_acknowledged():
    broker = play_one(
        {"id": msgspec.Raw(b"1"), "answer": msgspec.Raw(b'"a"')}, correlation_id="c1", reply_to="r1"
    )
    message = Message(b'{"id":"n1","answer":"a"}', "m1", "c1")
    assert broker.published == [("r1", message)]
    assert broker.acknowledged == ["m1"]


@pytest.mark.parametrize(("attempts", "queue"), [(0, "1s"), (1, "5s"), (2, "30s"), (3, "30s")])
def test_a_retryable_error_puts_it_into_the_next_retry_queue(attempts, queue):
    error = QaServerError("deadline_exceeded", "late", retryable=True)
    broker = play_one(error, attempts=attempts, reply_to="r1")
    headers = {"qa-attempts": attempts + 1, "qa-reason": "deadline_exceeded"}
    expected = Message(BODY, "m1", reply_to="r1", headers=headers)
    assert broker.published == [(f"qa.retry.{queue}", expected)]


def dead(broker):
    """The error answer's code, and the dead job's reason."""
    (where, reply), (queue, job) = broker.published
    assert (where, queue) == ("qa.results", "qa.dead")
    assert (reply.message_id, job.message_id, job.body) == ("m1", "m1", BODY)
    return json.loads(reply.body)["error"]["code"], job.headers["qa-reason"]


@pytest.mark.parametrize(
    ("code", "retryable", "attempts"), [("worker_crashed", False, 0), ("unavailable", True, 2)]
)
def test_after_a_permanent_error_or_the_last_attempt_a_job_is_dead_lettered(
    code, retryable, attempts
):
    error = QaServerError(code, "no", retryable=retryable)
    broker = play_one(error, AskingOptions(max_attempts=3), attempts=attempts)
    assert dead(broker) == (code, f"{code}: no")


def test_a_job_without_a_name_is_dead_lettered():
    broker = FakeBroker([make_job(message_id=None)])
    play(broker, FakeAsker(), until=is_acknowledged)
    assert json.loads(broker.published[0][1].body)["error"]["code"] == "invalid_request"
    assert str(broker.published[1][1].headers["qa-reason"]).endswith("no message_id")


def test_a_fault_in_the_gateway_fails_its_job_alone(caplog):
    broker = play_one(KeyError("a bug"))
    assert dead(broker)[1] == "internal_error: the gateway failed with KeyError"
    assert "a bug" in caplog.text


def test_a_job_that_expires_before_its_retry_is_dead_lettered():
    error = QaServerError("deadline_exceeded", "late", retryable=True)
    assert dead(play_one(error, deadline_s=time.monotonic() + 0.5))[0] == "deadline_exceeded"
    assert dead(play_one(ExpiredError()))[0] == "deadline_exceeded"


def test_a_retry_keeps_its_remaining_time():
    error = QaServerError("deadline_exceeded", "late", retryable=True)
    broker = play_one(error, deadline_s=time.monotonic() + 60)
    assert 50_000 < broker.published[0][1].headers["qa-expires-in-ms"] < 59_001


def test_a_question_that_loses_connections_is_tried_later():
    broker = play_one(ConnectionLostError("lost"))
    assert broker.published[0][0] == "qa.retry.1s"


def test_a_job_whose_answer_has_no_queue_is_dead_lettered():
    gone = UnroutableError("there is no queue r1")
    broker = play_one({"id": b"1"}, reply_to="r1", refusals=[gone])
    [(queue, job)] = broker.published
    assert (queue, job.headers["qa-reason"]) == ("qa.dead", "unroutable: there is no queue r1")


def test_an_unconfirmed_message_is_published_again():
    broker = play_one({"id": b"1"}, refusals=[NotTakenError("full"), NotTakenError("full")])
    assert [queue for queue, _ in broker.published] == ["qa.results"]


def test_a_job_whose_answer_is_never_confirmed_is_requeued():
    broker = FakeBroker([make_job()], refusals=[*[NotTakenError("full")] * 2 * MAX_NOT_TAKEN])
    play(broker, FakeAsker({"id": b"1"}), until=lambda broker: broker.given_back)
    assert len(broker.refusals) == MAX_NOT_TAKEN
    assert not broker.acknowledged


def test_a_job_is_not_acknowledged_when_the_broker_is_lost():
    broker = FakeBroker([make_job()], refusals=[BrokerError("lost")])
    play(broker, FakeAsker({"id": b"1"}), until=lambda broker: not broker.refusals)
    assert not broker.acknowledged
    assert not broker.published


def test_a_job_that_was_not_asked_is_requeued():
    broker = FakeBroker([make_job()])
    play(broker, FakeAsker(StoppedError()), until=lambda broker: broker.given_back)
    assert broker.given_back == ["m1"]
    assert not broker.acknowledged
    assert not broker.is_consuming


def test_a_broker_that_was_lost_is_opened_again():
    broker = FakeBroker([])

    def lose_once(broker):
        if broker.opened == 1:
            broker.is_lost.set()
        return broker.opened == 2

    play(broker, FakeAsker(), until=lose_once)
    assert broker.opened == 2


def test_after_a_message_that_cannot_be_read_the_next_jobs_are_taken_one_at_a_time():
    broker = FakeBroker([], loss=UnreadableError("bad"))

    def lose_once(broker):
        if broker.prefetches == [2]:
            broker.jobs = [make_job("m1"), make_job("m2")]
            broker.is_lost.set()
        return len(broker.prefetches) == 3

    play(broker, FakeAsker(*[{"id": b"1"}] * 4), AskingOptions(prefetch=2), lose_once)
    assert broker.prefetches == [2, 1, 2]


def test_every_metric_is_documented():
    metrics = GatewayMetrics()
    asker = cast(Asker, FakeAsker())
    options = GatewayOptions(asking=AskingOptions(), broker=BrokerOptions())
    JobGateway(FakeBroker([]), asker, options, metrics)
    found = {family.name for family in metrics.families()}
    page = (ROOT / "docs" / "JOBS.md").read_text()
    assert {*re.findall(r"^\| `(qa_jobs_\w+)(?:{code})?` \|", page, re.MULTILINE)} == found
