"""Workers that die, in every way a process can, in the middle of a batch."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import ExitStack

import pytest

from harness.disturbances import kill_workers, load_during
from harness.frames import frame
from harness.load import assert_all_right
from harness.process import num_descriptors, wait_until
from harness.questions import ASK, FIRST_WORD
from harness.server import FIXED_ENGINE, INSTANT, running_server
from tests.fault.faults import ONE_SESSION, marked, replies_by_id, send_one_batch, stopped
from tests.integration.test_health import query

DEADLY = ["!!kill!!", "!!segfault!!", "!!sigterm!!", "!!exit!!", "!!sys_exit!!", "!!abort!!"]


@pytest.mark.soak
def test_a_worker_killed_every_second_under_fifty_clients(builtin_model):
    """In short; `python -m benchmarks.fault kill` does it for a minute.

    Batches are small, so that even on a slow machine the retries of one kill are over before the
    next: a request that three kills meet is rightly answered `worker_crashed`.
    """
    killed = []
    # What is fastest is measured anew for each bound on batches.
    with running_server(builtin_model, *FIXED_ENGINE, "--max_batch_size", "2") as server:
        killing = kill_workers(server, killed, interval_s=1, wait_until_whole=True)
        report = load_during(killing, server, num_clients=50, duration_s=8)
        assert server.wait() == 0, server.log
    print(f"\n{len(killed)} workers killed\n{report}")
    assert len(killed) >= 3
    assert_all_right(report)


@pytest.mark.parametrize("marker", DEADLY)
def test_a_request_that_kills_three_workers_takes_nobody_with_it(faulty_server, marker):
    neighbours = [{"id": i, **ASK} for i in range(6)]
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        send_one_batch(server, sock, *neighbours[:3], marked(marker, "guilty"), *neighbours[3:])
        replies = replies_by_id(sock, 7)
        guilty = replies.pop("guilty")["error"]
        assert (guilty["code"], guilty["retryable"]) == ("worker_crashed", False)
        assert [reply["answer"] for reply in replies.values()] == [FIRST_WORD] * 6
        assert server.log.count("it held 7 requests") == 1
        assert server.log.count("it held 1 request") == 2
        assert server.ask(**ASK)["answer"] == FIRST_WORD


def test_what_lay_ready_behind_a_request_that_kills_is_not_blamed(faulty_server):
    flags = (*ONE_SESSION, "--log_level", "debug")
    with faulty_server(*flags) as server, server.connect() as sock:
        with stopped(server):
            sock.sendall(frame(marked("!!kill!!", "guilty")))
            server.wait_for_queue(sock)
            sock.sendall(b"".join(frame({"id": i, **ASK}) for i in range(3)))
            server.wait_for_log("given to instance", 4)
        replies = replies_by_id(sock, 4)
        assert replies.pop("guilty")["error"]["code"] == "worker_crashed"
        assert [reply["answer"] for reply in replies.values()] == [FIRST_WORD] * 3
        assert server.log.count("it held 4 requests") == 1
        assert server.log.count("it held 1 request") == 2
        assert query(sock, "stats")["counters"]["request_retries_total"] == 2


@pytest.mark.parametrize("marker", ["!!exception!!", "!!memory!!"])
def test_an_exception_fails_its_request_alone_and_costs_no_worker(faulty_server, marker):
    neighbours = [{"id": i, **ASK} for i in range(6)]
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        pids = server.worker_pids()
        send_one_batch(server, sock, *neighbours[:3], marked(marker, "guilty"), *neighbours[3:])
        replies = replies_by_id(sock, 7)
        guilty = replies.pop("guilty")["error"]
        assert (guilty["code"], guilty["retryable"]) == ("internal_error", False)
        assert not any(words in guilty["message"] for words in ("asked", "Memory", "Error", "/"))
        assert [reply["answer"] for reply in replies.values()] == [FIRST_WORD] * 6
        assert server.worker_pids() == pids


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_batch_whose_worker_is_killed_once_is_answered(faulty_server, signum):
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        (pid,) = server.worker_pids()
        with stopped(server):
            sock.sendall(b"".join(frame({"id": i, **ASK}) for i in range(3)))
            server.wait_for_queue(sock)
            os.kill(pid, signum)
        replies = replies_by_id(sock, 3)
        assert [reply["answer"] for reply in replies.values()] == [FIRST_WORD] * 3
        assert server.worker_pids() != [pid]


def test_an_idle_worker_that_is_killed_costs_nobody_anything(builtin_model):
    with running_server(builtin_model, *INSTANT, *ONE_SESSION) as server:
        (pid,) = server.worker_pids()
        os.kill(pid, signal.SIGKILL)
        assert server.ask(**ASK)["answer"] == FIRST_WORD
        assert server.worker_pids() != [pid]


def test_a_request_whose_client_has_gone_is_not_retried(faulty_server):
    with faulty_server(*ONE_SESSION) as server, server.connect() as monitor:
        with stopped(server):
            with server.connect() as sock:
                sock.sendall(frame(marked("!!segfault!!", 1)))
                server.wait_for_queue(sock)
            wait_until(
                lambda: query(monitor, "stats"), lambda s: s["gauges"]["connections_open"] == 1
            )
        server.wait_for_log("it held 1 request")
        assert server.ask(**ASK)["answer"] == FIRST_WORD
        assert server.log.count(" ended (") == 1


def test_many_that_kill_do_not_starve_those_that_do_not(faulty_server):
    """Backoff must not turn a few deadly requests into an outage for the others."""
    flags = ("--num_inference_sessions", "2")
    with faulty_server(*flags) as server, server.connect() as sock:
        requests = [marked("!!exit!!", f"deadly {i}") for i in range(3)]
        requests += [{"id": i, **ASK} for i in range(20)]
        sock.sendall(b"".join(map(frame, requests)))
        replies = replies_by_id(sock, 23)
        for i in range(3):
            assert replies[f"deadly {i}"]["error"]["code"] == "worker_crashed"
        assert all(replies[i]["answer"] == FIRST_WORD for i in range(20))


def test_a_session_starts_again_when_there_are_descriptors_again(builtin_model):
    """Clients have taken the last ones, so that a worker's channel cannot be made at first."""
    with running_server(builtin_model, *INSTANT, *ONE_SESSION) as server, ExitStack() as clients:
        pid = server.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (num_descriptors(pid) + 5, hard))
        for _ in range(10):
            clients.enter_context(server.connect())
        server.wait_for_log("cannot accept")
        (worker,) = server.worker_pids()
        os.kill(worker, signal.SIGKILL)
        server.wait_for_log("Too many open files")
        server.wait_for_log("starts again")
        clients.close()
        assert server.ask(**ASK)["answer"] == FIRST_WORD
