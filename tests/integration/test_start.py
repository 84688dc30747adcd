"""From a server's first second to its first answer: what clients, signals and pipes meet."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.frames import frame, receive
from harness.models import ModelFile, states
from harness.process import wait_until
from harness.questions import ASK, FIRST_WORD
from harness.server import INSTANT, ROOT, RunningServer

pytestmark = pytest.mark.slow

WORKER, TRIAL = "qa_service.inference.worker_main", "qa_service.inference.trial_main"
HOLDING = ROOT / "tests" / "fault" / "faulty_worker"


class Held:
    """A server one of whose programs waits at its start until it is released."""

    def __init__(self, folder: Path, program: str) -> None:
        self._pipe = folder / "pipe"
        os.mkfifo(self._pipe)
        self._env = {"PYTHONPATH": str(HOLDING), "QA_TEST_HOLD": f"{program}:{self._pipe}"}

    @contextmanager
    def server(self, model, *flags):
        running = RunningServer(model, *flags, env=self._env, is_ready=False)
        try:
            yield running
            assert "Traceback" not in running.log
        finally:
            running.close()

    def release(self) -> None:
        """Lets it go on, and all that start later."""
        with self._pipe.open("wb"):  # waits until it waits
            self._pipe.unlink()


def request(server, method, path, body=None):
    """The status, the fields and the JSON of a reply."""
    connection = http.client.HTTPConnection("localhost", server.port, timeout=30)
    connection.request(method, path, json.dumps(body) if body else None)
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, reply.headers, json.loads(content or b"null")


def test_it_is_live_and_not_ready_and_says_when_to_come_again(builtin_model, tmp_path):
    held = Held(tmp_path, WORKER)
    with held.server(builtin_model, *INSTANT) as server:
        assert request(server, "GET", "/v2/health/live")[0] == 200
        assert request(server, "GET", "/v2/health/ready")[0] == 503
        assert request(server, "GET", "/v2/models/builtin/ready")[0] == 503
        status, fields, body = request(server, "POST", "/qa", ASK)
        assert (status, body["error"]["code"], fields["Retry-After"]) == (503, "unavailable", "1")
        error = server.ask(**ASK)["error"]
        assert (error["code"], error["retryable"]) == ("unavailable", True)
        assert error["retry_after_ms"] == 1000
        health = server.health()
        assert (health["live"], health["ready"], health["phase"]) == (True, False, "starting")
        assert health["reason"] == "the server is starting"
        assert health["models"] == {"builtin/1": "LOADING"}
        assert request(server, "GET", "/stats")[0] == 200
        held.release()
        server.wait_until_ready()
        assert server.ask(**ASK)["answer"] == FIRST_WORD
        assert request(server, "GET", "/v2/health/ready")[0] == 200


def test_sighup_during_the_start_is_done_when_it_is_ready(builtin_model, tmp_path):
    held = Held(tmp_path, WORKER)
    with held.server(builtin_model, *INSTANT) as server:
        server.signal(signal.SIGHUP)
        server.wait_for_log("everything is read again when it is ready")
        assert "reloading" not in server.log
        held.release()
        server.wait_until_ready()
        server.wait_for_log("the reloaded model serves")


class TestAnotherModelIsMeasured:
    """The model `m` serves; of `slow`, the engines are being measured."""

    @pytest.fixture
    def held(self, tmp_path):
        return Held(tmp_path, TRIAL)

    @pytest.fixture
    def starting(self, held, builtin_model, tmp_path):
        slow = shutil.copytree(builtin_model, tmp_path / "slow")
        shutil.rmtree(slow / "costs", ignore_errors=True)
        file = ModelFile(tmp_path, 1)
        file.path.write_text(
            f'[models.m]\npath = "{file.model}"\ninference_engine_type = "instant"\n'
            f'[models.slow]\npath = "{slow}"\ninference_engine_type = "onnx"\n'
            'num_inference_sessions = 1\nprecision = "auto"\n'
        )
        flags = ("--config", str(file.path), "--cost_table", "off")
        with held.server(file.model, *flags) as server:
            server.wait_for_log("m, version 1 serves")
            server.wait_for_log("finding the fastest of")
            yield server

    def test_what_is_ready_serves(self, starting, held):
        assert starting.ask(**ASK, model="m")["answer"] == FIRST_WORD
        error = starting.ask(**ASK, model="slow")["error"]
        assert (error["code"], error["retry_after_ms"]) == ("unavailable", 1000)
        assert states(starting) == {"m/1": "READY", "slow/1": "LOADING"}
        assert request(starting, "GET", "/v2/models/m/ready")[0] == 200
        assert request(starting, "GET", "/v2/models/slow/ready")[0] == 503
        assert request(starting, "GET", "/v2/health/ready")[0] == 503
        for pid in trials(starting):
            os.kill(pid, signal.SIGKILL)
        starting.wait_until_ready()
        assert "the engines could not be measured: the program" in starting.log
        assert starting.ask(**ASK, model="slow")["answer"] == "Ada Lovelace"

    def test_sighup_is_done_when_it_is_ready(self, starting, held):
        starting.signal(signal.SIGHUP)
        starting.wait_for_log("everything is read again when it is ready")
        for pid in trials(starting):
            os.kill(pid, signal.SIGKILL)
        starting.wait_until_ready()
        assert states(starting) == {"m/1": "READY", "slow/1": "READY"}

    @pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_it_with_all_that_it_started(self, starting, signum):
        pids = starting.worker_pids()
        assert len(pids) == 3
        starting.signal(signum)
        assert starting.wait() == 0, starting.log
        for pid in pids:
            subprocess.run(["tail", f"--pid={pid}", "-f", "/dev/null"], timeout=20, check=True)

    def test_a_signal_drains_what_the_ready_model_has(self, starting):
        with starting.connect() as sock:
            slow = {**ASK, "model": "m", "question": "!!slow!! who?"}
            sock.sendall(frame({"id": 1, **slow}) + frame({"id": 2, **slow}))
            starting.wait_for_queue(sock)
            starting.signal(signal.SIGTERM)
            assert {receive(sock)["answer"] for _ in range(2)} == {FIRST_WORD}
            assert receive(sock) is None
        assert starting.wait() == 0, starting.log


def trials(server) -> list[int]:
    """The processes that measure engines."""
    pids = server.worker_pids()
    return [pid for pid in pids if TRIAL.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_what_is_measured_is_kept_and_nothing_else(builtin_model, tmp_path):
    model = shutil.copytree(builtin_model, tmp_path / "model")
    shutil.rmtree(model / "costs", ignore_errors=True)
    flags = ("--inference_engine_type", "onnx", "--num_inference_sessions", "1")
    flags += ("--intra_op_num_threads", "1")
    for is_first in (True, False):
        server = RunningServer(model, *flags, "--cost_table", "off", is_ready=False)
        try:
            if is_first:
                server.wait_for_log("finding the fastest of 2 engines")
                assert server.ask(**ASK)["error"]["code"] == "unavailable"
            server.wait_until_ready()
            assert server.ask(**ASK)["answer"] == "Ada Lovelace"
            assert ("finding the fastest" in server.log) == is_first
            [kept] = (model / "costs").iterdir()
            assert kept.match("engines.*.json")
        finally:
            server.close()


def fail(*flags, **env):
    """What a server that cannot start leaves."""
    return subprocess.run(
        [sys.executable, str(ROOT / "server.py"), *INSTANT, "--port", "0", *flags],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
        env={**os.environ, **env},
    )  # fmt: skip


def test_engines_are_printed_and_the_server_exits(builtin_model, tmp_path):
    done = fail("--print_engines", "--model", str(builtin_model))
    assert (done.returncode, done.stdout) == (0, "builtin:\ninstant fp32: nothing else can run\n")
    file = ModelFile(tmp_path)
    file.write("versions = [1, 2]")
    done = fail("--print_engines", *file.flags())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("nothing else can run") == 2
    assert "m, version 2:" in done.stdout


def test_too_little_memory_ends_the_start(builtin_model):
    ended = fail("--model", str(builtin_model), "--max_memory_bytes", "1")
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("server.py: 1 instance of builtin, version 1")
    assert ended.stderr.count("cannot be loaded") == 1


@pytest.mark.parametrize("flags", [("--ray_instances", "1"), ("--ray_instances", "0:2")])
def test_ray_instances_without_ray_end_the_start(builtin_model, flags):
    ended = fail("--model", str(builtin_model), *flags,
                 PYTHONPATH=str(HOLDING), QA_TEST_WITHOUT="ray")  # fmt: skip
    assert ended.returncode == 2
    assert (ended.stdout, ended.stderr.count("Ray is not")) == ("", 1)
    hint = "Ray is not installed: python -m pip install 'qa-server[ray]'"
    assert ended.stderr.splitlines()[-1].endswith(hint)


class TestStandardOutput:
    """Nobody has to read it."""

    @contextmanager
    def server(self, model, stdout, log):
        command = [sys.executable, str(ROOT / "server.py"), "--port", "0", "--model", str(model)]
        process = subprocess.Popen([*command, *INSTANT], stdout=stdout, stderr=log, cwd=ROOT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def end(self, process, log) -> str:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        log.seek(0)
        return log.read()

    def test_a_full_disk_does_not_end_the_server(self, builtin_model, tmp_path):
        with (
            (tmp_path / "log").open("w+") as log,
            Path("/dev/full").open("w") as full,
            self.server(builtin_model, full, log) as process,
        ):
            wait_for(log, "version 1 serves")
            said = self.end(process, log)
        assert said.count("standard output cannot be written: No space left on device") == 1

    def test_a_closed_pipe_does_not_end_the_server(self, builtin_model, tmp_path):
        with (
            (tmp_path / "log").open("w+") as log,
            self.server(builtin_model, subprocess.PIPE, log) as process,
        ):
            assert process.stdout.readline().startswith(b"QA server listening on ")
            process.stdout.close()
            wait_for(log, "version 1 serves")
            said = self.end(process, log)
        assert "Traceback" not in said
        assert said.count("standard output cannot be written: Broken pipe") == 1


def wait_for(log, words: str) -> None:
    """Waits until a log has the words."""
    wait_until(Path(log.name).read_text, lambda said: words in said)
