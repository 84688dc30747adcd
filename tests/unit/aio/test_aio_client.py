"""AsyncQaClient over real sockets, with servers that do what a test scripts."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from harness.frames import frame
from harness.process import GIVE_UP_S, reserve_port
from qa_service.aio import AsyncQaClient
from qa_service.aio.link import ServerLink
from qa_service.client import (
    ProtocolError,
    QaClientError,
    RequestTimeoutError,
    ServerUnreachableError,
    Terms,
    TlsError,
    decode_reply,
    tls_context,
)
from tests.scripted_peer import answer_to, error_to
from tests.scripted_server import FULL, SILENCE, ScriptedServer, listening

PAIRS = [(f"q{i}", f"t{i}") for i in range(8)]


def answered(request, _count):
    return answer_to(request)


def silent(_request, _count):
    return SILENCE


def play(scenario, *scripts, **settings):
    """Runs a scenario with a client of scripted servers; returns what it returns."""

    async def run():
        servers = [ScriptedServer(script) for script in scripts]
        async with asyncio.timeout(GIVE_UP_S), AsyncExitStack() as stack:
            ports = [await stack.enter_async_context(listening(server)) for server in servers]
            hosts = [f"127.0.0.1:{port}" for port in ports]
            async with AsyncQaClient(hosts, **settings) as client:
                return await scenario(client, *servers)

    return asyncio.run(run())


async def until(condition):
    """Lets the loop go on until a condition holds; `play` gives up in the end."""
    while not condition():
        await asyncio.sleep(0)


def test_an_async_answer_equals_the_blocking_clients():
    async def scenario(client, server):
        found = await client.ask("q", "text", top_k=2, priority=1, model="m", version="v")
        [request] = server.requests
        return found, {**request, "id": 0}

    found, request = play(scenario, answered)
    assert (found.answer, found.score, found.start, found.end) == ("text", 0.5, 0, 4)
    assert found.latency_ms > 0
    options = {"top_k": 2, "priority": 1, "model": "m", "version": "v"}
    assert request == {"id": 0, "question": "q", "text": "text", **options}


def test_the_questions_of_all_tasks_are_pipelined_on_one_connection():
    async def scenario(client, server):
        asks = [asyncio.create_task(client.ask(*pair)) for pair in PAIRS]
        await until(lambda: len(server.requests) == len(PAIRS))  # none has been answered
        for request in reversed(server.requests):
            server.send(answer_to(request))
        return [found.answer for found in await asyncio.gather(*asks)], server.connections

    assert play(scenario, silent) == ([text for _, text in PAIRS], 1)


@pytest.mark.parametrize("max_in_flight", [1, 3, 100])
def test_many_are_answered_in_their_order(max_in_flight):
    async def scenario(client, _server):
        return await client.ask_many(PAIRS, max_in_flight=max_in_flight)

    assert [found.answer for found in play(scenario, answered)] == [text for _, text in PAIRS]


def test_requests_in_flight_stay_within_the_bound():
    async def scenario(client, server):
        asks = [asyncio.create_task(client.ask(*pair)) for pair in PAIRS]
        await until(lambda: len(server.requests) == 2)
        server.send(answer_to(server.requests[0]))
        await until(lambda: len(server.requests) == 3)
        for request in server.requests[1:]:
            server.send(answer_to(request))
        server.script = answered
        await asyncio.gather(*asks)

    play(scenario, silent, max_in_flight=2)


def test_a_server_whose_queue_is_full_is_asked_again():
    def full_once(request, count):
        return error_to(request["id"], **FULL) if count == 1 else answer_to(request)

    async def scenario(client, server):
        return (await client.ask("q", "t")).answer, len(server.requests)

    assert play(scenario, full_once) == ("t", 2)


def test_a_lost_connection_is_made_again_and_the_question_asked_again():
    async def scenario(client, server):
        return (await client.ask("q", "t")).answer, server.connections

    assert play(scenario, lambda r, n: None if n == 1 else answer_to(r)) == ("t", 2)


def test_a_link_with_a_close_notice_is_reopened_and_answers_outstanding_requests():
    async def run():
        server = ScriptedServer(silent)
        async with asyncio.timeout(GIVE_UP_S), listening(server) as port:
            terms = Terms(GIVE_UP_S, 1 << 20, None, None)
            link = ServerLink("127.0.0.1", port, terms, lambda: None)

            def ask(name):
                fields = {"question": name, "text": f"{name} text"}
                return asyncio.create_task(
                    link.ask(lambda i: json.dumps({"id": i, **fields}).encode(), decode_reply)
                )

            async with link.kept_open():
                await link.settled()
                first, second = ask("a"), ask("b")
                await until(lambda: len(server.requests) == 2)
                server.send(answer_to(server.requests[1], closing=True))
                assert (await second)["answer"] == "b"
                await until(lambda: link.is_connected)
                third = ask("c")
                await until(lambda: len(server.requests) == 3)
                assert (server.connections, link.in_flight) == (2, 2)
                server.send(answer_to(server.requests[2]))
                assert (await third)["answer"] == "c"
                server.writers[0].write(frame(answer_to(server.requests[0], closing=True)))
                assert (await first)["answer"] == "a"
                await until(lambda: server.ended == 1)

    asyncio.run(run())


def test_a_dead_server_is_not_asked_every_question():
    pairs = iter([("q", f"t{i}") for i in range(1000)])

    async def scenario(client, server):
        results = await client.ask_many(pairs, max_in_flight=1)
        assert all(isinstance(result, QaClientError) for result in results)
        return len(results), server.connections

    assert play(scenario, lambda *_: None) == (1000, 3)


def test_an_unreachable_server_is_an_error():
    async def scenario():
        async with AsyncQaClient("127.0.0.1", reserve_port()) as client:
            await client.connect()

    with pytest.raises(ServerUnreachableError, match="no server can be reached at 127"):
        asyncio.run(scenario())


def test_without_a_thread_for_the_look_up_no_question_waits_for_ever(monkeypatch):
    async def no_thread(*_):
        raise RuntimeError("can't start new thread")

    async def scenario(client, _server):
        with monkeypatch.context() as patch:
            patch.setattr("qa_service.aio.client.asyncio.to_thread", no_thread)
            with pytest.raises(ServerUnreachableError, match="can't start new thread"):
                await client.ask("q", "t")
        return (await client.ask("q", "t")).answer

    assert play(scenario, answered) == "t"


def test_a_silent_server_is_given_up():
    async def scenario(client, server):
        with pytest.raises(RequestTimeoutError):
            await client.ask("q", "t")
        server.script = answered
        return (await client.ask("q", "t")).answer, server.connections

    assert play(scenario, silent, timeout_s=0.1) == ("t", 2)


@pytest.mark.parametrize("reply", [{"id": 10**9}, b"\xff"])
def test_a_malformed_reply_closes_the_connection(reply):
    async def scenario(client, server):
        with pytest.raises(ProtocolError):
            await client.ask("q", "t")
        return (await client.ask("q", "t")).answer, server.connections

    assert play(scenario, lambda r, n: reply if n == 1 else answer_to(r)) == ("t", 2)


def test_a_server_without_tls_is_not_trusted():
    def talk_in_clear(reader, writer):
        writer.write(b"this is no TLS")

    async def run():
        async with await asyncio.start_server(talk_in_clear, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            async with AsyncQaClient("127.0.0.1", port, tls=tls_context()) as client:
                with pytest.raises(TlsError):
                    await client.ask("q", "t")

    asyncio.run(run())


def test_a_cancelled_question_is_withdrawn():
    async def scenario(client, server):
        asking = asyncio.create_task(client.ask("q", "t"))
        await until(lambda: server.requests)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: len(server.requests) == 2)
        asked, withdrawn = server.requests
        assert withdrawn == {"type": "cancel", "id": asked["id"]}
        server.send(error_to(asked["id"], "cancelled"))
        server.script = answered
        return (await client.ask("q", "t2")).answer, server.connections

    assert play(scenario, silent) == ("t2", 1)


def test_cancelling_many_cancels_each():
    async def scenario(client, server):
        asking = asyncio.create_task(client.ask_many(PAIRS))
        await until(lambda: len(server.requests) == len(PAIRS))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: len(server.requests) == 2 * len(PAIRS))
        asked, withdrawn = server.requests[: len(PAIRS)], server.requests[len(PAIRS) :]
        assert {its["id"] for its in withdrawn} == {its["id"] for its in asked}

    play(scenario, silent)


def test_cancelling_one_connecting_call_keeps_the_connection_for_others():
    async def scenario(client, server):
        first, second = (asyncio.create_task(client.ask("q", f"t{i}")) for i in range(2))
        await until(lambda: client._connections)
        first.cancel()
        found = await second
        assert first.cancelled()
        return found.answer, server.connections

    assert play(scenario, answered) == ("t1", 1)


def test_closing_fails_requests_in_flight_without_retry():
    async def scenario(client, server):
        asking = asyncio.create_task(client.ask("q", "t"))
        await until(lambda: server.requests)
        await client.close()
        with pytest.raises(QaClientError, match="closed"):
            await asking
        server.script = answered
        return (await client.ask("q", "t")).answer, len(server.requests)

    assert play(scenario, silent) == ("t", 2)


def test_closing_while_connecting_is_not_a_cancellation():
    async def scenario(client, _server):
        asking = asyncio.create_task(client.ask("q", "t"))
        await until(lambda: client._connections)
        await client.close()
        with pytest.raises(QaClientError, match="closed"):
            await asking

    play(scenario, answered)


@pytest.mark.parametrize("number", [0, -1])
def test_a_bound_of_zero_requests_in_flight_is_refused(number):
    with pytest.raises(ValueError, match="at least 1"):
        AsyncQaClient(max_in_flight=number)
    with pytest.raises(ValueError, match="at least 1"):
        asyncio.run(AsyncQaClient().ask_many(PAIRS, max_in_flight=number))


def test_the_asyncio_client_runs_on_uvloop():
    """Which uvicorn takes where it is installed; its transports are no `asyncio.Transport`."""
    uvloop = pytest.importorskip("uvloop", reason="no uvloop: pip install '.[peers]'")

    async def run():
        async with (
            asyncio.timeout(GIVE_UP_S),
            listening(ScriptedServer(answered)) as port,
            AsyncQaClient(f"127.0.0.1:{port}") as client,
        ):
            return (await client.ask("q", "t")).answer

    assert uvloop.run(run()) == "t"
