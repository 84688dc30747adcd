"""The parts that every benchmark stands on: the load, the peers' wire, the texts, the tables."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

import qa_service
from benchmarks import collection
from benchmarks.load import LONG_TEXT_WORDS, Item, counted, figures, measure, mixed
from benchmarks.record import markdown, percentile, spread
from benchmarks.targets import HttpWire, ours, running
from harness.server import INSTANT
from qa_service.client import ProtocolError
from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.programs.load.plan import Sample
from qa_service.programs.load.wire import Reply
from tests.programs import run_python

QUESTIONS = read_squad(Path(qa_service.__file__).parent / "data" / "questions.json")
REPLY = b'{"answer": "Ada", "start": 0, "end": 3}'
ITEMS = [Item("sentence", "Who?", f"Ada {number}") for number in range(10)]


@pytest.fixture(scope="module")
def target(builtin_model):
    with running(ours("this server", *INSTANT), builtin_model) as server:
        yield server


def test_a_counted_load_asks_each_item_in_its_turn(target):
    samples = counted(target, ITEMS, clients=4, requests_each=10)
    assert Counter(sample.question_index for sample in samples) == dict.fromkeys(range(10), 4)
    ended_s = [sample.ended_s for sample in samples]
    assert ended_s == sorted(ended_s)


def test_a_timed_load_has_figures_of_the_load_and_of_the_server(target):
    found = measure(target, ITEMS, clients=3, warmup_s=0.05, duration_s=0.3, first=5)
    assert found["requests"] > 0
    assert found["throughput"] > 0
    assert found["failed"] == 0
    assert 0 < found["cpu_share"] < 1.5
    assert found["cpu_ms"] >= 0


def test_an_error_is_counted_as_failed(target):
    asked = [Item("sentence", "", "no question")]
    found = measure(target, asked, clients=1, warmup_s=0.0, duration_s=0.1)
    assert found["failed"] > 0
    assert found["throughput"] == found["requests"] == 0
    with pytest.raises(RuntimeError, match="5 requests failed"):
        counted(target, asked, clients=1, requests_each=5)


def test_a_window_counts_by_weight_and_by_kind():
    items = [Item("short", "", "a"), Item("long", "", "b" * 3)]
    samples = [
        Sample(9.0, 500.0, question_index=0),  # begins and ends before it
        Sample(9.9, 200.0, question_index=0),  # begins before, ends within it
        Sample(10.5, 100.0, question_index=1),
        Sample(10.9, 300.0, question_index=1),  # begins within, ends after it
        Sample(10.2, 100.0, "queue_full", 1),
    ]
    found = figures(samples, (10.0, 11.0), items)
    assert found["throughput"] == pytest.approx(2)
    assert found["work"] == pytest.approx(0.5 + 1.5)
    assert (found["requests"], found["failed"]) == (2, 1)
    assert (found["p50"], found["p99"]) == (found["long_p50"], found["long_p99"]) == (100.0, 300.0)
    assert math.isnan(found["short_p50"])


def test_a_target_describes_its_engine_or_its_answers(target):
    reply = target.ask(SquadQuestion("", "Who?", " Ada did.", (), ()))
    assert (reply.answer, reply.start, reply.end) == ("Ada", 1, 4)


class TestHttpWire:
    WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(REPLY), REPLY)

    def test_a_request_is_a_post(self):
        wire = HttpWire("/qa")
        head, _, body = wire.request(1, wire.body(QUESTIONS[0])).partition(b"\r\n\r\n")
        assert head.startswith(b"POST /qa HTTP/1.1\r\n")
        assert head.endswith(b"Content-Length: %d" % len(body))
        asked = {"question": QUESTIONS[0].question, "text": QUESTIONS[0].context}
        assert json.loads(body) == asked

    def test_a_reply_ends_where_it_ends_and_belongs_to_the_first_request(self):
        wire, inbox, found = HttpWire("/"), bytearray(), []
        wire.request(7, b"")
        wire.request(8, b"")
        for byte in self.WHOLE + self.WHOLE:
            inbox.append(byte)
            found += wire.replies(inbox)
        assert found == [Reply(7, "", "Ada", 0, 3), Reply(8, "", "Ada", 0, 3)]
        assert not inbox

    def test_another_status_is_an_error(self):
        wire = HttpWire("/")
        wire.request(1, b"")
        inbox = bytearray(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        assert list(wire.replies(inbox)) == [Reply(1, "http_408")]

    @pytest.mark.parametrize(
        "reply", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{"]
    )
    def test_a_malformed_http_reply_raises_protocol_error(self, reply):
        wire = HttpWire("/")
        wire.request(1, b"")
        with pytest.raises(ProtocolError):
            list(wire.replies(bytearray(reply)))


def test_every_ten_of_the_mix_hold_the_same_work():
    items = mixed(QUESTIONS)
    assert sorted(item.question for item in items) == sorted(q.question for q in QUESTIONS)
    for first in range(0, len(items) // 10 * 10, 10):
        kinds = Counter(item.kind for item in items[first : first + 10])
        assert kinds == {"sentence": 5, "paragraph": 4, "long": 1}
    assert {len(i.text.split()) for i in items if i.kind == "long"} == {LONG_TEXT_WORDS}
    assert items == mixed(QUESTIONS)


def test_medians_stand_with_their_spread():
    assert spread([3.0, 1.0, 2.0]) == "2.0 (1.0-3.0)"
    assert spread([1.234], digits=2) == "1.23"
    assert spread([math.nan]) == "-"
    assert percentile(list(range(1, 101)), 99) == 99
    assert markdown(["a", "b"], [["x", 1]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_a_collection_finds_the_passages_of_the_questions_that_ship(tmp_path, encoder):
    texts = collection.paragraphs([Path(qa_service.__file__).parent / "data" / "questions.json"])
    size = collection.write(
        tmp_path / "texts.jsonl", [(title, text) for text, title in texts.items()]
    )
    numbers = {text: number for number, text in enumerate(texts)}
    indexed, opened = collection.index(tmp_path / "texts.jsonl", tmp_path / "out", size)
    questions = [question for question in QUESTIONS if question.answers]
    searched = collection.search(opened, questions, numbers)
    assert indexed["passages"] >= len(texts)
    assert searched["recall"][20] > 90
    assert searched["recall"][1] <= searched["recall"][5] <= searched["paragraph_recall"][5]


@pytest.mark.long
def test_ten_minutes_on_a_gpu_are_rehearsed_on_the_cpu(builtin_model, tmp_path):
    """So that no minute on a GPU is spent on a fault of the program; what is there is kept."""
    command = ("-m", "benchmarks.gpu", "--rehearse", "--models", builtin_model)
    done = run_python(*command, "--output", tmp_path)
    assert done.returncode == 0, done.stdout
    lines = (tmp_path / "gpu.jsonl").read_text().splitlines()
    found = {line["step"]: line["found"] for line in map(json.loads, lines)}
    assert found["tests"]["exit_code"] == 0
    assert found["start"]["killed"]["right"] == 20
    (cells,) = (one for name, one in found.items() if name.startswith("cells builtin"))
    assert all(one["requests"] > 0 for each in cells["rounds"] for one in each.values())
    assert run_python(*command, "--output", tmp_path).returncode == 0
    assert (tmp_path / "gpu.jsonl").read_text().splitlines() == lines
