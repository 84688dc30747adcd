"""Workers that die, in every way a process can, in the middle of a batch."""

import os
import re
import resource
import signal
from contextlib import ExitStack, closing

import pytest

from harness.frames import ASK, FIRST_WORD, frame
from harness.load import QuietAnswers, assert_all_right, under_load
from harness.process import GIVE_UP_S, num_descriptors, wait_until
from harness.server import FIXED_ENGINE, INSTANT, RunningServer, running_server
from qa_service.programs.load.plan import Report
from qa_service.server.instances.pool import MAX_FAILED_STARTS
from tests.fault.faults import (
    ONE_SESSION,
    Permits,
    error_among_neighbours,
    fresh_worker,
    marked,
    replies_by_id,
    stopped,
)
from tests.integration.test_health import query

NUM_KILLS = 4
TWO = ("--num_inference_sessions", "2")
DEADLY = ["!!kill!!", "!!segfault!!", "!!sigterm!!", "!!exit!!", "!!sys_exit!!", "!!abort!!"]


@pytest.mark.soak
def test_workers_killed_under_fifty_clients_lose_no_request(quick_model):
    """In short; `python -m benchmarks.fault kill` does it for a minute.

    A request that three kills meet is rightly answered `worker_crashed`: so before the next, all
    workers are there again, and more requests are answered than were in flight.
    """
    num_clients = 50
    # The fastest engine is measured again for each bound on batches.
    with running_server(quick_model, *FIXED_ENGINE, "--max_batch_size", "2") as server:
        num_ready = server.log.count("is ready")
        plan = QuietAnswers(server.port).plan(num_clients, GIVE_UP_S)
        with under_load(plan) as samples:
            for number in range(1, NUM_KILLS + 1):
                before = len(samples)
                wait_until(lambda before=before: len(samples) - before > num_clients)
                os.kill(server.worker_pids()[0], signal.SIGKILL)
                server.wait_for_log("is ready", num_ready + number)
    report = Report.of(samples)
    print(f"\n{report}")
    assert_all_right(report)


def kill_starts(server, old):
    """Kills serving workers, and then as many of their starts as would be too many failed ones."""
    seen = set(old)
    for pid in old:
        os.kill(pid, signal.SIGKILL)
    for _ in range(len(old) * (MAX_FAILED_STARTS + 1)):
        fresh = fresh_worker(server, sorted(seen))
        seen.add(fresh)
        os.kill(fresh, signal.SIGKILL)


def test_workers_and_their_starts_killed_under_twenty_clients_lose_no_request(quick_model):
    with running_server(quick_model, *INSTANT, *TWO) as server:
        with under_load(QuietAnswers(server.port).plan(20, GIVE_UP_S)) as samples:
            wait_until(lambda: len(samples) >= 40)
            kill_starts(server, server.worker_pids())
            before = len(samples)
            wait_until(lambda: len(samples) >= before + 100)
        assert_all_right(Report.of(samples))
        assert server.process.poll() is None
        assert "cannot start" not in server.log


def test_a_server_whose_first_starts_are_killed_is_live_and_serves_later(quick_model, tmp_path):
    permits = Permits(tmp_path, 0)
    server = RunningServer(quick_model, *INSTANT, *ONE_SESSION, env=permits.env, is_ready=False)
    with closing(server):
        kill_starts(server, wait_until(server.worker_pids))
        health = server.health()
        assert (health["live"], health["ready"]) == (True, False)
        permits.give()
        assert wait_until(lambda: server.health()["ready"])
        assert server.ask(**ASK)["answer"] == FIRST_WORD


@pytest.mark.parametrize("marker", DEADLY)
def test_a_request_that_kills_three_workers_fails_alone(faulty_server, marker):
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        guilty = error_among_neighbours(server, sock, marker)
        assert (guilty["code"], guilty["retryable"]) == ("worker_crashed", False)
        server.wait_for_log("it held 7 requests")
        assert server.log.count("it held 7 requests") == 1
        server.wait_for_log("it held 1 request", times=2)
        assert server.log.count("it held 1 request") == 2
        assert server.ask(**ASK)["answer"] == FIRST_WORD


def test_a_workers_death_is_noticed_while_a_fork_of_it_lives(faulty_server):
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        guilty = error_among_neighbours(server, sock, "!!fork!!")
        assert guilty["code"] == "worker_crashed"
        server.wait_for_log("forked", times=3)
        forks = [int(pid) for pid in re.findall(r"forked (\d+)", server.log)]
        assert len(forks) == 3
        for pid in forks:
            os.kill(pid, signal.SIGKILL)  # an error if it did not live any more


def test_a_batch_queued_behind_a_request_that_kills_keeps_its_attempts(faulty_server):
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
        server.wait_for_log("it held 4 requests")
        assert server.log.count("it held 4 requests") == 1
        server.wait_for_log("it held 1 request", times=2)
        assert server.log.count("it held 1 request") == 2
        assert query(sock, "stats")["counters"]["request_retries_total"] == 2


@pytest.mark.parametrize("marker", ["!!exception!!", "!!memory!!"])
def test_an_exception_fails_its_request_alone_and_costs_no_worker(faulty_server, marker):
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        pids = server.worker_pids()
        guilty = error_among_neighbours(server, sock, marker)
        assert (guilty["code"], guilty["retryable"]) == ("internal_error", False)
        assert not any(words in guilty["message"] for words in ("asked", "Memory", "Error", "/"))
        assert server.worker_pids() == pids


def test_a_request_of_a_disconnected_client_is_not_retried(faulty_server):
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
        server.wait_for_log(" ended (")
        assert server.log.count(" ended (") == 1


def test_many_requests_that_kill_workers_do_not_starve_the_others(faulty_server):
    """Backoff must not turn a few deadly requests into an outage for the others."""
    with faulty_server(*TWO) as server, server.connect() as sock:
        requests = [marked("!!exit!!", f"deadly {i}") for i in range(3)]
        requests += [{"id": i, **ASK} for i in range(20)]
        sock.sendall(b"".join(map(frame, requests)))
        replies = replies_by_id(sock, 23)
        for i in range(3):
            assert replies[f"deadly {i}"]["error"]["code"] == "worker_crashed"
        assert all(replies[i]["answer"] == FIRST_WORD for i in range(20))


def test_an_instance_restarts_once_descriptors_are_free(quick_model):
    """Clients have taken the last ones, so that a worker's channel cannot be made at first."""
    with running_server(quick_model, *INSTANT, *ONE_SESSION) as server, ExitStack() as clients:
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
