"""What a server says of itself, while it is asked too much, stops, hangs or is killed."""

import json
import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from harness.frames import ASK, frame, receive
from harness.process import wait_until
from harness.server import INSTANT, ONE_BY_ONE, running_server
from qa_service.server.scheduling.admission import MAX_RETRY_AFTER_MS
from tests.fault.faults import stopped
from tests.programs import run_python, token_flags
from tests.support import present

pytestmark = pytest.mark.slow

ONE, TWO = ("--num_inference_sessions", "1"), ("--num_inference_sessions", "2")
ALONE = (*INSTANT, "--max_batch_size", "1")
BUSY_AT_ONCE = {"qa_service.server.telemetry.health:READY_TIMEOUT_S": 0.05}
ENDLESS_COSTS = Path(__file__).with_name("endless_costs.json")
NOTHING_AHEAD = (
    *ONE_BY_ONE,
    *("--cost_table", str(ENDLESS_COSTS), "--request_timeout_ms", "0"),
)
"""One instance that is given nothing in advance: its half-time is never thought to come."""
OUTCOMES = {
    *("answered", "invalid_frame", "invalid_request", "duplicate_id", "queue_full"),
    *("question_too_long", "deadline_exceeded", "frame_too_large"),
}


def query(sock, kind):
    sock.sendall(frame({"id": "the query", "type": kind}))
    reply = receive(sock)
    assert reply["id"] == "the query"
    return reply[kind]


def outcome_of(reply):
    return reply["error"]["code"] if "error" in reply else "answered"


def requests(count, **more):
    return [frame({"id": i, **ASK, **more}) for i in range(count)]


def cli(server, *flags):
    return run_python("client.py", "--port", server.port, *flags)


@pytest.fixture(scope="module")
def slow(quick_model):
    """A server whose queue is short, and whose only instance is given nothing in advance."""
    flags = ("--max_queue_size", "8", "--max_in_flight_per_connection", "1000", *NOTHING_AHEAD)
    with running_server(quick_model, *flags, constants=BUSY_AT_ONCE) as running:
        yield running


def outcomes(server):
    return Counter(server.stats()["counters"]["requests_total"])


class TestStats:
    def test_the_counted_outcomes_sum_to_the_requests_sent(self, slow):
        before, seen = outcomes(slow), Counter()
        for load in (
            requests(40),
            [frame(b"junk")] * 3,
            [frame({"id": 1, "question": "q?"}), frame({"type": "weather"})],
            requests(1) * 4,
            requests(1, question="why " * 450),
            [*requests(1), b"\xff" * 4],
        ):
            with slow.connect() as sock:
                sock.sendall(b"".join(load))
                seen.update(outcome_of(receive(sock)) for _ in load)
        with slow.connect() as sock:
            with stopped(slow):
                sock.sendall(frame({"id": 0, **ASK}))
                slow.wait_for_queue(sock)
                sock.sendall(frame({"id": 1, **ASK, "timeout_ms": 20}))
                seen.update(["invalid_frame", outcome_of(receive(sock))])
            seen[outcome_of(receive(sock))] += 1
        assert outcomes(slow) - before == seen
        assert set(seen) == OUTCOMES

    def test_requests_of_clients_that_hang_up_are_abandoned(self, slow):
        before = outcomes(slow)["abandoned"]
        with stopped(slow):
            with slow.connect() as sock:
                sock.sendall(b"".join(requests(5)))
                slow.wait_for_queue(sock)
                gauges = slow.stats()["gauges"]
                assert (gauges["requests_in_flight"], gauges["queue_length"]) == (5, 4)
                assert gauges["connections_open"] == 2
            gone = wait_until(slow.stats, lambda s: s["gauges"]["connections_open"] == 1)
        assert gone["counters"]["requests_total"]["abandoned"] == before + 5
        assert gone["gauges"]["requests_in_flight"] == gone["gauges"]["queue_length"] == 0

    def test_batches_and_their_times_are_counted(self, quick_model):
        flags = (*ONE_BY_ONE, "--max_batch_size", "4")
        with running_server(quick_model, *flags) as running, running.connect() as sock:
            sock.sendall(b"".join(requests(21)))
            inference_ms = [receive(sock)["timings_ms"]["inference"] for _ in range(21)]
            stats = query(sock, "stats")
            histograms = stats["histograms"]
            assert histograms["batch_size"]["sum"] == histograms["queue_ms"]["count"] == 21
            assert histograms["request_ms"]["count"] == 21
            batches = stats["counters"]["batches_total"]
            for name in ("batch_size", "inference_ms", "inference_tokenize_ms"):
                assert histograms[name]["count"] == batches == len(set(inference_ms))
            assert histograms["batch_size"]["max"] == 4
            assert histograms["inference_ms"]["sum"] == pytest.approx(sum(set(inference_ms)))
            stages = ("tokenize", "model", "read")
            told = [histograms[f"inference_{stage}_ms"]["sum"] for stage in stages]
            assert min(told) > 0
            assert sum(told) <= histograms["inference_ms"]["sum"] + 0.01 * batches

    def test_connections_closed_for_new_ones_are_counted(self, quick_model):
        with running_server(quick_model, *INSTANT, "--max_connections", "2") as running:
            first, second = running.connect(), running.connect()
            query(second, "stats")
            assert query(first, "stats")["counters"]["connections_evicted_total"] == 0
            third = running.connect()
            stats = query(third, "stats")
            assert stats["counters"]["connections_accepted_total"] == 3
            assert stats["counters"]["connections_evicted_total"] == 1
            assert second.recv(1) == b""
            queries = stats["counters"]["queries_total"]
            assert {kind: n for kind, n in queries.items() if n} == {"stats": 3}
            first.close()
            third.close()


class TestHealth:
    def test_an_idle_server_is_ready(self, quick_model):
        with (
            running_server(quick_model, *INSTANT, *TWO, constants=BUSY_AT_ONCE) as running,
            running.connect() as sock,
        ):
            health = query(sock, "health")
            assert health.pop("uptime_s") > 0
            assert re.fullmatch(r"\d+\.\d+\.\d+", health.pop("version"))
            assert health == {
                "live": True,
                "ready": True,
                "reason": None,
                "phase": "serving",
                "sessions_alive": 2,
                "sessions_answering": 2,
                "sessions_wanted": 2,
                "queue_length": 0,
                "model": "builtin",
                "models": {"builtin/1": "READY"},
                "failures": {},
                "collections": {},
                "collection_faults": {},
                "reload_fault": None,
            }

    def test_a_full_queue_does_not_delay_health(self, slow):
        slow.ask(**ASK)
        with slow.connect() as sock:
            with stopped(slow):
                sock.sendall(b"".join(requests(12)))
                refused = [receive(sock)["error"] for _ in range(3)]
                assert {error["code"] for error in refused} == {"queue_full"}
                assert all(error["retryable"] for error in refused)
                assert all(1 <= e["retry_after_ms"] <= MAX_RETRY_AFTER_MS for e in refused)
                assert slow.health()["queue_length"] == 8
                assert query(sock, "health")["queue_length"] == 8
            assert [outcome_of(receive(sock)) for _ in range(9)] == ["answered"] * 9
            assert slow.health()["queue_length"] == 0

    def test_a_server_whose_instances_all_hang_is_not_ready(self, slow):
        with slow.connect() as sock:
            with stopped(slow):
                assert slow.health()["ready"]
                sock.sendall(frame(ASK))
                hung = wait_until(slow.health, lambda h: not h["ready"])
                assert hung["reason"] == "no instance has answered for 0.05 s"
                assert (hung["sessions_alive"], hung["sessions_answering"]) == (1, 0)
                # Nobody waits for the answer any more, but the instance still hangs.
                sock.close()
                wait_until(slow.stats, lambda s: s["gauges"]["connections_open"] == 1)
                assert not slow.health()["ready"]
            wait_until(slow.health, lambda h: h["ready"])

    def test_a_server_with_one_answering_instance_is_ready(self, quick_model):
        with (
            running_server(quick_model, *ALONE, *TWO, constants=BUSY_AT_ONCE) as running,
            running.connect() as sock,
        ):
            hung = running.worker_pids()[0]
            os.kill(hung, signal.SIGSTOP)
            sock.sendall(b"".join(requests(2)))
            assert "answer" in receive(sock)
            health = wait_until(running.health, lambda h: h["sessions_answering"] == 1)
            assert health["ready"]
            assert health["sessions_alive"] == 2
            os.kill(hung, signal.SIGCONT)
            assert "answer" in receive(sock)

    def test_a_draining_server_is_live_and_not_ready(self, quick_model):
        with (
            running_server(quick_model, *NOTHING_AHEAD) as running,
            running.connect() as sock,
            running.connect() as monitor,
            running.connect() as late,
        ):
            with stopped(running):
                sock.sendall(b"".join(requests(3)))
                running.wait_for_queue(sock)
                running.signal(signal.SIGTERM)
                running.wait_for_log("draining")
                health = query(monitor, "health")
                assert (health["live"], health["ready"]) == (True, False)
                assert (health["phase"], health["queue_length"]) == ("draining", 2)
                assert health["reason"] == "the server is draining"
                late.sendall(frame(ASK))
                assert outcome_of(receive(late)) == "shutting_down"
                assert receive(late) is None
                assert query(monitor, "stats")["counters"]["requests_total"]["shutting_down"] == 1
            assert [outcome_of(receive(sock)) for _ in range(3)] == ["answered"] * 3
            assert running.wait() == 0

    def test_killed_instances_are_counted_as_missing_until_replaced(self, quick_model):
        with running_server(quick_model, *INSTANT, *TWO) as running:
            for pid in running.worker_pids():
                os.kill(pid, signal.SIGKILL)
            dead = wait_until(running.health, lambda h: h["sessions_alive"] == 0)
            assert (dead["ready"], dead["reason"]) == (False, "no instance is alive")
            assert dead["sessions_wanted"] == 2
            wait_until(running.health, lambda h: h["sessions_alive"] == 2)
            assert running.health()["ready"]
            assert running.stats()["counters"]["session_restarts_total"] == 2

    def test_health_names_the_serving_model(self, own_model):
        file = own_model / "manifest.json"
        manifest = json.loads(file.read_text())
        with running_server(own_model, *INSTANT) as running:
            assert running.health()["model"] == "builtin"
            file.write_text(json.dumps({**manifest, "name": "another"}))
            running.signal(signal.SIGHUP)
            wait_until(lambda: running.health()["model"], lambda name: name == "another")


class TestFromOutside:
    """The client library and `client.py --health`, as a container's health check runs it."""

    def test_health_and_stats_need_the_token(self, quick_model, tmp_path):
        tokens = token_flags(tmp_path, "3bQ1xT0yqWcV7uKfJm2sZg")
        with running_server(quick_model, *INSTANT, *tokens) as running:
            with running.connect() as unauthenticated:
                unauthenticated.sendall(frame({"id": 1, "type": "health"}))
                assert outcome_of(receive(unauthenticated)) == "unauthorized"
                assert receive(unauthenticated) is None
            flags = ("--token_file", tokens[1])
            assert cli(running, "--health", *flags).returncode == 0
            counters = json.loads(cli(running, "--stats", "--json", *flags).stdout)["counters"]
            counted = {code: n for code, n in counters["requests_total"].items() if n}
            assert counted == {"unauthorized": 1}
            assert cli(running, "--health").returncode == 2


class TestLog:
    def test_a_request_can_be_followed_in_the_log_without_its_words(self, quick_model):
        with running_server(quick_model, *INSTANT, "--log_level", "debug") as running:
            running.ask(id="mine", **ASK)
            assert outcome_of(running.ask(id="bad", question=5)) == "invalid_request"
            running.wait_for_log("rejected")
            log = running.log
        told = ("received, its id is b'\"mine\"'", "given to instance", "answered")
        lines = [re.search(rf"request \S+#1: {re.escape(words)}", log) for words in told]
        places = [present(line).start() for line in lines]
        assert places == sorted(places)
        assert "rejected, its id is b'\"bad\"': invalid_request" in log
        assert not any(word in log for word in ("Lovelace", "notes", "1843"))
