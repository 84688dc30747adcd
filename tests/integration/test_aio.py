"""AsyncQaClient and the FastAPI example with real servers."""

import asyncio
import http.client
import json
import os
import signal
import ssl
import sys
from contextlib import ExitStack, contextmanager

import pytest

from harness.frames import ANSWER, ASK
from harness.process import GIVE_UP_S, LoggingProcess, held_still, reserve_port, wait_until
from harness.server import INSTANT, ROOT, running_server
from qa_service.aio import AsyncQaClient
from qa_service.client import QaServerError, TlsError
from tests.http_calls import post
from tests.programs import token_flags

PAIR = (ASK["question"], ASK["text"])
TOKEN = "3bQ1xT0yqWcV7uKfJm2sZg"


def play(scenario, hosts, **settings):
    async def run():
        async with asyncio.timeout(GIVE_UP_S), AsyncQaClient(hosts, **settings) as client:
            return await scenario(client)

    return asyncio.run(run())


def host_of(server):
    return f"localhost:{server.port}"


def cancelled(server):
    return server.stats()["counters"]["requests_total"].get("cancelled", 0)


async def until(condition):
    await asyncio.to_thread(wait_until, condition)


def test_killing_one_of_two_servers_loses_no_question(builtin_model):
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(running_server(builtin_model, *INSTANT)) for _ in range(2)
        )

        async def scenario(client):
            asking = asyncio.create_task(client.ask_many([PAIR] * 400))
            await until(lambda: first.stats()["counters"]["requests_total"].get("answered", 0))
            first.signal(signal.SIGKILL)
            return await asking, await client.ask(*PAIR)

        results, last = play(scenario, [host_of(first), host_of(second)])
    assert not [result for result in [*results, last] if isinstance(result, Exception)]


def test_a_question_cancelled_among_others_is_withdrawn(server):
    before = cancelled(server)

    async def scenario(client):
        with held_still(server.worker_pids()):
            first, *others = (asyncio.create_task(client.ask(*PAIR)) for _ in range(9))
            await until(lambda: server.stats()["gauges"]["requests_in_flight"] == 9)
            first.cancel()
            await until(lambda: cancelled(server) == before + 1)
        return {found.answer for found in await asyncio.gather(*others)}

    assert play(scenario, host_of(server)) == {ANSWER}


def test_asking_over_tls_needs_the_certificate_and_the_token(builtin_model, certificates, tmp_path):
    ca = ("--tls_client_ca", str(certificates.ca))
    flags = (*INSTANT, *certificates.server_flags, *ca, *token_flags(tmp_path, TOKEN))
    with running_server(builtin_model, *flags) as server:

        def ask(tls, token=TOKEN):
            return play(lambda client: client.ask(*PAIR), host_of(server), tls=tls, token=token)

        mine = certificates.client_context(with_certificate=True)
        assert ask(mine).response["id"]
        with pytest.raises(QaServerError, match="unauthorized"):
            ask(mine, token="wrong")
        with pytest.raises(TlsError, match="certificate is not trusted"):
            ask(ssl.create_default_context())
        with pytest.raises(TlsError, match="asks for a client's certificate"):
            ask(certificates.client_context())


@contextmanager
def running_fastapi(server):
    """The example, as its first line says to start it; yields its port."""
    port = reserve_port()
    command = [sys.executable, "-m", "uvicorn", "fastapi_app:app", "--port", str(port)]
    env = {**os.environ, "QA_HOST": host_of(server), "PYTHONPATH": str(ROOT)}
    fastapi = LoggingProcess(command, cwd=ROOT / "examples", env=env)
    try:
        fastapi.wait_for_log("Uvicorn running on")
        yield port
    finally:
        fastapi.close()


def test_fastapi_answers_through_it(server):
    with running_fastapi(server) as port:
        found = post(port, "/ask", ASK).json
        assert found["answer"] == ANSWER == ASK["text"][found["start"] : found["end"]]
        assert post(port, "/ask", {"question": "Who?", "text": " "}).status == 422


def test_a_client_that_leaves_fastapi_has_its_question_dropped(builtin_model):
    with (
        running_server(builtin_model, *INSTANT) as server,
        running_fastapi(server) as port,
        held_still(server.worker_pids()),
    ):
        body = json.dumps(ASK)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/ask", body, {"Content-Type": "application/json"})
        wait_until(lambda: server.stats()["gauges"]["requests_in_flight"] == 1)
        connection.close()
        wait_until(lambda: cancelled(server) == 1)
