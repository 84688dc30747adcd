"""From a server's first second to its first answer: what clients, signals and pipes meet."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from harness.frames import ANSWER, ASK, FIRST_WORD, frame, receive
from harness.models import ModelFile, link_model, replace_file, states
from harness.process import GIVE_UP_S, LoggingProcess, tree, wait_for_end, wait_until
from harness.server import INSTANT, READY, ROOT, RunningServer, line_with, port_of
from qa_service.engine_catalogue import PROCESSOR_FLAGS
from qa_service.machine import processor
from tests.fault.faults import Permits
from tests.http_calls import get, post
from tests.programs import run_python
from tests.support import present, skip_without

pytestmark = pytest.mark.slow

TRIAL = "qa_service.autotune.engine_trial"
ONE_INSTANCE = ("--num_inference_sessions", "1", "--cost_table", "off")


@contextmanager
def starting_server(permits, model, *flags):
    """A server one of whose programs waits for a permit at its start."""
    running = RunningServer(model, *flags, env=permits.env, is_ready=False)
    try:
        yield running
        assert "Traceback" not in running.log
    finally:
        running.close()


def test_a_loading_server_is_live_not_ready_and_sends_retry_after(builtin_model, tmp_path):
    permits = Permits(tmp_path, 0)
    with starting_server(permits, builtin_model, *INSTANT) as server:
        assert get(server.port, "/v2/health/live").status == 200
        assert get(server.port, "/v2/health/ready").status == 503
        assert get(server.port, "/v2/models/builtin/ready").status == 503
        reply = post(server.port, "/qa", ASK)
        assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
        assert reply.json["error"]["code"] == "unavailable"
        error = server.ask(**ASK)["error"]
        assert (error["code"], error["retryable"]) == ("unavailable", True)
        assert error["retry_after_ms"] == 1000
        health = server.health()
        assert (health["live"], health["ready"], health["phase"]) == (True, False, "starting")
        assert health["reason"] == "the server is starting"
        assert health["models"] == {"builtin/1": "LOADING"}
        assert get(server.port, "/stats").status == 200
        permits.give()
        server.wait_until_ready()
        assert server.ask(**ASK)["answer"] == FIRST_WORD
        assert get(server.port, "/v2/health/ready").status == 200


def test_sighup_during_the_start_is_done_when_it_is_ready(builtin_model, tmp_path):
    permits = Permits(tmp_path, 0)
    with starting_server(permits, builtin_model, *INSTANT) as server:
        server.signal(signal.SIGHUP)
        server.wait_for_log("everything is read again when it is ready")
        assert "reloading" not in server.log
        permits.give(2)
        server.wait_until_ready()
        server.wait_for_log("the reloaded model serves")


class TestAnotherModelIsMeasured:
    """The model `m` serves; of `slow`, the engines are being measured, since memory is bounded."""

    @pytest.fixture
    def starting(self, quick_model, tmp_path):
        slow = link_model(quick_model, tmp_path / "slow", "costs")
        file = ModelFile(tmp_path, 1)
        file.path.write_text(
            f'[models.m]\npath = "{file.model}"\ninference_engine_type = "instant"\n'
            f'[models.slow]\npath = "{slow}"\ninference_engine_type = "onnx"\n'
            'num_inference_sessions = 1\nprecision = "auto"\n'
        )
        flags = (
            "--config",
            str(file.path),
            "--cost_table",
            "off",
            "--max_memory_bytes",
            str(1 << 40),
        )
        permits = Permits(tmp_path, 0, TRIAL)
        with starting_server(permits, file.model, *flags) as server:
            server.wait_for_log("m, version 1 serves")
            server.wait_for_log("finding the fastest of")
            yield server

    def test_a_ready_model_serves_while_another_loads(self, starting):
        assert starting.ask(**ASK, model="m")["answer"] == FIRST_WORD
        error = starting.ask(**ASK, model="slow")["error"]
        assert (error["code"], error["retry_after_ms"]) == ("unavailable", 1000)
        assert states(starting) == {"m/1": "READY", "slow/1": "LOADING"}
        assert get(starting.port, "/v2/models/m/ready").status == 200
        assert get(starting.port, "/v2/models/slow/ready").status == 503
        assert get(starting.port, "/v2/health/ready").status == 503
        for pid in trials(starting):
            os.kill(pid, signal.SIGKILL)
        starting.wait_until_ready()
        starting.wait_for_log("the engines could not be measured: the program")
        assert starting.ask(**ASK, model="slow")["answer"] == ANSWER

    @pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_during_the_start_ends_all_processes(self, starting, signum):
        wait_until(lambda: len(starting.worker_pids()) == 3)  # it is logged before it is begun
        pids = starting.worker_pids()
        starting.signal(signum)
        assert starting.wait() == 0, starting.log
        wait_for_end(*pids)

    def test_a_signal_during_the_start_drains_the_ready_model(self, starting):
        with starting.connect() as sock:
            slow = {**ASK, "model": "m", "question": "!!slow!! who?"}
            sock.sendall(frame({"id": 1, **slow}) + frame({"id": 2, **slow}))
            starting.wait_for_queue(sock)
            starting.signal(signal.SIGTERM)
            assert {receive(sock)["answer"] for _ in range(2)} == {FIRST_WORD}
            assert receive(sock) is None
        assert starting.wait() == 0, starting.log


class TestAModelIsPrepared:
    """The model is on a hub that accepts connections and says nothing."""

    @pytest.fixture
    def preparing(self, builtin_model):
        skip_without("transformers", "the extra `models` is not installed")
        with socket.create_server(("127.0.0.1", 0)) as hub:
            endpoint = f"http://127.0.0.1:{hub.getsockname()[1]}"
            env = {"HF_ENDPOINT": endpoint, "HF_HUB_ETAG_TIMEOUT": f"{10 * GIVE_UP_S:.0f}"}
            flags = (*INSTANT, "--model", "nobody/nothing")
            server = RunningServer(builtin_model, *flags, env=env, is_ready=False)
            try:
                with hub.accept()[0]:
                    yield server
            finally:
                server.close()

    def test_the_server_is_live_and_not_ready_meanwhile(self, preparing):
        assert get(preparing.port, "/v2/health/live").status == 200
        assert get(preparing.port, "/v2/health/ready").status == 503
        for named in ({}, {"model": "nothing"}):
            error = preparing.ask(**ASK, **named)["error"]
            assert (error["code"], error["retry_after_ms"]) == ("unavailable", 1000)
        assert preparing.health()["phase"] == "starting"
        assert "nobody/nothing is not prepared yet: preparing it in" in preparing.log
        for pid in preparing.worker_pids():
            os.kill(pid, signal.SIGKILL)
        assert preparing.wait() == 2
        assert "could not be prepared: its program was killed by SIGKILL" in preparing.log

    @pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
    def test_a_signal_leaves_nothing_running(self, preparing, signum, code):
        pids = preparing.worker_pids()
        assert pids
        preparing.signal(signum)
        assert preparing.wait() == code
        wait_for_end(*pids)


def trials(server) -> list[int]:
    """The processes that measure engines."""
    pids = server.worker_pids()
    return [pid for pid in pids if TRIAL.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_the_fastest_engine_takes_the_likeliest_ones_place_and_is_kept(quick_model, tmp_path):
    """Which of the two is faster depends on the processor; int8 is likely to be with VNNI."""
    model = link_model(quick_model, tmp_path / "model", "costs")
    flags = ("--inference_engine_type", "onnx", *ONE_INSTANCE)
    permits = Permits(tmp_path, 0, TRIAL)
    with starting_server(permits, model, *flags) as server:
        server.wait_until_ready()
        server.wait_for_log("finding the fastest of")
        (trial,) = wait_until(lambda: trials(server))  # it is logged before it is begun
        first = set(server.worker_pids()) - {trial}
        assert server.ask(**ASK)["answer"] == ANSWER
        permits.give()
        server.wait_for_log("the fastest for ")
        is_fp32 = ": onnx engine in fp32," in server.log
        if is_fp32 and PROCESSOR_FLAGS["int8"] & processor().flags:
            server.wait_for_log("the reloaded model serves")
            wait_until(lambda: first.isdisjoint(server.worker_pids()))
        assert server.ask(**ASK)["answer"] == ANSWER
        assert states(server) == {"builtin/1": "READY"}
    [kept] = (model / "costs").iterdir()
    assert kept.match("engines.*.json")
    with closing(RunningServer(model, *flags)) as server:
        assert server.ask(**ASK)["answer"] == ANSWER
        server.wait_for_log("version 1 serves")
        assert "finding the fastest" not in server.log
    assert [*(model / "costs").iterdir()] == [kept]


def test_a_likeliest_engine_that_cannot_be_loaded_gives_way(quick_model, tmp_path):
    model = link_model(quick_model, tmp_path / "model", "costs")
    replace_file(model / "model.int8.onnx", b"cut")
    flags = ("--inference_engine_type", "onnx", *ONE_INSTANCE)
    server = RunningServer(model, *flags)
    try:
        assert server.ask(**ASK)["answer"] == ANSWER
        server.wait_for_log("finding the fastest of")
    finally:
        server.close()


def test_engines_are_printed_and_the_server_exits(builtin_model, tmp_path):
    done = run_python("server.py", *INSTANT, "--print_engines", "--model", builtin_model)
    assert (done.returncode, done.stdout) == (0, "builtin:\ninstant fp32: nothing else can run\n")
    file = ModelFile(tmp_path)
    file.write("versions = [1, 2]")
    done = run_python("server.py", "--print_engines", *file.flags())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("nothing else can run") == 2
    assert "m, version 2:" in done.stdout


@pytest.mark.parametrize("fault", ["No space left on device", "Broken pipe"])
def test_a_closed_or_full_stdout_does_not_stop_the_server(builtin_model, fault):
    command = [sys.executable, "server.py", "--port", "0", "--model", str(builtin_model), *INSTANT]
    is_pipe = fault == "Broken pipe"
    with Path("/dev/full").open("w") as full:
        server = LoggingProcess(command, stdout=subprocess.PIPE if is_pipe else full, cwd=ROOT)
    try:
        if is_pipe:
            assert server.process.stdout.readline().startswith(b"QA server listening on ")
            server.process.stdout.close()
        server.wait_for_log("version 1 serves")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(GIVE_UP_S) == 0
        assert "Traceback" not in server.log
        server.wait_for_log(f"standard output cannot be written: {fault}")
        assert server.log.count(f"standard output cannot be written: {fault}") == 1
    finally:
        server.close()


def test_a_stderr_that_nobody_reads_stops_neither_the_server_nor_its_workers(builtin_model):
    command = [sys.executable, "server.py", "--port", "0", "--model", str(builtin_model), *INSTANT]
    command += ["--log_level", "debug"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        try:
            port = int(port_of(line_with(present(server.stdout), READY)))
            ask_many(port, 3000)  # three lines each, 900 kB; it keeps 256 KiB, and a pipe 64 KiB
            assert get(port, "/v2/health/ready").status == 200
            (worker,) = tree(server.pid)[1:]
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda: tree(server.pid)[1:], lambda pids: pids and worker not in pids)
            wait_until(lambda: get(port, "/v2/health/ready").status, lambda status: status == 200)
            assert post(port, "/qa", ASK).json["answer"] == FIRST_WORD
            lost = next(line for line in present(server.stderr) if "did not fit" in line)
            assert re.search(r" WARNING qa_service.log_relay\[\d+\]: \d+ lines did not fit", lost)
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=GIVE_UP_S)
            assert server.returncode == 0
        finally:
            server.kill()


def ask_many(port, number):
    with socket.create_connection(("localhost", port), GIVE_UP_S) as sock:
        for _ in range(number // 50):
            sock.sendall(frame(ASK) * 50)
            for _ in range(50):
                assert receive(sock)["answer"] == FIRST_WORD
