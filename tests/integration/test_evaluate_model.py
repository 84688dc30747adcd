"""`evaluate_model.py` on the built-in model: every engine and precision that it has files for."""

import pytest

from qa_service.autotune.candidates import runnable
from qa_service.data.squad import OWN_QUESTIONS
from qa_service.instance.model_folder.manifest import load_manifest
from tests.programs import run_python

pytestmark = pytest.mark.slow


@pytest.fixture
def evaluate(builtin_model):
    """Runs the program; returns the F1 of each engine and precision in its table."""

    def run(*flags):
        done = run_python("evaluate_model.py", builtin_model, "--dev", OWN_QUESTIONS, *flags)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        rows = [line.split()[1:] for line in lines if line.startswith(str(builtin_model))]
        return {(engine, precision): float(f1) for engine, precision, _, f1, *_ in rows}

    return run


def test_every_engine_that_the_server_may_take_is_measured(builtin_model, evaluate):
    f1 = evaluate("--max_questions", "2")
    assert [*f1] == runnable(load_manifest(builtin_model))
    assert {("onnx", "fp32"), ("openvino", "fp32"), ("pytorch", "fp32")} <= f1.keys()
    assert f1["onnx", "fp32"] == f1["openvino", "fp32"] == f1["pytorch", "fp32"]
    assert min(f1.values()) > 50


def test_precisions_are_measured_where_an_engine_has_them(evaluate):
    flags = ("--inference_engine_types", "onnx", "pytorch", "--precisions", "int8")
    assert evaluate(*flags, "--max_questions", "2").keys() == {("onnx", "int8")}


def test_a_cascade_names_a_missing_model_before_the_first_is_run(quick_model):
    flags = ("--cascade", "--dev", OWN_QUESTIONS)
    done = run_python("evaluate_model.py", quick_model, "nowhere", *flags)
    assert done.returncode == 2
    assert done.stderr.startswith("evaluate_model.py: no prepared model in nowhere")
    assert "a question" not in done.stdout
