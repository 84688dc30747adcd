"""Reloads and drains under load: a deployment that no client notices."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import time

import pytest

from tests.fault.disturbances import load_during, reload_at_random
from tests.fault.faults import ANSWER, ASK, ONE_SESSION, marked
from tests.fault.load import Tally, ask_quietly, play_clients
from tests.fault.process import num_descriptors
from tests.running_server import running_server
from tests.support import frame, receive


def test_reloads_at_random_moments_fail_no_request(builtin_model):
    """In short; `python -m benchmarks.fault_reload` does as many as fit in a time."""
    sent = []
    with running_server(builtin_model) as server:
        reloading = reload_at_random(server, sent, seed=5, most_s=1.5)
        tally = asyncio.run(load_during(reloading, server, num_clients=20, duration_s=8))
        assert server.wait() == 0, server.log
        num_reloads = server.log.count("the reloaded model serves")
    print(f"\n{len(sent)} SIGHUP, {num_reloads} reloads: {tally}")
    assert num_reloads >= 2
    tally.assert_all_right()


@pytest.fixture
def own_model(builtin_model, tmp_path):
    return shutil.copytree(builtin_model, tmp_path / "model")


def test_a_reload_puts_fresh_workers_in_the_place_of_the_old(builtin_model):
    with running_server(builtin_model) as server:
        before = set(server.worker_pids())
        server.signal(signal.SIGHUP)
        server.wait_for_log("the reloaded model serves")
        give_up_s = time.monotonic() + 20
        while before & set(server.worker_pids()) and time.monotonic() < give_up_s:
            assert server.ask(**ASK)["answer"] == ANSWER
        after = set(server.worker_pids())
        assert len(after) == len(before)
        assert not after & before


def test_a_model_that_fails_to_load_leaves_the_old_one_serving_and_says_why(own_model):
    with running_server(own_model) as server:
        pids = server.worker_pids()
        (own_model / "model.onnx").write_bytes(b"not a model")
        server.signal(signal.SIGHUP)
        server.wait_for_log("the old model serves on")
        assert "cannot load model.onnx" in server.log
        assert server.ask(**ASK)["answer"] == ANSWER
        assert server.worker_pids()[:2] == pids


def test_a_worker_killed_while_it_reloads_leaves_the_old_model_serving(builtin_model):
    with running_server(builtin_model, *ONE_SESSION) as server:
        (old,) = server.worker_pids()
        server.signal(signal.SIGHUP)
        server.wait_for_log("reloading the model")
        while not (fresh := [pid for pid in server.worker_pids() if pid != old]):
            pass
        os.kill(fresh[0], signal.SIGKILL)
        server.wait_for_log("the old model serves on")
        assert server.ask(**ASK)["answer"] == ANSWER


def test_a_reload_for_which_descriptors_are_short_can_be_asked_for_again(builtin_model):
    with running_server(builtin_model) as server:
        pid = server.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (num_descriptors(pid), limits[1]))
        server.signal(signal.SIGHUP)
        server.wait_for_log("the old model serves on: a session cannot be started")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert server.ask(**ASK)["answer"] == ANSWER
        server.signal(signal.SIGHUP)
        server.wait_for_log("the reloaded model serves")


def test_a_batch_under_way_when_the_model_changes_is_answered(faulty_server):
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        server.signal(signal.SIGHUP)
        sock.sendall(b"".join(frame(marked("!!slow!!", i)) for i in range(16)))
        replies = [receive(sock) for _ in range(16)]
        assert {reply["answer"] for reply in replies} == {ANSWER}


def test_a_stop_under_load_leaves_no_accepted_request_unanswered(builtin_model):
    """A request that comes too late is told so, or its connection is closed unread."""

    async def load_and_stop(server):
        questions, tally = ask_quietly(server.port), Tally()
        loading = asyncio.create_task(play_clients(server.port, 30, 10, questions, tally))
        await asyncio.sleep(1.5)
        stopped_s = time.perf_counter()
        server.signal(signal.SIGTERM)
        for client in await loading:
            await client.wait_for_end()
        return tally, stopped_s

    with running_server(builtin_model) as server:
        tally, stopped_s = asyncio.run(load_and_stop(server))
        assert server.wait() == 0, server.log
    print(f"\n{tally}")
    assert tally.right > 0
    assert tally.wrong == tally.doubled == 0
    assert set(tally.errors) <= {"shutting_down"}
    assert all(since_s > stopped_s for since_s in tally.lost_since_s)
    assert tally.right + tally.errors.total() + tally.lost == tally.sent


def test_requests_that_have_come_and_not_been_taken_are_told_of_a_stop(faulty_server):
    flags = ("--max_in_flight_per_connection", "1", *ONE_SESSION)
    with faulty_server(*flags) as server, server.connect() as sock, server.connect() as other:
        requests = [marked("!!slow!!", "slow"), *({"id": i, **ASK} for i in range(40))]
        sock.sendall(b"".join(map(frame, requests)))
        server.wait_for_queue(other)
        server.signal(signal.SIGTERM)
        replies = {reply["id"]: reply for reply in iter(lambda: receive(sock), None)}
        assert replies.pop("slow")["answer"] == ANSWER
        assert len(replies) == 40
        assert {reply["error"]["code"] for reply in replies.values()} == {"shutting_down"}
        assert server.wait() == 0


def test_a_stop_in_the_middle_of_a_reload_ends_cleanly(builtin_model):
    with running_server(builtin_model) as server:
        server.signal(signal.SIGHUP)
        server.wait_for_log("reloading the model")
        assert server.ask(**ASK)["answer"] == ANSWER
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.log
        assert "QA server stopped." in server.process.stdout.read()
