"""Candidates in processes of their own, on the built-in model."""

import os
import signal

import msgspec
import pytest

from qa_service.autotune import engine_trial
from qa_service.autotune.engine_race import Race, Record
from qa_service.autotune.engine_table import Finding, Measurement
from qa_service.autotune.engine_trial import Instance, try_engines
from qa_service.errors import SetupError
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.worker_messages import Setup
from qa_service.logs import LogOptions
from qa_service.wire.messages import Task
from tests.support import present

pytestmark = pytest.mark.slow

LOGS = LogOptions(log_level="error")
TASK = Task("Who wrote it?", "It was written by Ada in 1843.")
ROUNDS = [[Task("Who wrote it?", f"It was written by {name} in 1843.") for name in
           ("Ada", "Ben", "Carl", "Dora", "Emma", "Fritz", "Grace", "Hans")]]  # fmt: skip
"""Short ones: what is measured is for real, and takes no longer than it must."""


def setup(model, precision):
    options = InstanceOptions(
        inference_engine_type="onnx", precision=precision, intra_op_num_threads=1, cost_table="off"
    )
    return Setup(str(model), options)


def test_candidates_are_timed_and_their_answers_compared(builtin_model):
    with (
        Instance(setup(builtin_model, "fp32"), LOGS) as fp32,
        Instance(setup(builtin_model, "int8"), LOGS) as int8,
    ):
        records = [Record(Finding("onnx", "fp32"), fp32), Record(Finding("onnx", "int8"), int8)]
        race = Race(records, ROUNDS, 0.5, elapsed_s=lambda: 0.0, say=lambda *_: None)
        reference, other = race.run()
    assert (reference.num_same, reference.num_answers, reference.ratio) == (8, 8, 1.0)
    assert other.num_same >= 7 or not other.num_answers  # int8 is no faster on some processors
    assert min(other.alone_ms, other.batched_ms, other.ratio) > 0


def test_an_instance_that_cannot_load_its_model_raises_the_reason(builtin_model):
    with (
        Instance(setup(builtin_model / "none", "fp32"), LOGS) as instance,
        pytest.raises(SetupError, match="no prepared model"),
    ):
        instance.ask([TASK])


def test_an_instance_that_has_ended_before_it_is_asked_still_says_why(builtin_model):
    with Instance(setup(builtin_model / "none", "fp32"), LOGS) as instance:
        instance.start()
        present(instance.process).wait()
        with pytest.raises(SetupError, match="no prepared model"):
            instance.prove()


def test_an_instance_that_dies_raises_an_error(builtin_model):
    with Instance(setup(builtin_model, "fp32"), LOGS) as instance:
        took_ms, spans = instance.ask([TASK])
        assert took_ms > 0
        assert spans == [(18, 21)]
        os.kill(present(instance.process).pid, signal.SIGKILL)
        with pytest.raises(SetupError, match="its process ended"):
            instance.ask([TASK])


def test_where_the_reference_cannot_run_another_in_float32_is_compared_with(
    builtin_model, caplog, monkeypatch
):
    monkeypatch.setattr(engine_trial, "bundled_rounds", lambda: ROUNDS)
    findings = (Finding("tensorrt", "fp32"), Finding("onnx", "fp32"), Finding("onnx", "int8"))
    model = Setup(str(builtin_model), InstanceOptions(intra_op_num_threads=1))
    measurement = Measurement(model, findings, "a processor", "unused")
    table = try_engines(measurement, LOGS, measures_all=True)
    reference, _, broken = table.findings
    assert (reference.engine_type, reference.ratio) == ("onnx", 1.0)
    assert (broken.engine_type, table.best and table.best.engine_type) == ("tensorrt", "onnx")
    assert "needs a GPU" in broken.failure
    assert "tensorrt fp32 cannot run" in caplog.text
    only = msgspec.structs.replace(measurement, findings=findings[:1])
    with pytest.raises(SetupError, match="needs a GPU"):
        try_engines(only, LOGS)
