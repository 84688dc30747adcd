"""Jobs while what they pass through dies, is full, or is killed by one of them."""

import asyncio
import json

import pytest

pytest.importorskip("aio_pika", reason="no aio-pika: pip install '.[jobs]'")

from harness.frames import ASK, FIRST_WORD
from harness.jobs import (
    RunningGateway,
    declare,
    depth,
    job,
    metrics_when,
    publish,
    queues_of,
    running_gateway,
    take,
)
from harness.process import reserve_port
from harness.server import INSTANT, RunningServer
from tests.fault.faults import stopped


def marked(marker: str) -> dict:
    return ASK | {"question": f"{marker} {ASK['question']}"}


def named(count: int, body: dict) -> list:
    return [job(f"m{i}", body) for i in range(count)]


async def answers_to(url, queues, count) -> dict[str, dict]:
    """Waits until this many jobs have an answer."""
    answers: dict[str, dict] = {}
    while len(answers) < count:
        for message in await take(url, queues.results_queue, 1):
            answers[message.message_id] = json.loads(message.body)
    return answers


def test_a_text_that_kills_workers_is_dead_lettered_and_its_neighbours_are_answered(
    rabbit, faulty_server
):
    queues = queues_of("poison")
    jobs = [*named(10, ASK), job("poison", marked("!!kill!!")), job("last", ASK)]
    with (
        faulty_server("--num_inference_sessions", "1") as server,
        running_gateway(rabbit.url, server.port, queues),
    ):
        asyncio.run(publish(rabbit.url, queues.jobs_queue, jobs))
        answers = asyncio.run(answers_to(rabbit.url, queues, 12))
        [dead] = asyncio.run(take(rabbit.url, queues.dead_queue, 1))
    assert answers.pop("poison")["error"]["code"] == "worker_crashed"
    assert {answer["answer"] for answer in answers.values()} == {FIRST_WORD}
    assert dead.message_id == "poison"
    assert dead.headers["qa-reason"].startswith("worker_crashed")


def test_a_full_server_is_asked_again_until_all_is_answered(rabbit, faulty_server):
    queues, port = queues_of("full"), reserve_port()
    with (
        faulty_server("--num_inference_sessions", "1", "--max_queue_size", "1") as server,
        running_gateway(rabbit.url, server.port, queues, f"--metrics_port={port}"),
    ):
        with stopped(server):
            asyncio.run(publish(rabbit.url, queues.jobs_queue, named(31, ASK)))
            metrics_when(port, lambda lines: "qa_jobs_queue_full_total 0.0" not in lines)
        answers = asyncio.run(answers_to(rabbit.url, queues, 31))
    assert {answer["answer"] for answer in answers.values()} == {FIRST_WORD}
    assert asyncio.run(depth(rabbit.url, queues.retry_queues()[0][0])) == 0
    assert asyncio.run(depth(rabbit.url, queues.dead_queue)) == 0


def test_a_killed_gateway_loses_nothing(rabbit, faulty_server):
    queues = queues_of("killed")
    with faulty_server() as server:
        asyncio.run(declare(rabbit.url, queues))
        asyncio.run(publish(rabbit.url, queues.jobs_queue, named(5, marked("!!slow!!"))))
        gateway = RunningGateway(rabbit.url, server.port, queues)
        try:
            gateway.wait_for_log("taking jobs")
        finally:
            gateway.close()
        with running_gateway(rabbit.url, server.port, queues):
            answers = asyncio.run(answers_to(rabbit.url, queues, 5))
    assert {answer["answer"] for answer in answers.values()} == {FIRST_WORD}


def test_a_dead_servers_jobs_are_answered_once_it_is_back(rabbit, builtin_model, faulty_server):
    queues, port = queues_of("restarted"), str(reserve_port())
    server = RunningServer(builtin_model, *INSTANT, "--port", port)
    gateway = RunningGateway(rabbit.url, int(port), queues)
    try:
        gateway.wait_for_log("taking jobs")
        server.close()
        gateway.wait_for_log("the connection to the server was lost")
        asyncio.run(publish(rabbit.url, queues.jobs_queue, named(5, marked("!!slow!!"))))
        with faulty_server("--port", port):
            answers = asyncio.run(answers_to(rabbit.url, queues, 5))
        gateway.stop()
    finally:
        gateway.close()
        server.close()
    assert {answer["answer"] for answer in answers.values()} == {FIRST_WORD}


def test_a_stopped_gateway_finishes_what_is_in_flight(rabbit, faulty_server):
    queues = queues_of("stopped")
    with faulty_server("--num_inference_sessions", "1") as server:
        with running_gateway(rabbit.url, server.port, queues, "--prefetch=1"):
            asyncio.run(publish(rabbit.url, queues.jobs_queue, named(3, marked("!!slow!!"))))
            asyncio.run(take(rabbit.url, queues.results_queue, 1))
        left = asyncio.run(depth(rabbit.url, queues.jobs_queue))
        done = asyncio.run(depth(rabbit.url, queues.results_queue))
    assert left + done == 2
