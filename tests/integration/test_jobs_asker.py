"""Asking the server from asyncio: over real sockets, a server that does what a test scripts."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from contextlib import asynccontextmanager

import pytest

from harness.frames import frame
from harness.ports import reserve_port
from harness.process import GIVE_UP_S
from qa_service.broker.asker import MAX_LOSSES, Asker, ExpiredError
from qa_service.broker.job import Request
from qa_service.broker.server_link import ServerAddress
from qa_service.client import ConnectionLostError, QaServerError, ServerUnreachableError

ASK = Request(question="q", text="t")
ANSWER = {"answer": "a", "score": 1.0}
FULL = {"code": "queue_full", "message": "m", "retryable": True, "retry_after_ms": 1}


class ScriptedServer:
    """Answers each request with what `script` makes of it; None closes the connection."""

    def __init__(self, script):
        self.script, self.requests, self.connections = script, [], 0

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                request = json.loads(await reader.readexactly(length))
                self.requests.append(request)
                reply = self.script(request, len(self.requests))
                if reply is None:
                    return
                writer.write(frame(reply))
                if (
                    isinstance(reply, dict) and "error" in reply and reply["id"] is None
                ):  # as a server does, it closes
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answered(request, _count):
    return {"id": request["id"], **ANSWER}


def play(script, scenario, *, most=8, **address):
    """Runs a scenario with an asker of a scripted server; returns what it returns."""

    @asynccontextmanager
    async def listening(server):
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        async with listener:
            yield listener.sockets[0].getsockname()[1]

    async def run():
        server = ScriptedServer(script)
        async with asyncio.timeout(GIVE_UP_S), listening(server) as port:
            where = ServerAddress("127.0.0.1", port, **address)
            asker = Asker(where, most)
            async with asker.running():
                return await scenario(asker, server)

    return asyncio.run(run())


def test_questions_are_pipelined_and_matched():
    held = []

    def in_reverse(request, count):
        held.append(request["id"])
        return {"id": held.pop(), **ANSWER, "question": request["question"]}

    async def scenario(asker, server):
        asks = [asker.ask(Request(question=f"q{i}", text="t"), i) for i in range(8)]
        replies = await asyncio.gather(*asks)
        return [json.loads(bytes(reply["question"])) for reply in replies], server.connections

    assert play(in_reverse, scenario) == ([f"q{i}" for i in range(8)], 1)


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


@pytest.mark.parametrize(("code", "retryable"), [("unavailable", True), ("worker_crashed", False)])
def test_another_error_is_raised(code, retryable):
    error = {"code": code, "message": "m", "retryable": retryable}

    async def scenario(asker, _server):
        with pytest.raises(QaServerError) as caught:
            await asker.ask(ASK, 0)
        return caught.value.code, caught.value.retryable

    assert play(lambda r, _: {"id": r["id"], "error": error}, scenario) == (code, retryable)


def test_a_lost_connection_is_made_again_and_the_question_asked_again():
    async def scenario(asker, server):
        await asker.ask(ASK, 0)
        return server.connections

    assert play(lambda r, count: answered(r, count) if count > 1 else None, scenario) == 2


def test_a_question_that_always_loses_its_connection_is_given_up(monkeypatch):
    monkeypatch.setattr("qa_service.broker.server_link._LAST_BACKOFF_S", 0.01)

    async def scenario(asker, server):
        with pytest.raises(ConnectionLostError):
            await asker.ask(ASK, 0)
        return server.connections

    assert play(lambda *_: None, scenario) >= MAX_LOSSES


def test_a_reply_that_is_none_costs_the_connection():
    def garbage_once(request, count):
        return answered(request, count) if count > 1 else [5]

    async def scenario(asker, server):
        await asker.ask(ASK, 0)
        return server.connections

    assert play(garbage_once, scenario) == 2


def test_a_server_that_stays_silent_costs_the_connection():
    def silent_once(request, count):
        return answered(request, count) if count > 1 else {"id": -1}

    async def scenario(asker, server):
        await asker.ask(ASK, 0)
        return server.connections

    assert play(silent_once, scenario, timeout_s=0.1) == 2


def test_the_frame_that_a_server_finds_too_large_is_the_largest():
    refusal = {"code": "frame_too_large", "message": "m", "retryable": False}

    def refuse(request, count):
        if len(request["text"]) > 100:
            return {"id": None, "error": refusal}
        return answered(request, count)

    async def scenario(asker, server):
        texts = ("t", "t" * 200, "t" * 50)
        asks = [asker.ask(Request(question="q", text=text), i) for i, text in enumerate(texts)]
        small, large, other = await asyncio.gather(*asks, return_exceptions=True)
        assert isinstance(small, dict)
        assert isinstance(other, dict)
        return large.code

    assert play(refuse, scenario) == "frame_too_large"


def test_a_frame_that_is_too_large_for_the_server_is_not_sent():
    async def scenario(asker, server):
        with pytest.raises(QaServerError) as caught:
            await asker.ask(Request(question="q", text="t" * 100), 0)
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


def test_a_token_is_shown_before_the_first_question():
    def authenticated(request, count):
        if count == 1:
            assert request == {"type": "auth", "token": "secret"}
            return {"id": None, "auth": "ok"}
        return answered(request, count)

    async def scenario(asker, server):
        await asker.ask(ASK, 0)
        return len(server.requests)

    assert play(authenticated, scenario, token="secret") == 2


def test_a_wrong_token_is_said():
    refusal = {"code": "unauthorized", "message": "no", "retryable": False}

    async def scenario(asker, _server):
        with pytest.raises(QaServerError, match="unauthorized"):
            await asker.check()

    play(lambda *_: {"id": None, "error": refusal}, scenario, token="wrong")


def test_a_server_that_is_not_there_is_said():
    async def run():
        asker = Asker(ServerAddress("127.0.0.1", reserve_port()), 1)
        async with asker.running():
            await asker.check()

    with pytest.raises(ServerUnreachableError, match="no server can be reached"):
        asyncio.run(run())
