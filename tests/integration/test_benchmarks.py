"""The parts that every benchmark stands on: the generator, the wires, the texts, the tables."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

import qa_service
from benchmarks.generator import Generator, Probe, ask
from benchmarks.tables import markdown, percentile, spread
from benchmarks.texts import LONG_TEXT_WORDS, mixed, uniform
from benchmarks.wires import Frames, Http
from qa_service.squad import read_squad
from tests.running_server import running_server

FRAMES = Frames()
QUESTIONS = read_squad(Path(qa_service.__file__).parent / "data" / "questions.json")
REPLY = b'{"answer": "Ada", "start": 0, "end": 3}'


@pytest.fixture(scope="module")
def server(builtin_model):
    with running_server(builtin_model, "--inference_engine_type", "instant") as server:
        yield server


def test_a_counted_load_asks_each_request_in_its_turn(server):
    requests = [FRAMES.encode("Who?", f"Ada {number}") for number in range(10)]
    load = Generator(server.port, FRAMES, requests, first=5).run_count(4, 40)
    assert Counter(sample.index for sample in load.samples) == dict.fromkeys(range(10), 4)
    assert load.num_failed == 0
    assert all(sample.started_s < sample.ended_s for sample in load.samples)


def test_a_timed_load_measures_its_window_and_probes_beside(server):
    probe = Probe(FRAMES.message(b'{"type":"health"}'), interval_s=0.01)
    generator = Generator(server.port, FRAMES, [FRAMES.encode("Who?", "Ada did.")])
    load = generator.run(3, warmup_s=0.05, duration_s=0.3, probe=probe)
    start_s, end_s = load.window_s
    assert end_s - start_s == pytest.approx(0.3)
    within = [sample for sample in load.samples if start_s <= sample.ended_s < end_s]
    assert load.throughput_per_s == pytest.approx(len(within) / 0.3)
    assert 0 < load.cpu_share < 1.5
    assert 1 <= len(load.probe_latencies_ms()) <= 31
    assert all(probe.is_answer for probe in load.probes)


def test_an_error_is_counted_as_failed(server):
    load = Generator(server.port, FRAMES, [FRAMES.encode("", "no question")]).run_count(1, 5)
    assert load.num_failed == 5
    assert load.latencies_ms() == []


def test_a_reply_says_what_was_answered(server):
    reply = ask(server.port, FRAMES, FRAMES.encode("Who?", " Ada did."))
    assert FRAMES.span(reply) == ("Ada", 1, 4)


@pytest.mark.parametrize(
    ("wire", "reply"),
    [
        (FRAMES, FRAMES.message(REPLY)),
        (Http("/"), b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(REPLY), REPLY)),
    ],
)
def test_a_reply_ends_where_it_ends(wire, reply):
    assert [wire.end(reply[:size]) for size in range(len(reply))] == [0] * len(reply)
    assert wire.end(reply + b"the next") == len(reply)
    assert wire.is_answer(reply)
    assert wire.span(reply) == ("Ada", 0, 3)


def test_http_errors_are_no_answers():
    assert not Http("/").is_answer(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")


def test_every_ten_of_the_mix_hold_the_same_work():
    items = mixed(QUESTIONS)
    assert sorted(item.question for item in items) == sorted(q.question for q in QUESTIONS)
    for first in range(0, len(items) // 10 * 10, 10):
        kinds = Counter(item.kind for item in items[first : first + 10])
        assert kinds == {"sentence": 5, "paragraph": 4, "long": 1}
    assert {len(i.text.split()) for i in items if i.kind == "long"} == {LONG_TEXT_WORDS}
    assert items == mixed(QUESTIONS)


def test_a_sentence_holds_its_answer():
    answers = {question.question: question.answers for question in QUESTIONS}
    sentences = [item for item in mixed(QUESTIONS) if item.kind == "sentence"]
    assert all(answers[item.question][0] in item.text for item in sentences)


def test_uniform_texts_are_the_paragraphs():
    asked = {(item.question, item.text) for item in uniform(QUESTIONS)}
    assert asked == {(question.question, question.context) for question in QUESTIONS}


def test_medians_stand_with_their_spread():
    assert spread([3.0, 1.0, 2.0]) == "2.0 (1.0-3.0)"
    assert spread([1.234], digits=2) == "1.23"
    assert spread([math.nan]) == "-"
    assert percentile(list(range(1, 101)), 99) == 99
    assert markdown(["a", "b"], [["x", 1]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"
