"""Sessions of a real server on their devices and cores; GPUs are only said to be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qa_service.placement import available_cores
from tests.gpu_driver import compile_driver
from tests.running_server import ROOT, RunningServer, running_server
from tests.support import frame, receive

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(scope="module")
def with_driver(tmp_path_factory):
    return compile_driver(tmp_path_factory.mktemp("driver"))


def stats(server):
    with server.connect() as sock:
        sock.sendall(frame({"type": "stats", "id": 1}))
        return receive(sock)["stats"]


def environment(pid):
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(word.decode().split("=", 1) for word in words if word)


def test_each_session_has_its_core_and_sees_no_gpu(builtin_model):
    cores = available_cores()
    flags = ["--num_inference_sessions", str(len(cores)), "--devices", "cpu"]
    flags += ["--cpu_affinity", "auto", "--inference_engine_type", "instant"]
    with running_server(builtin_model, *flags) as server:
        assert "process sessions on cpu, model" in server.ready_line
        sessions = stats(server)["sessions"]
        assert sessions == [
            {"session": i, "device": "cpu", "cores": [core]} for i, core in enumerate(cores)
        ]
        pids = server.worker_pids()
        assert sorted(os.sched_getaffinity(pid) for pid in pids) == sorted({c} for c in cores)
        assert {environment(pid)["CUDA_VISIBLE_DEVICES"] for pid in pids} == {""}


@pytest.mark.parametrize("worker_type", ["process", "thread"])
def test_a_realtime_loop_goes_before_its_sessions(builtin_model, worker_type):
    flags = ["--realtime_loop", "--worker_type", worker_type, "--inference_engine_type", "instant"]
    if run_in_a_child("run_in_real_time()").returncode:
        pytest.skip("this user may not give real-time priority")
    with running_server(builtin_model, *flags) as server:
        pid = server.process.pid
        threads = {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()} - {pid}
        others = {*threads, *server.worker_pids()}
        assert os.sched_getscheduler(pid) == os.SCHED_RR | os.SCHED_RESET_ON_FORK
        assert others
        assert {os.sched_getscheduler(other) for other in others} == {os.SCHED_OTHER}


def test_real_time_priority_that_is_not_permitted_is_said_so():
    done = run_in_a_child(
        "resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))",
        "os.getuid() or os.setuid(65534)",
        "run_in_real_time()",
    )
    assert "SetupError: real-time priority is not permitted here" in done.stderr


def run_in_a_child(*lines):
    imports = "import os, resource", "from qa_service.placement import run_in_real_time"
    command = [sys.executable, "-c", "\n".join((*imports, *lines))]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)


def test_auto_falls_back_to_the_cpu_if_the_engine_cannot_use_the_gpu(builtin_model, with_driver):
    flags = ["--num_inference_sessions", "2", "--cost_table", "off"]
    server = RunningServer(builtin_model, *flags, env=with_driver)
    try:
        assert "sessions on cpu, model" in server.ready_line
        assert "this session runs on the CPU and not on cuda:0: the onnxruntime" in server.log
        assert "this session runs on the CPU and not on cuda:1: the onnxruntime" in server.log
        seen = {environment(pid)["CUDA_VISIBLE_DEVICES"] for pid in server.worker_pids()}
        assert seen == {"0", "1"}
        assert server.ask(id=1, question="Who wrote it?", text="Ada wrote it.")["answer"] == "Ada"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--devices", "cuda:1"], "no CUDAExecutionProvider"),
     (["--devices", "cuda:1", "--worker_type", "thread"], "no CUDAExecutionProvider"),
     (["--devices", "cuda:0", "--inference_engine_type", "pytorch"], "build without CUDA"),
     (["--inference_engine_type", "tensorrt"], "no TensorrtExecutionProvider"),
     (["--devices", "cuda:0", "--precision", "int8"], "int8 is for the CPU"),
     (["--devices", "cuda:2"], "CUDA sees only cuda:0, cuda:1")],
)  # fmt: skip
def test_a_gpu_that_was_asked_for_is_never_replaced_by_the_cpu(
    builtin_model, with_driver, flags, words
):
    command = [sys.executable, str(ROOT / "server.py"), "--port", "0", "--model", builtin_model]
    flags = [*flags, "--num_inference_sessions", "1", "--log_level", "error"]
    ran = subprocess.run(
        [*command, *flags], env=with_driver, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert words in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr
