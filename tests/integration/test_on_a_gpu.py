"""The engines and a server on a real GPU; left out where there is none."""

import os
import signal

import msgspec
import numpy as np
import onnxruntime
import pytest

from harness.models import copy_model
from harness.process import wait_until
from harness.server import RunningServer, running_server
from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.gpus import find_gpus
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.preparation.prepare import PrepareArgs, prepare
from tests.http_calls import get
from tests.integration.engine_comparison import MAX_DIFFERENCE, check_chosen_spans, difference
from tests.programs import run_python
from tests.support import needs_torch

pytestmark = [
    pytest.mark.slow,
    needs_torch,
    pytest.mark.skipif(not find_gpus().found, reason="there is no GPU"),
]
needs_provider = pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="onnxruntime-gpu is not installed",
)
SMALL = EngineConfig(device="cuda", max_batch_size=4, max_batch_tokens=512)
ENGINES = ["pytorch", pytest.param("onnx", marks=needs_provider)]
STEPS = [
    ("pytorch", {}),
    ("pytorch", {"cuda_graphs": False}),
    pytest.param("onnx", {}, marks=needs_provider),
    pytest.param("onnx", {"cuda_graphs": False}, marks=needs_provider),
    pytest.param("onnx", {"cuda_graphs": False, "bound_buffers": False}, marks=needs_provider),
]


@pytest.fixture(scope="module")
def gpu_model(tmp_path_factory, builtin_model):
    folder = tmp_path_factory.mktemp("saved_models")
    copy_model(builtin_model, folder / builtin_model.name)
    return prepare(PrepareArgs(output_dir=folder, precision="fp16"))


@pytest.fixture(scope="module")
def reference(gpu_model):
    return make_engine("onnx", gpu_model, load_manifest(gpu_model), EngineConfig())


def engine_on_the_gpu(engine_type, model, **changes):
    config = msgspec.structs.replace(SMALL, **changes)
    engine = make_engine(engine_type, model, load_manifest(model), config)
    assert engine.device == "cuda"
    return engine


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(("engine_type", "step"), STEPS)
def test_an_engine_gives_the_cpus_logits_again_and_again(
    gpu_model, reference, engine_type, step, precision
):
    engine = engine_on_the_gpu(engine_type, gpu_model, precision=precision, **step)
    assert difference(engine, reference) < MAX_DIFFERENCE[precision]
    assert difference(engine, reference) < MAX_DIFFERENCE[precision]


@pytest.mark.parametrize("graphs", [True, False])
def test_pytorch_gives_the_logits_in_bf16(gpu_model, reference, graphs):
    engine = engine_on_the_gpu("pytorch", gpu_model, precision="bf16", cuda_graphs=graphs)
    assert difference(engine, reference) < MAX_DIFFERENCE["bf16"]


@pytest.mark.parametrize("graphs", [True, False])
def test_pytorch_chooses_the_spans_that_the_reader_would(gpu_model, reference, graphs):
    engine = engine_on_the_gpu("pytorch", gpu_model, cuda_graphs=graphs)
    check_chosen_spans(engine, reference, gpu_model, SMALL)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("engine_type", ENGINES)
def test_a_server_on_the_gpu_answers_as_one_on_the_cpu(gpu_model, engine_type, precision):
    questions = read_squad(OWN_QUESTIONS)
    fixed = ["--cost_table", "off", "--num_inference_sessions", "1"]
    on_cpu = ["--devices", "cpu", "--inference_engine_type", "onnx", "--precision", "fp32"]
    with running_server(gpu_model, *fixed, *on_cpu) as server:
        wanted = [server.ask(question=q.question, text=q.context) for q in questions]
    flags = ["--devices", "cuda:0", "--inference_engine_type", engine_type]
    with running_server(gpu_model, *fixed, *flags, "--precision", precision) as server:
        assert "1 instance on cuda:0, model" in server.ready_line
        found = [server.ask(question=q.question, text=q.context) for q in questions]
        assert "is left out" not in server.log
    same = [a["answer"] == b["answer"] for a, b in zip(found, wanted, strict=True)]
    assert sum(same) >= len(same) - 1
    scores = [(a["score"], b["score"]) for a, b in zip(found, wanted, strict=True)]
    assert np.mean([abs(a - b) for a, b in scores]) < 0.01


def test_auto_takes_the_gpu_and_outlives_a_killed_worker(gpu_model):
    server = RunningServer(gpu_model, "--num_inference_sessions", "2")
    try:
        assert "2 instances on cuda:0, model" in server.ready_line
        assert server.ask(question="Who wrote it?", text="Ada wrote it.")["answer"] == "Ada"
        before = server.worker_pids()
        os.kill(before[0], signal.SIGKILL)
        for _ in range(20):
            assert server.ask(question="Who wrote it?", text="Ada wrote it.")["answer"] == "Ada"
        after = wait_until(server.worker_pids, lambda pids: len(pids) == len(before))
        assert before[0] not in after
        metrics = wait_until(
            lambda: get(server.port, "/metrics").body,
            lambda text: b"nv_gpu_memory_used_bytes{" in text,
        )
        assert b"nv_gpu_utilization{" in metrics
    finally:
        server.close()


def test_a_share_of_the_memory_is_enough_for_each_of_four_instances(gpu_model):
    flags = ["--num_inference_sessions", "4", "--gpu_memory_fraction", "0.1"]
    flags += ["--inference_engine_type", "pytorch", "--precision", "fp16", "--cost_table", "off"]
    with running_server(gpu_model, *flags) as server:
        assert server.ask(question="Who wrote it?", text="Ada wrote it.")["answer"] == "Ada"


def test_check_finds_the_gpu_and_every_engine_right_on_it(gpu_model):
    ran = run_python("server.py", "--check", "--devices", "cuda:0", "--port", "0",
                     "--model", str(gpu_model))  # fmt: skip
    assert ran.returncode in (0, 1), ran.stdout
    assert "cuda:0" in ran.stdout
    assert "error" not in ran.stdout
