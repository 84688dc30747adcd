"""The server from outside: answers, bad input, bounds, start and stop."""

import json
import re
import signal

import pytest

from harness.frames import ANSWER, ASK, FIRST_WORD, QUESTIONS, TEXT, frame, receive
from harness.models import link_model
from harness.mutate import GOLDEN, body_of
from harness.process import held_still, wait_for_end
from harness.server import (
    EXACT_ENGINE,
    INSTANT,
    ONE_BY_ONE,
    ONE_INSTANCE,
    running_server,
)
from qa_service.client import Answer, QaClient
from qa_service.instance.batch_cost import load_costs
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.learned_costs import TABLE_EVERY
from qa_service.instance.reader.reader import Reader
from qa_service.instance.worker_main import load_reader
from qa_service.instance.worker_messages import Setup
from qa_service.wire.messages import Question
from tests.programs import change_reading, fail_to_start
from tests.support import all_of

ONE = ("--num_inference_sessions", "1")


@pytest.fixture
def client(server):
    with server.connect() as sock:
        yield sock


@pytest.fixture
def neighbour(server):
    """Another client, connected all the while; nothing that happens may touch it."""
    with QaClient("localhost", server.port) as other:
        yield other
        assert other.ask(**ASK).answer == ANSWER


@pytest.mark.slow
def test_a_start_estimates_costs_on_a_cpu_and_measures_them_if_asked(quick_model, tmp_path, caplog):
    model = link_model(quick_model, tmp_path / "model", "costs")
    change_reading(model, window_tokens=64, window_overlap_tokens=16)  # which measures less
    caplog.set_level("INFO")

    def load(cost_table):
        """The reader, and whether its costs have been measured."""
        caplog.clear()
        options = InstanceOptions(
            inference_engine_type="onnx", precision="fp32", intra_op_num_threads=1,
            cost_table=cost_table,
        )  # fmt: skip
        reader = load_reader(Setup(str(model), options)).reader
        assert isinstance(reader, Reader)
        return reader, "measuring what batches cost" in caplog.text

    assert not load("auto")[1]
    assert load("measure")[1]
    [table] = (model / "costs").glob("*.json")
    assert load_costs(table).cost_ms(1, 100) > 0
    for cost_table, is_learned in (("auto", True), (str(table), False), ("off", False)):
        reader, is_measured = load(cost_table)
        assert not is_measured
        start = reader.rule.costs
        for _ in range(TABLE_EVERY):
            reader.read([Question("Who?", TEXT)])
        assert (reader.rule.costs != start) == is_learned


def test_int8_serves_the_answers_of_fp32(builtin_model):
    """As engines do in `test_documents.py`."""
    flags = ("--inference_engine_type", "onnx", "--precision", "int8", "--cost_table", "off")
    with (
        running_server(builtin_model, *ONE, *flags) as running,
        QaClient("localhost", running.port) as client,
    ):
        results = client.ask_many([(question, TEXT) for question in QUESTIONS])
        answers = all_of(Answer, results)
        assert [answer.answer for answer in answers] == list(QUESTIONS.values())
        for answer in answers:
            assert TEXT[answer.start : answer.end] == answer.answer
        for word in ("onnx engine in int8", "1 instance on cpu", "builtin", f":{running.port}"):
            assert word in running.ready_line


@pytest.mark.parametrize("case", GOLDEN["requests"], ids=lambda case: case["name"])
def test_golden_request_is_answered_and_the_connection_goes_on(client, neighbour, case):
    client.sendall(frame(body_of(case)) + frame({"id": "after", **ASK}))
    if "cancel" in case:
        assert receive(client)["answer"] == ANSWER
        return
    first, second = sorted((receive(client), receive(client)), key=lambda r: r["id"] == "after")
    assert second["answer"] == ANSWER
    expected = case.get("error") or case["expect"]
    assert first["id"] == json.loads(expected["id"])
    if "error" in case:
        assert first["error"]["code"] == expected["code"]
    elif query_type := expected.get("type"):
        assert first.keys() == {"id", query_type}
    elif expected.get("collection"):
        assert first["error"]["code"] == "unknown_collection"
    else:
        text = expected["text"]
        is_unknown = first["start"] is None
        assert first["answer"] == ("" if is_unknown else text[first["start"] : first["end"]])
        assert len(first.get("answers", [])) <= expected["top_k"]


def test_a_thousand_frames_in_one_segment_are_answered(client, neighbour):
    bad = b"".join(frame({"id": i, "question": 5}) for i in range(1000))
    client.sendall(bad + frame({"id": "good", **ASK}))
    assert [receive(client)["id"] for _ in range(1000)] == list(range(1000))
    assert receive(client)["answer"] == ANSWER


@pytest.fixture(scope="class")
def one_by_one(quick_model):
    with running_server(quick_model, *ONE_BY_ONE) as running:
        yield running


@pytest.mark.slow
class TestBounds:
    """Each bound that is a flag, reached."""

    def test_a_cancelled_request_is_not_run_and_the_others_are_answered(self, one_by_one):
        def num_runs():
            return one_by_one.stats()["counters"]["batches_total"]

        before = num_runs()
        with one_by_one.connect() as sock:
            long = frame({"id": "long", **ASK, "text": "The notes are long. " * 150})
            sock.sendall(long)
            assert "answer" in receive(sock)
            runs_of_long = num_runs() - before
            assert runs_of_long > 1
            with held_still(one_by_one.worker_pids()):
                sock.sendall(long + b"".join(frame({"id": i, **ASK}) for i in range(10)))
                sock.sendall(frame({"id": 5, "type": "cancel"}))
                told = receive(sock)
                assert (told["id"], told["error"]["code"]) == (5, "cancelled")
            replies = [receive(sock) for _ in range(10)]
            assert all("answer" in reply for reply in replies)
            assert {reply["id"] for reply in replies} == {"long", *range(10)} - {5}
            assert num_runs() - before == 2 * runs_of_long + 9

    def test_a_request_that_cannot_begin_before_its_deadline_is_refused_at_once(self, one_by_one):
        with one_by_one.connect() as sock:
            long = {"id": "long", "question": "Who wrote the notes?", "text": TEXT * 5}
            hasty = {"id": "hasty", **ASK, "timeout_ms": 1}
            sock.sendall(frame(long) + frame(hasty) + frame({"id": "patient", **ASK}))
            replies = {reply["id"]: reply for reply in (receive(sock) for _ in range(3))}
            assert replies["hasty"]["error"]["code"] == "queue_full"
            assert replies["hasty"]["error"]["retry_after_ms"] >= 1
            assert replies["long"]["answer"]
            assert replies["patient"]["answer"]

    def test_a_long_text_does_not_hold_up_a_short_one(self, quick_model):
        # No limit on time: on a slow, busy machine the long texts take longer than the default.
        flags = (*EXACT_ENGINE, *ONE, "--log_level", "debug", "--request_timeout_ms", "0")
        with (
            running_server(quick_model, *flags) as running,
            running.connect() as reader,
            running.connect() as sock,
        ):
            long = [{"id": f"long {i}", **ASK, "text": TEXT + " Then." * 900} for i in range(2)]
            with held_still(running.worker_pids()):
                reader.sendall(b"".join(map(frame, long)))
                running.wait_for_queue(reader)
                sock.sendall(b"".join(frame({"id": i, **ASK}) for i in range(2)))
                running.wait_for_queue(sock)
            assert sorted(receive(sock)["id"] for _ in range(2)) == [0, 1]
            first, second = receive(reader), receive(reader)
            assert {first["id"], second["id"]} == {"long 0", "long 1"}
            assert first["answer"] == second["answer"] == "Ada Lovelace"
            running.wait_for_log(": answered", times=4)
            ports = re.findall(r"request \S+:(\d+)#\d+: answered", running.log)
            own, other = (str(client.getsockname()[1]) for client in (sock, reader))
            assert ports == [own] * 2 + [other] * 2


@pytest.mark.slow
class TestStartAndStop:
    """What a person at the terminal sees."""

    def test_a_port_in_use_is_one_line(self, server, quick_model):
        ended = fail_to_start("--model", quick_model, "--port", server.port)
        assert ended.stderr.count("\n") == 1
        assert str(server.port) in ended.stderr

    @pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_drains_what_was_accepted(self, quick_model, signum):
        with running_server(quick_model, *INSTANT) as running, running.connect() as sock:
            with held_still(running.worker_pids()):
                sock.sendall(b"".join(frame({"id": i, **ASK}) for i in range(20)))
                running.wait_for_queue(sock)
                running.signal(signum)
                running.wait_for_log("draining")
                sock.sendall(frame({"id": "late", **ASK}))
                late = receive(sock)
                assert (late["id"], late["error"]["code"]) == ("late", "shutting_down")
            answered = [reply["id"] for reply in iter(lambda: receive(sock), None)]
            assert sorted(answered) == list(range(20))
            with pytest.raises(ConnectionRefusedError):
                running.connect()
            assert running.wait() == 0

    def test_a_drain_ends_at_its_timeout(self, quick_model):
        flags = (*ONE_INSTANCE, "--drain_timeout_ms", "1", "--request_timeout_ms", "0")
        with running_server(quick_model, *flags) as running, running.connect() as sock:
            sock.sendall(b"".join(frame({"id": i, **ASK, "text": TEXT * 9}) for i in range(30)))
            replies = running.wait_for_queue(sock)
            running.signal(signal.SIGTERM)
            replies += iter(lambda: receive(sock), None)
            assert sorted(reply["id"] for reply in replies) == list(range(30))
            codes = {reply["error"]["code"] for reply in replies if "error" in reply}
            assert codes == {"shutting_down"}
            assert running.wait() == 0

    def test_a_second_signal_ends_it_now(self, quick_model):
        with running_server(quick_model, *INSTANT) as running, running.connect() as sock:
            with held_still(running.worker_pids()):
                sock.sendall(frame(ASK) * 2)
                running.wait_for_queue(sock)
                running.signal(signal.SIGTERM)
                running.wait_for_log("draining")
                running.signal(signal.SIGTERM)
                assert running.wait() == 0
            assert receive(sock) is None

    def test_signals_for_diagnosis_end_nothing(self, quick_model):
        with running_server(quick_model, *INSTANT) as running:
            for unused in (signal.SIGUSR1, signal.SIGUSR2):
                running.signal(unused)
                running.wait_for_log(f"{unused.name} does nothing")
            running.signal(signal.SIGQUIT)
            running.wait_for_log("most recent call first")
            assert "event_loop.py" in running.log
            assert running.ask(**ASK)["answer"] == FIRST_WORD

    def test_no_worker_outlives_a_killed_server(self, quick_model):
        with running_server(quick_model, *INSTANT, "--num_inference_sessions", "2") as running:
            pids = running.worker_pids()
            assert len(pids) == 2
            running.signal(signal.SIGKILL)
            running.wait()
            wait_for_end(*pids)
