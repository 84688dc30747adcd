"""Asking the server from asyncio: over real sockets, a server that does what a test scripts."""

import asyncio
import time

import pytest

from harness.process import GIVE_UP_S
from qa_service.client import ConnectionLostError, QaServerError, ServerUnreachableError
from qa_service.programs.jobs import asker as asker_module
from qa_service.programs.jobs.asker import (
    MAX_LOSSES,
    MAX_REFUSALS,
    Asker,
    ExpiredError,
    StoppedError,
)
from qa_service.programs.jobs.jobs_options import AskingOptions
from tests.scripted_server import (
    FULL,
    SILENCE,
    ScriptedServer,
    answered,
    full_for_the_first,
    listening,
    refused_for_ever,
)

ASK = {"question": "q", "text": "t"}


def play(script, scenario, *, refuses=False, **options):
    """Runs a scenario with an asker of a scripted server; returns what it returns."""

    async def run():
        server = ScriptedServer(script)
        server.refuses = refuses
        async with asyncio.timeout(GIVE_UP_S), listening(server) as port:
            asker = Asker(AskingOptions(host="127.0.0.1", port=port, prefetch=8, **options))
            async with asker.running():
                return await scenario(asker, server)

    return asyncio.run(run())


def test_a_full_queue_is_asked_again_and_halves_the_window():
    def full_twice(request, count):
        if count <= 2:
            return {"id": request["id"], "error": FULL}
        return answered(request, count)

    async def scenario(asker, server):
        told = []
        asker.on_queue_full = lambda: told.append(asker.window.limit.value)
        await asker.ask(ASK, 0)
        return told, len(server.requests)

    assert play(full_twice, scenario) == ([4, 2], 3)


def test_a_question_that_is_always_refused_is_given_up_with_the_last_error(monkeypatch):
    monkeypatch.setattr(asker_module, "LAST_REST_S", 0.0)

    async def scenario(asker, server):
        with pytest.raises(QaServerError) as caught:
            await asker.ask(ASK, 0)
        return caught.value.code, len(server.requests)

    assert play(refused_for_ever, scenario) == ("queue_full", MAX_REFUSALS)


def test_others_are_asked_while_a_refused_question_waits(monkeypatch):
    monkeypatch.setattr(asker_module, "FIRST_REST_S", 1e6)
    monkeypatch.setattr(asker_module, "LAST_REST_S", 1e6)

    async def scenario(asker, server):
        asks = [asker.ask({"question": f"q{i}", "text": "t"}, i) for i in range(5)]
        refused, *others = map(asyncio.ensure_future, asks)
        await asyncio.gather(*others)
        asker.window.stop()
        with pytest.raises(StoppedError):  # at once, though its rest is not over
            await refused
        return sum(request["question"] == "q0" for request in server.requests)

    assert play(full_for_the_first, scenario) == 1


@pytest.mark.parametrize(("code", "retryable"), [("unavailable", True), ("worker_crashed", False)])
def test_an_error_other_than_queue_full_is_raised(code, retryable):
    error = {"code": code, "message": "m", "retryable": retryable}

    async def scenario(asker, _server):
        with pytest.raises(QaServerError) as caught:
            await asker.ask(ASK, 0)
        return caught.value.code, caught.value.retryable

    assert play(lambda r, _: {"id": r["id"], "error": error}, scenario) == (code, retryable)


@pytest.mark.parametrize(
    ("first", "timeout_s"),
    [(None, GIVE_UP_S), ([5], GIVE_UP_S), (SILENCE, 1.0)],
    ids=["closed", "no reply to anything", "silence"],
)
def test_a_connection_that_is_lost_is_made_again_and_the_question_asked_again(first, timeout_s):
    async def scenario(asker, server):
        await asker.ask(ASK, 0)
        return server.connections

    def script(request, count):
        return answered(request, count) if count > 1 else first

    assert play(script, scenario, timeout_s=timeout_s) == 2


def test_a_question_that_always_loses_its_connection_is_given_up(monkeypatch):
    monkeypatch.setattr("qa_service.aio.link._LAST_BACKOFF_S", 0.01)

    async def scenario(asker, server):
        with pytest.raises(ConnectionLostError):
            await asker.ask(ASK, 0)
        return server.connections

    assert play(lambda *_: None, scenario) >= MAX_LOSSES


def test_a_frame_that_is_too_large_for_the_server_is_not_sent():
    async def scenario(asker, server):
        with pytest.raises(QaServerError) as caught:
            await asker.ask({"question": "q", "text": "t" * 100}, 0)
        return caught.value.code, server.requests

    assert play(answered, scenario, max_frame_bytes=100) == ("frame_too_large", [])


def test_the_deadline_goes_with_the_question():
    async def scenario(asker, server):
        deadline_s = time.monotonic() + 1000
        await asker.ask(ASK, 0, deadline_s)
        left_ms = (deadline_s - time.monotonic()) * 1e3
        with pytest.raises(ExpiredError):
            await asker.ask(ASK, 0, time.monotonic())
        [request] = server.requests
        assert left_ms <= request["timeout_ms"] <= 1_000_000

    play(answered, scenario)


@pytest.mark.parametrize(("own_ms", "job_s"), [(5_000.0, 3600), (3_600_000.0, 5)])
def test_of_two_deadlines_the_shorter_goes_with_the_question(own_ms, job_s):
    async def scenario(asker, server):
        request = {"question": "q", "text": "t", "timeout_ms": own_ms}
        await asker.ask(request, 0, time.monotonic() + job_s)
        return server.requests[0]["timeout_ms"]

    assert 0 < play(answered, scenario) <= 5000


def test_a_server_that_is_away_for_too_long_is_an_error():
    async def scenario(asker, server):
        await asker.ask(ASK, 0)
        server.stop_listening()
        server.close_connections()
        with pytest.raises((ServerUnreachableError, ConnectionLostError)):
            await asker.lost_for(0.01)

    play(answered, scenario)


@pytest.mark.parametrize("code", ["unauthorized", "tls_required"])
def test_a_server_that_wants_a_token_or_tls_is_asked_no_question(code):
    refusal = {"code": code, "message": "no", "retryable": False}

    async def scenario(asker, server):
        with pytest.raises(QaServerError, match=code):
            await asker.check()
        asking = asyncio.ensure_future(asker.ask(ASK, 0))
        while server.connections < 3:  # it is tried again
            await asyncio.sleep(0.01)
        assert not asking.done()
        assert all(request["type"] == "health" for request in server.requests)
        server.refuses = False
        server.script = answered
        return bytes((await asking)["answer"])

    assert play(lambda *_: {"id": None, "error": refusal}, scenario, refuses=True) == b'"a"'


def test_a_draining_server_is_tried_again_at_intervals():
    def draining(request, _count):
        return {"id": request["id"], "health": {}, "closing": True}

    async def scenario(asker, server):
        with pytest.raises(ConnectionLostError, match="takes no more questions"):
            await asker.check()
        await asyncio.sleep(0.5)
        assert 1 < server.connections < 10

    play(draining, scenario, refuses=True)
