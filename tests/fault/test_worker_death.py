"""Workers that die, in every way a process can, in the middle of a batch."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.fault.killer import load_while_killing
from tests.integration.test_server import ASK, QUESTIONS, TEXT
from tests.running_server import RunningServer, running_server
from tests.support import frame, receive

DEADLY = ["!!kill!!", "!!segfault!!", "!!sigterm!!", "!!exit!!", "!!sys_exit!!", "!!abort!!"]
ONE_SESSION = ("--num_inference_sessions", "1")
ANSWER = QUESTIONS[ASK["question"]]


def marked(marker: str, request_id: object) -> dict:
    return {"id": request_id, "question": f"{marker} {ASK['question']}", "text": TEXT}


def send_one_batch(sock, *requests: dict) -> None:
    """Keeps the only session busy first, so that what follows waits and leaves together."""
    sock.sendall(frame(marked("!!slow!!", "first")))
    RunningServer.wait_for_queue(sock)
    sock.sendall(b"".join(map(frame, requests)))
    assert receive(sock)["id"] == "first"


def replies_by_id(sock, count: int) -> dict:
    replies = [receive(sock) for _ in range(count)]
    by_id = {reply["id"]: reply for reply in replies}
    assert len(by_id) == count
    return by_id


def test_a_worker_killed_every_second_under_fifty_clients(builtin_model):
    """In short; `python -m benchmarks.fault_kill` does it for a minute."""
    with running_server(builtin_model) as server:
        tally, num_killed = asyncio.run(
            load_while_killing(server, 50, duration_s=10, interval_s=1, wait_until_whole=True)
        )
        assert server.wait() == 0, server.log
    print(f"\n{num_killed} workers killed: {tally}")
    assert num_killed >= 3
    tally.assert_all_right()


@pytest.mark.parametrize("marker", DEADLY)
def test_a_request_that_kills_twice_is_found_out_and_takes_nobody_with_it(faulty_server, marker):
    neighbours = [{"id": i, **ASK} for i in range(6)]
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        send_one_batch(sock, *neighbours[:3], marked(marker, "guilty"), *neighbours[3:])
        replies = replies_by_id(sock, 7)
        guilty = replies.pop("guilty")["error"]
        assert (guilty["code"], guilty["retryable"]) == ("worker_crashed", False)
        assert [reply["answer"] for reply in replies.values()] == [ANSWER] * 6
        assert server.log.count("died with 7 requests") == 1
        assert server.log.count("died with 1 requests") == 1
        assert server.ask(**ASK)["answer"] == ANSWER


@pytest.mark.parametrize("marker", ["!!exception!!", "!!memory!!"])
def test_an_exception_fails_its_request_alone_and_costs_no_worker(faulty_server, marker):
    neighbours = [{"id": i, **ASK} for i in range(6)]
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        pids = server.worker_pids()
        send_one_batch(sock, *neighbours[:3], marked(marker, "guilty"), *neighbours[3:])
        replies = replies_by_id(sock, 7)
        guilty = replies.pop("guilty")["error"]
        assert (guilty["code"], guilty["retryable"]) == ("internal_error", False)
        assert not any(words in guilty["message"] for words in ("asked", "Memory", "Error", "/"))
        assert [reply["answer"] for reply in replies.values()] == [ANSWER] * 6
        assert server.worker_pids() == pids


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_batch_whose_worker_is_killed_once_is_answered(faulty_server, signum):
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        send_one_batch(sock, *(marked("!!slow!!", i) for i in range(3)))
        server.wait_for_queue(sock)
        (pid,) = server.worker_pids()
        os.kill(pid, signum)
        replies = replies_by_id(sock, 3)
        assert [reply["answer"] for reply in replies.values()] == [ANSWER] * 3
        assert server.worker_pids() != [pid]


def test_an_idle_worker_that_is_killed_costs_nobody_anything(builtin_model):
    with running_server(builtin_model, *ONE_SESSION) as server:
        (pid,) = server.worker_pids()
        os.kill(pid, signal.SIGKILL)
        assert server.ask(**ASK)["answer"] == ANSWER
        assert server.worker_pids() != [pid]


def test_a_request_whose_client_has_gone_is_not_retried(faulty_server):
    with faulty_server(*ONE_SESSION) as server:
        with server.connect() as sock:
            sock.sendall(frame(marked("!!slow!! !!segfault!!", 1)))
            server.wait_for_queue(sock)
        server.wait_for_log("died with 1 requests")
        assert server.ask(**ASK)["answer"] == ANSWER
        assert server.log.count(" died with ") == 1


def test_many_that_kill_do_not_starve_those_that_do_not(faulty_server):
    """Backoff must not turn a few deadly requests into an outage for the others."""
    with faulty_server() as server, server.connect() as sock:
        requests = [marked("!!exit!!", f"deadly {i}") for i in range(3)]
        requests += [{"id": i, **ASK} for i in range(20)]
        sock.sendall(b"".join(map(frame, requests)))
        replies = replies_by_id(sock, 23)
        for i in range(3):
            assert replies[f"deadly {i}"]["error"]["code"] == "worker_crashed"
        assert all(replies[i]["answer"] == ANSWER for i in range(20))
