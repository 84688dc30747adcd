"""Reloads and drains under load: a deployment that no client notices."""

import json
import os
import random
import resource
import signal
import time
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection

import pytest

from harness.frames import ANSWER, ASK, FIRST_WORD, frame, receive
from harness.load import QuietAnswers, assert_all_right, under_load
from harness.models import replace_file
from harness.process import GIVE_UP_S, held_still, num_descriptors, wait_until
from harness.server import EXACT_ENGINE, FIXED_ENGINE, INSTANT, running_server
from qa_service.programs.load.plan import Report
from tests.fault.faults import ONE_SESSION, marked, stopped
from tests.http_calls import tensors

NUM_RELOADS = 4
TOO_LATE = {"connection_lost", "server_unreachable"}


@pytest.mark.soak
def test_reloads_at_random_moments_fail_no_request(builtin_model):
    """In short; `python -m benchmarks.fault reload` does as many as fit in a time."""
    moments = random.Random(5)
    with (
        running_server(builtin_model, *EXACT_ENGINE) as server,
        under_load(QuietAnswers(server.port).plan(20, duration_s=GIVE_UP_S)) as samples,
    ):
        for number in range(1, NUM_RELOADS + 1):
            server.signal(signal.SIGHUP)
            time.sleep(moments.uniform(0, 0.5))
            server.signal(signal.SIGHUP)  # before it is done, or behind it
            server.wait_for_log("the reloaded model serves", number)
    report = Report.of(samples)
    print(f"\n{report}")
    assert_all_right(report)


def test_two_generations_of_instances_live_at_most(faulty_server):
    """While the old one finishes what it runs, which is answered, a further reload waits."""
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        sock.sendall(b"".join(frame(marked("!!slow!!", i)) for i in range(3)))
        server.wait_for_queue(sock)
        most = 0
        for reloads in range(1, 4):
            server.signal(signal.SIGHUP)
            while server.log.count("the reloaded model serves") < reloads:
                most = max(most, len(server.worker_pids()))
                assert server.health()["ready"]
                assert server.ask(**ASK)["answer"] == FIRST_WORD
        assert 1 <= most <= 2
        assert {receive(sock)["answer"] for _ in range(3)} == {FIRST_WORD}
        assert server.stats()["counters"]["session_restarts_total"] == 0


def test_a_worker_is_replaced_though_the_manifest_changed_and_a_reload_is_called_for(own_model):
    """A manifest that changed on disk is deployed by a reload, not by a worker's death."""
    with running_server(own_model, *FIXED_ENGINE, "--num_inference_sessions", "2") as server:
        manifest = own_model / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"temperature": ', '"temperature": 1'))
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        server.wait_for_log("has changed since its model was loaded; a reload (SIGHUP)")
        assert server.ask(**ASK)["answer"] == ANSWER
        server.signal(signal.SIGHUP)
        server.wait_for_log("the reloaded model serves")
        assert server.ask(**ASK)["answer"] == ANSWER


def test_a_model_that_fails_to_load_leaves_the_old_one_serving_and_says_why(own_model):
    # The engine that reads the file which is broken.
    with running_server(own_model, *FIXED_ENGINE, *ONE_SESSION) as server:
        pids = server.worker_pids()
        replace_file(own_model / "model.onnx", b"not a model")
        server.signal(signal.SIGHUP)
        server.wait_for_log("the old model serves on")
        server.wait_for_log("model.onnx is not what its manifest says")
        assert server.ask(**ASK)["answer"] == ANSWER
        assert server.worker_pids()[:2] == pids


def test_a_reload_that_lacked_descriptors_can_be_repeated(builtin_model):
    with running_server(builtin_model, *INSTANT) as server:
        pid = server.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (num_descriptors(pid) + 1, limits[1]))
        server.signal(signal.SIGHUP)
        server.wait_for_log("the old model serves on: an instance cannot be started")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert server.ask(**ASK)["answer"] == FIRST_WORD
        server.signal(signal.SIGHUP)
        server.wait_for_log("the reloaded model serves")


@pytest.mark.soak
def test_a_stop_under_load_leaves_no_accepted_request_unanswered(builtin_model):
    """A request that comes too late is refused, or its connection is closed unread."""
    with (
        running_server(builtin_model, *EXACT_ENGINE) as server,
        under_load(QuietAnswers(server.port).plan(30, duration_s=GIVE_UP_S)) as samples,
    ):
        wait_until(lambda: len(samples) >= 100)  # the load is in a thread
        stopped_s = time.perf_counter()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.log
    report = Report.of(samples)
    print(f"\n{report}")
    assert report.num_answered > 0
    assert set(report.errors) <= {"shutting_down", *TOO_LATE}
    assert all(s.started_s > stopped_s for s in samples if s.error_code in TOO_LATE)


def test_requests_received_but_not_accepted_before_a_stop_get_shutting_down(faulty_server):
    flags = ("--max_in_flight_per_connection", "1", *ONE_SESSION)
    with faulty_server(*flags) as server, server.connect() as sock, server.connect() as other:
        requests = [marked("!!slow!!", "slow"), *({"id": i, **ASK} for i in range(40))]
        with stopped(server):
            sock.sendall(b"".join(map(frame, requests)))
            server.wait_for_queue(other)
            server.signal(signal.SIGTERM)
            server.wait_for_log("draining")
        replies = {reply["id"]: reply for reply in iter(lambda: receive(sock), None)}
        assert replies.pop("slow")["answer"] == FIRST_WORD
        assert len(replies) == 40
        assert {reply["error"]["code"] for reply in replies.values()} == {"shutting_down"}
        assert server.wait() == 0


def test_a_stop_in_the_middle_of_a_reload_ends_cleanly(builtin_model):
    with running_server(builtin_model, *INSTANT) as server:
        server.signal(signal.SIGHUP)
        server.wait_for_log("reloading the model")
        assert server.ask(**ASK)["answer"] == FIRST_WORD
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.log
        assert "QA server stopped." in server.process.stdout.read()


class TestHttpDrain:
    """Connections that are kept alive, at a server that drains."""

    def ask(self, connection):
        connection.request("POST", "/qa", json.dumps(ASK))

    def reply(self, connection):
        """The status, and what it says of the connection."""
        reply = connection.getresponse()
        reply.read()
        return reply.status, reply.headers["Connection"]

    @contextmanager
    def connected(self, server, number):
        with ExitStack() as stack:
            made = [HTTPConnection("localhost", server.port, GIVE_UP_S) for _ in range(number)]
            for connection in made:
                stack.callback(connection.close)
                connection.connect()
            yield made

    def test_each_connection_is_closed_behind_its_next_answer(self, faulty_server):
        flags = (*ONE_SESSION, "--log_level", "debug")
        with faulty_server(*flags) as server, self.connected(server, 3) as made:
            asking, late, several = made
            self.ask(late)
            assert self.reply(late) == (200, None)
            with held_still(server.worker_pids()):
                self.ask(asking)
                server.wait_for_log("received", 2)
                server.signal(signal.SIGTERM)
                server.wait_for_log("draining:")
                self.ask(late)
                inputs = tensors(question=["Who?"] * 3, text=["It was Ada."] * 3)
                several.request("POST", "/v2/models/builtin/infer", json.dumps({"inputs": inputs}))
                assert self.reply(late) == (503, "close")
                assert self.reply(several) == (503, "close")
            assert self.reply(asking) == (200, "close")
            assert server.wait() == 0

    def test_drain_delay_serves_on_and_reports_not_ready(self, faulty_server):
        flags = ("--drain_delay_ms", "600000")
        with faulty_server(*ONE_SESSION, *flags) as server, self.connected(server, 2) as made:
            before, idle = made
            server.signal(signal.SIGTERM)
            server.wait_for_log("draining")
            self.ask(before)
            assert self.reply(before) == (200, "close")
            with self.connected(server, 2) as (after, monitor):
                self.ask(after)
                assert self.reply(after) == (200, "close")
                monitor.request("GET", "/v2/health/ready")
                assert self.reply(monitor) == (503, None)
                monitor.request("GET", "/v2/health/live")
                assert self.reply(monitor) == (200, None)
            self.ask(idle)
            assert self.reply(idle) == (200, "close")
            server.signal(signal.SIGTERM)
            assert server.wait() == 0

    def test_idle_connections_are_closed_when_it_refuses(self, faulty_server):
        flags = ("--drain_delay_ms", "300")
        with (
            faulty_server(*ONE_SESSION, *flags) as server,
            server.connect() as busy,
            server.connect() as idle,
        ):
            with held_still(server.worker_pids()):
                busy.sendall(b"".join(frame({"id": i, **ASK}) for i in range(4)))
                server.wait_for_queue(busy)
                server.signal(signal.SIGTERM)
                assert receive(idle) is None
                assert server.health()["phase"] == "draining"
                assert server.ask(**ASK)["error"]["code"] == "shutting_down"
            assert {receive(busy)["answer"] for _ in range(4)} == {FIRST_WORD}
            assert receive(busy) is None
            assert server.wait() == 0
