"""Which engine is taken, without running one: what is measured is given."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from qa_service.data.squad import read_squad
from qa_service.errors import SetupError
from qa_service.repository.findings import keep
from qa_service.repository.manifest import Manifest, ReadingConfig
from qa_service.wire.messages import Task
from qa_service.workers import engine_choice
from qa_service.workers.devices import DeviceAssignment
from qa_service.workers.engine_choice import choose_engine
from qa_service.workers.engine_table import EngineTable, Finding, Measurement
from qa_service.workers.engine_trial import (
    END_S,
    LIMIT_S,
    MIN_ROUNDS,
    QUESTIONS,
    Record,
    bundled_rounds,
    compare,
)
from qa_service.workers.options import InstanceOptions

MANIFEST = Manifest(
    name="tiny",
    source="tiny",
    fingerprint="f",
    files={"model.onnx": "1", "model.int8.onnx": "2"},
    inputs=("input_ids",),
    pad_token_id=0,
    max_sequence_tokens=64,
    can_abstain=False,
    reading=ReadingConfig(),
    versions={},
)
ON_CPU = DeviceAssignment()
MEASURED = (
    {"alone_ms": 20.0, "batched_ms": 20.0, "ratio": 1.0, "num_answers": 200, "num_same": 200},
    {"alone_ms": 10.0, "batched_ms": 10.0, "ratio": 0.5, "num_answers": 200, "num_same": 196},
)
REFERENCE = Finding("onnx", "fp32", **MEASURED[0])
INT8 = Finding("onnx", "int8", **MEASURED[1])


def changed(finding, **values):
    return msgspec.structs.replace(finding, **values)


class Trial:
    """Stands for the instances that are measured: int8 is twice as fast."""

    def __init__(self) -> None:
        self.candidates: list[list[str]] = []

    def __call__(self, candidates):
        self.candidates.append([str(finding) for finding, _ in candidates])
        return [
            changed(finding, **MEASURED[finding.precision == "int8"]) for finding, _ in candidates
        ]


@pytest.fixture(autouse=True)
def _a_small_machine(monkeypatch):
    """Two cores, without bf16, and of the engines ONNX Runtime alone."""
    monkeypatch.setattr(engine_choice.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(engine_choice, "processor", lambda: ("A Processor", frozenset()))
    monkeypatch.setattr(engine_choice, "is_installed", lambda module: module == "onnxruntime")


def choose(folder, trial, manifest=MANIFEST, device=ON_CPU, **options):
    """The options and the table; what the trial found is kept as the server's program keeps it."""
    found = choose_engine(InstanceOptions(**options), device, folder, manifest)
    if isinstance(found, Measurement):
        table = found.table(trial(found.candidates))
        keep(Path(found.path), table)
        found = found.choice(table)
    return found.options, found.table


def taken(options):
    return options.inference_engine_type, options.precision, options.intra_op_num_threads


def test_the_fastest_is_taken_and_found_again(tmp_path):
    trial = Trial()
    options, table = choose(tmp_path, trial)
    assert taken(options) == ("onnx", "int8", 1)
    assert table.reason == "0.50 of the time of onnx fp32, 98.0% of its answers"
    assert choose(tmp_path, trial) == (options, table)
    assert trial.candidates == [["onnx fp32", "onnx int8"]]


def test_what_is_not_there_is_left_out_in_words(tmp_path):
    _, table = choose(tmp_path, Trial())
    assert {str(item): item.failure for item in table.findings if item.failure} == {
        "openvino fp32": "openvino is not installed",
        "openvino bf16": "openvino is not installed",
        "openvino int8": "openvino is not installed",
        "openvino int8_bf16": "openvino is not installed",
        "pytorch bf16": "torch is not installed",
    }
    for words in ("openvino is not installed", "196 of 200  taken", "200 of 200\n"):
        assert words in str(table)


def test_what_depends_on_other_files_is_measured_again(tmp_path):
    trial = Trial()
    choose(tmp_path, trial)
    other = msgspec.structs.replace(MANIFEST, files={**MANIFEST.files, "model.onnx": "3"})
    choose(tmp_path, trial, other)
    choose(tmp_path, trial, min_agreement=0.9)
    assert len(trial.candidates) == 3


def test_a_table_that_cannot_be_read_is_measured_again(tmp_path):
    trial = Trial()
    choose(tmp_path, trial)
    (kept,) = (tmp_path / "costs").iterdir()
    kept.write_bytes(b"{")
    choose(tmp_path, trial)
    assert len(trial.candidates) == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"inference_engine_type": "pytorch", "precision": "bf16", "intra_op_num_threads": 3},
      ("pytorch", "bf16", 3)),
     ({"precision": "fp32"}, ("onnx", "fp32", 1)),
     ({"precision": "int8"}, ("onnx", "int8", 1)),
     ({"precision": "bf16"}, ("onnx", "bf16", 1)),
     ({"inference_engine_type": "tensorrt"}, ("tensorrt", "fp32", 1)),
     ({"inference_engine_type": "instant"}, ("instant", "fp32", 1)),
     ({"device": None}, ("onnx", "fp32", 1))],
)  # fmt: skip
def test_where_there_is_nothing_to_choose_nothing_is_measured(tmp_path, given, expected):
    trial = Trial()
    options, table = choose(tmp_path, trial, **given)
    assert (taken(options), table, trial.candidates) == (expected, None, [])


@pytest.fixture
def only_pytorch(monkeypatch):
    """The manifest of a model that cannot be had in ONNX, where torch is installed."""
    monkeypatch.setattr(engine_choice, "is_installed", lambda module: True)
    without = {"model.onnx": "it cannot be exported"}
    return msgspec.structs.replace(MANIFEST, files={"model.safetensors": "1"}, without=without)


def test_without_an_onnx_file_pytorch_is_taken(tmp_path, only_pytorch):
    trial = Trial()
    options, table = choose(tmp_path, trial, only_pytorch)
    assert (taken(options), table, trial.candidates) == (("pytorch", "fp32", 1), None, [])
    assert taken(choose(tmp_path, trial, only_pytorch, device=None)[0]) == ("pytorch", "fp32", 1)
    named = choose(tmp_path, trial, only_pytorch, inference_engine_type="onnx")[0]
    assert taken(named)[0] == "onnx"  # whose instance then says why not


def test_without_an_onnx_file_pytorch_is_what_answers_are_compared_with(
    tmp_path, only_pytorch, monkeypatch
):
    monkeypatch.setattr(engine_choice, "processor", lambda: ("", frozenset({"avx512_bf16"})))
    trial = Trial()
    _, table = choose(tmp_path, trial, only_pytorch)
    assert trial.candidates == [["pytorch fp32", "pytorch bf16"]]
    failures = {str(item): item.failure for item in table.findings}
    assert failures["openvino int8"] == failures["onnx fp32"] == "it cannot be exported"


def test_two_threads_are_a_candidate_where_every_instance_has_two_cores(tmp_path):
    trial = Trial()
    choose(tmp_path, trial, num_inference_sessions=1)
    choose(tmp_path, trial, num_inference_sessions=1, intra_op_num_threads=2)
    assert trial.candidates == [
        ["onnx fp32", "onnx fp32, 2 threads", "onnx int8", "onnx int8, 2 threads"],
        ["onnx fp32, 2 threads", "onnx int8, 2 threads"],
    ]


def test_a_processor_with_bf16_has_more_candidates(tmp_path, monkeypatch):
    monkeypatch.undo()
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: A Processor\nflags\t\t: fpu amx_bf16\n\nprocessor\t: 1\n")
    monkeypatch.setattr(engine_choice, "CPUINFO", cpuinfo)
    monkeypatch.setattr(engine_choice, "is_installed", lambda module: True)
    _, table = choose(tmp_path, Trial(), num_inference_sessions=100)
    failures = {str(item): item.failure for item in table.findings}
    assert not failures["openvino bf16"]
    for precision in ("int8", "int8_bf16"):
        words = "the model has no model.openvino_int8.onnx"
        assert failures[f"openvino {precision}"] == words
    assert failures["pytorch bf16"] == "the model has no model.safetensors"


def test_a_gpus_candidates_are_others(tmp_path):
    files = {**MANIFEST.files, "model.fp16.onnx": "3"}
    trial = Trial()
    choose(tmp_path, trial, msgspec.structs.replace(MANIFEST, files=files),
           DeviceAssignment("cuda:0"))  # fmt: skip
    assert trial.candidates == [["onnx fp32", "onnx fp16"]]


def test_without_a_measurement_it_is_float32(tmp_path):
    found = choose_engine(InstanceOptions(), ON_CPU, tmp_path, MANIFEST)
    assert taken(found.choice(None).options) == ("onnx", "fp32", 1)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [((REFERENCE, INT8), "onnx int8"),
     ((REFERENCE, changed(INT8, num_same=193)), "onnx fp32"),
     ((REFERENCE, changed(INT8, ratio=0.96)), "onnx fp32"),
     ((REFERENCE, changed(INT8, num_answers=0, num_same=0)), "onnx fp32"),
     ((changed(REFERENCE, may_be_taken=False), changed(INT8, ratio=1.5)), "onnx int8"),
     ((changed(REFERENCE, may_be_taken=False), changed(INT8, num_same=5)), "onnx int8"),
     ((changed(REFERENCE, may_be_taken=False), Finding("onnx", "int8", failure="no")), "None")],
)  # fmt: skip
def test_the_best_agrees_and_is_clearly_faster(findings, expected):
    assert str(EngineTable("a processor", 0.97, findings).best) == expected


class Candidate:
    """Takes so many milliseconds a question, and a share of that in a batch."""

    def __init__(self, ms, *, together=1.0, span=(0, 1), fails_after=None) -> None:
        self.ms, self.together, self.span = ms, together, span
        self.left = fails_after
        self.asked: list[int] = []

    def ask(self, tasks):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise SetupError("its process ended")
        self.asked.append(len(tasks))
        share = 1.0 if len(tasks) == 1 else self.together
        return self.ms * len(tasks) * share, [self.span] * len(tasks)


ROUNDS = [[Task("?", "Tea.")] * 16] * 6


def run(*candidates, names="abcd", may_take_reference=True, elapsed_s=0.0):
    records = [
        Record(Finding(name, "fp32", may_be_taken=bool(number or may_take_reference)), candidate)
        for number, (name, candidate) in enumerate(zip(names, candidates, strict=False))
    ]
    return compare(records, ROUNDS, lambda: None, lambda: elapsed_s)


def test_candidates_are_asked_in_turn_and_compared_round_by_round():
    first, second = run(Candidate(20.0), Candidate(10.0, together=0.5, span=(1, 2)))
    assert (first.ratio, first.num_same, first.num_answers) == (1.0, 96, 96)
    assert (second.alone_ms, second.batched_ms, second.ratio) == (10.0, 5.0, 0.375)
    assert (second.num_same, second.num_answers) == (0, 96)


def test_batches_that_do_not_pay_do_not_count():
    _, second = run(Candidate(20.0), Candidate(10.0, together=4.0))
    assert (second.batched_ms, second.ratio) == (40.0, 0.5)


def test_what_is_too_slow_is_asked_no_further():
    slow = Candidate(19.5)
    _, second = run(Candidate(20.0), slow)
    assert (second.ratio, second.num_answers) == (0.975, 0)
    assert len(slow.asked) == 1 + 9 * MIN_ROUNDS


def test_nothing_is_too_slow_where_the_reference_may_not_be_taken():
    _, second, _ = run(Candidate(20.0), Candidate(30.0), Candidate(25.0), may_take_reference=False)
    assert second.num_answers == 96


def test_after_the_end_what_was_compared_decides():
    reference, second = run(Candidate(20.0), Candidate(10.0), elapsed_s=END_S)
    assert (reference.num_answers, second.num_answers) == (48, 48)


@pytest.mark.parametrize(("names", "asked"), [("abcd", [0, 96, 96]), ("abcc", [96, 0, 96])])
def test_after_the_time_the_fastest_is_asked_and_the_fastest_of_another_kind(names, asked):
    candidates = [Candidate(ms) for ms in (20.0, 10.0, 7.0, 5.0)]
    _, *others = run(*candidates, names=names, elapsed_s=LIMIT_S)
    assert [finding.num_answers for finding in others] == asked


@pytest.mark.parametrize("fails_after", [0, 1, 20])
def test_a_candidate_that_fails_is_left_out_and_says_why(fails_after):
    first, second = run(Candidate(20.0), Candidate(10.0, fails_after=fails_after))
    assert second.failure == "its process ended"
    assert first.num_answers == 96


def test_nothing_can_be_compared_without_the_reference():
    with pytest.raises(SetupError, match="a fp32 cannot run: its process ended"):
        run(Candidate(20.0, fails_after=20), Candidate(10.0))


def test_two_hundred_questions_are_asked_about_texts_of_several_lengths():
    questions = read_squad(QUESTIONS)
    assert len({(item.question, item.context) for item in questions}) == len(questions)
    rounds = bundled_rounds()
    assert sum(map(len, rounds)) >= 200
    assert {len(tasks) for tasks in rounds} == {16}
    three, two, one = (sum(len(task.text) for task in tasks) for tasks in rounds[:3])
    assert 1.5 * one < two < 0.8 * three
