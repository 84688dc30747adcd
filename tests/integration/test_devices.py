"""Instances of a real server on their devices and cores; GPUs are only said to be there."""

from pathlib import Path

import pytest

from harness.server import FIXED_ENGINE, RunningServer, running_server
from qa_service.instance.gpus import find_gpus
from tests.gpu_driver import compile_driver
from tests.programs import fail_to_start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(find_gpus().found), reason="there is a GPU"),
]


@pytest.fixture(scope="module")
def with_driver(tmp_path_factory):
    return compile_driver(tmp_path_factory.mktemp("driver"))


def environment(pid):
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(word.decode().split("=", 1) for word in words if word)


def test_an_instance_on_the_cpu_sees_no_gpu(quick_model):
    flags = ["--devices", "cpu", "--inference_engine_type", "instant"]
    with running_server(quick_model, *flags) as server:
        assert "2 instances on cpu, model" in server.ready_line
        sessions = server.stats()["sessions"]
        named = [(one["model"], one["version"], one["session"], one["device"]) for one in sessions]
        assert named == [("builtin", 1, i, "cpu") for i in range(2)]
        pids = server.worker_pids()
        assert {environment(pid)["CUDA_VISIBLE_DEVICES"] for pid in pids} == {""}


def test_auto_falls_back_to_the_cpu_if_the_engine_cannot_use_the_gpu(quick_model, with_driver):
    # One that can do nothing with a GPU that is none; with `auto` it would be no candidate.
    flags = ["--num_inference_sessions", "2", *FIXED_ENGINE]
    server = RunningServer(quick_model, *flags, env=with_driver)
    try:
        assert "instances on cpu, model" in server.ready_line
        server.wait_for_log("this instance runs on the CPU and not on cuda:0: the onnxruntime")
        server.wait_for_log("this instance runs on the CPU and not on cuda:1: the onnxruntime")
        seen = {environment(pid)["CUDA_VISIBLE_DEVICES"] for pid in server.worker_pids()}
        assert seen == {"0", "1"}
        assert server.ask(id=1, question="Who wrote it?", text="Ada wrote it.")["answer"] == "Ada"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--devices", "cuda:1"], "no CUDAExecutionProvider"),
     (["--devices", "cuda:0", "--inference_engine_type", "pytorch"], "build without CUDA"),
     (["--inference_engine_type", "tensorrt"], "no TensorrtExecutionProvider"),
     (["--devices", "cuda:0", "--precision", "int8"], "int8 is for the CPU"),
     (["--devices", "cuda:2"], "CUDA sees only cuda:0, cuda:1")],
)  # fmt: skip
def test_a_gpu_that_was_asked_for_is_never_replaced_by_the_cpu(
    quick_model, with_driver, flags, words
):
    # A fixed engine, which the parameters replace in part.
    usual = ("--model", quick_model, *FIXED_ENGINE, "--num_inference_sessions", "1")
    ended = fail_to_start(*usual, *flags, "--log_level", "error", env=with_driver)
    assert words in ended.stderr.splitlines()[-1]
