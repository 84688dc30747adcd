"""Which engine is taken, without running one: what is measured is given."""

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.models import make_manifest
from qa_service.autotune import candidates
from qa_service.autotune.candidates import choose_engine
from qa_service.autotune.engine_race import MAX_ROUNDS
from qa_service.autotune.engine_table import Choice, EngineTable, Finding, Measurement
from qa_service.autotune.engine_trial import Progress, bundled_rounds
from qa_service.data.squad import AGREEMENT_QUESTIONS, read_squad
from qa_service.instance.devices import DeviceAssignment
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.costs_dir import keep
from qa_service.machine import Processor
from tests.support import FakeClock

MANIFEST = make_manifest("tiny", files={"model.onnx": "1", "model.int8.onnx": "2"})
ON_CPU = DeviceAssignment()
MEASURED: tuple[dict[str, Any], ...] = (
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
        return [changed(one, **MEASURED[one.precision == "int8"]) for one, _ in candidates]


@pytest.fixture
def trial():
    return Trial()


@pytest.fixture(autouse=True)
def _a_small_machine(monkeypatch):
    """Two cores, without bf16, and of the engines ONNX Runtime alone."""
    monkeypatch.setattr(candidates, "num_cpus", lambda: 2)
    monkeypatch.setattr(candidates, "processor", with_flags)
    monkeypatch.setattr(candidates, "is_installed", lambda module: module == "onnxruntime")


def with_flags(*flags):
    return Processor("A Processor", frozenset(flags))


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


def test_the_fastest_is_taken_and_found_again(tmp_path, trial):
    options, table = choose(tmp_path, trial)
    assert taken(options) == ("onnx", "int8", 1)
    assert table.reason == "0.50 of the time of onnx fp32, 98.0% of its answers"
    assert choose(tmp_path, trial) == (options, table)
    assert trial.candidates == [["onnx fp32", "onnx int8"]]


def test_uninstalled_engines_are_left_out_with_the_reason(tmp_path):
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


def test_changed_files_or_another_bound_cause_a_new_measurement(tmp_path, trial):
    choose(tmp_path, trial)
    other = changed(MANIFEST, files={**MANIFEST.files, "model.onnx": "3"})
    choose(tmp_path, trial, other)
    choose(tmp_path, trial, max_batch_size=9)
    assert len(trial.candidates) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept.write_bytes(b"{"),
        lambda kept: kept.write_bytes(b"[" * 100_000),
        lambda kept: kept.write_bytes(kept.read_bytes().replace(b'"int8"', b'"int3"')),
        lambda kept: (kept.unlink(), os.mkfifo(kept)),
        lambda kept: (kept.unlink(), kept.symlink_to("/dev/zero")),
    ],
)
def test_a_table_that_cannot_be_used_is_named_and_measured_again(tmp_path, trial, damage, caplog):
    choose(tmp_path, trial)
    (kept,) = (tmp_path / "costs").iterdir()
    damage(kept)
    choose(tmp_path, trial)
    assert len(trial.candidates) == 2
    assert str(kept) in caplog.text


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
def test_a_fixed_engine_or_single_candidate_is_not_measured(tmp_path, given, expected, trial):
    options, table = choose(tmp_path, trial, **given)
    assert (taken(options), table, trial.candidates) == (expected, None, [])


@pytest.fixture
def only_pytorch(monkeypatch):
    """The manifest of a model that cannot be had in ONNX, where torch is installed."""
    monkeypatch.setattr(candidates, "is_installed", lambda module: True)
    without = {"model.onnx": "it cannot be exported"}
    return changed(MANIFEST, files={"model.safetensors": "1"}, without=without)


def test_without_an_onnx_file_pytorch_is_taken(tmp_path, only_pytorch, trial):
    options, table = choose(tmp_path, trial, only_pytorch)
    assert (taken(options), table, trial.candidates) == (("pytorch", "fp32", 1), None, [])
    assert taken(choose(tmp_path, trial, only_pytorch, device=None)[0]) == ("pytorch", "fp32", 1)
    named = choose(tmp_path, trial, only_pytorch, inference_engine_type="onnx")[0]
    assert taken(named)[0] == "onnx"  # whose instance then says why not


def test_without_an_onnx_file_pytorch_is_the_reference(tmp_path, only_pytorch, monkeypatch, trial):
    monkeypatch.setattr(candidates, "processor", lambda: with_flags("avx512_bf16"))
    _, table = choose(tmp_path, trial, only_pytorch)
    assert trial.candidates == [["pytorch fp32", "pytorch bf16"]]
    failures = {str(item): item.failure for item in table.findings}
    assert failures["openvino int8"] == failures["onnx fp32"] == "it cannot be exported"


def test_two_threads_are_a_candidate_where_every_instance_has_two_cores(tmp_path, trial):
    choose(tmp_path, trial, num_inference_sessions=1)
    choose(tmp_path, trial, num_inference_sessions=1, intra_op_num_threads=2)
    assert trial.candidates == [
        ["onnx fp32", "onnx fp32, 2 threads", "onnx int8, 2 threads", "onnx int8"],
        ["onnx fp32, 2 threads", "onnx int8, 2 threads"],
    ]


@pytest.mark.parametrize(
    ("flags", "second", "last"),
    [({"amx_bf16", "avx512_vnni"}, "openvino int8_bf16", "openvino fp32"),
     ({"avx_vnni"}, "openvino int8", "openvino fp32"),
     ({"avx512_bf16"}, "openvino bf16", "onnx int8"),
     ({"avx2"}, "openvino fp32", "onnx int8")],
)  # fmt: skip
def test_candidates_likely_fast_on_the_processor_are_measured_first(
    tmp_path, monkeypatch, flags, second, last, trial
):
    monkeypatch.setattr(candidates, "processor", lambda: with_flags(*flags))
    monkeypatch.setattr(candidates, "is_installed", lambda module: module != "torch")
    files = {**MANIFEST.files, "model.openvino_int8.onnx": "4"}
    choose(tmp_path, trial, changed(MANIFEST, files=files))
    [names] = trial.candidates
    assert (names[0], names[1], names[-1]) == ("onnx fp32", second, last)


def test_print_engines_measures_the_engines_that_a_start_left_out(tmp_path):
    left_out = Finding("onnx", "int8")
    found = choose_engine(InstanceOptions(), ON_CPU, tmp_path, MANIFEST)
    assert isinstance(found, Measurement)
    table = found.table([REFERENCE, left_out])
    keep(Path(found.path), table)
    assert "onnx int8                      not measured yet" in str(table)
    assert table.reason.endswith("; 1 likely slower one not measured")
    assert choose(tmp_path, Trial())[1] == table
    again = choose_engine(InstanceOptions(), ON_CPU, tmp_path, MANIFEST, measures_all=True)
    assert isinstance(again, Measurement)
    keep(Path(again.path), again.table([REFERENCE, INT8]))
    again = choose_engine(InstanceOptions(), ON_CPU, tmp_path, MANIFEST, measures_all=True)
    assert isinstance(again, Choice)
    assert taken(again.options) == ("onnx", "int8", 1)


def test_progress_is_logged_every_few_seconds_without_a_terminal(caplog, monkeypatch):
    caplog.set_level("INFO")
    clock = FakeClock()
    monkeypatch.setattr(time, "monotonic", clock.perf_counter)
    progress = Progress("builtin", 7, 8.0)
    for number in range(1, 8):
        progress.say("openvino bf16", number)
        clock.pass_s(1.0)
    assert caplog.messages == [
        f"measuring engines for builtin: openvino bf16, {number} of 7; about {left} s left"
        for number, left in ((1, 8), (4, 5), (7, 2))
    ]


def test_a_processor_with_bf16_has_more_candidates(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(candidates, "processor", lambda: with_flags("fpu", "amx_bf16"))
    monkeypatch.setattr(candidates, "is_installed", lambda module: True)
    _, table = choose(tmp_path, Trial(), num_inference_sessions=100)
    failures = {str(item): item.failure for item in table.findings}
    assert not failures["openvino bf16"]
    words = "the model has no model.openvino_int8.onnx"
    assert failures["openvino int8"] == failures["openvino int8_bf16"] == words
    assert failures["pytorch bf16"] == "the model has no model.safetensors"


def test_a_gpus_candidates_are_others(tmp_path, trial):
    files = {**MANIFEST.files, "model.fp16.onnx": "3"}
    choose(tmp_path, trial, changed(MANIFEST, files=files), DeviceAssignment("cuda:0"))
    assert trial.candidates == [["onnx fp32", "onnx fp16"]]


def test_without_a_measurement_float32_is_taken(tmp_path):
    found = choose_engine(InstanceOptions(), ON_CPU, tmp_path, MANIFEST)
    assert isinstance(found, Measurement)
    assert taken(found.choice(None).options) == ("onnx", "fp32", 1)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [((REFERENCE, INT8), "onnx int8"),
     ((REFERENCE, changed(INT8, num_same=193)), "onnx fp32"),
     ((REFERENCE, changed(INT8, ratio=0.96)), "onnx fp32"),
     ((REFERENCE, changed(INT8, num_answers=0, num_same=0)), "onnx fp32"),
     ((changed(REFERENCE, is_eligible=False), changed(INT8, ratio=1.5)), "onnx int8"),
     ((changed(REFERENCE, is_eligible=False), changed(INT8, num_same=5)), "onnx int8"),
     ((changed(REFERENCE, is_eligible=False), Finding("onnx", "int8", failure="no")), "None")],
)  # fmt: skip
def test_the_chosen_engine_agrees_and_is_clearly_faster(findings, expected):
    assert str(EngineTable("a processor", 0.97, findings).best) == expected


def test_two_hundred_questions_are_asked_about_texts_of_several_lengths():
    questions = read_squad(AGREEMENT_QUESTIONS)
    assert len({(item.question, item.context) for item in questions}) == len(questions)
    rounds = bundled_rounds()
    assert sum(map(len, rounds)) >= 200
    assert {len(tasks) for tasks in rounds} == {8}
    assert len(rounds) > MAX_ROUNDS
    three, two, one = (sum(len(task.text) for task in tasks) for tasks in rounds[:3])
    assert 1.5 * one < two < 0.8 * three
