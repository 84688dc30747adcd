"""`--log_format json`: every line of a program, on both of its streams, is a JSON object."""

import json
import os
import socket
import subprocess
import sys
from datetime import datetime

import pytest

from harness.process import GIVE_UP_S
from harness.server import FIXED_ENGINE, ROOT, line_with
from qa_service.files import SAVED_MODELS
from tests.programs import run_python
from tests.support import present

JSON = ("--log_format", "json")
GATEWAY = ("-m", "qa_service.sidecars.grpc_gateway.program", "--unix_socket", "/no/socket")


def messages(output: str) -> list[str]:
    """The messages of lines that are all JSON, with times that have their offset from UTC."""
    lines = [json.loads(line) for line in output.splitlines()]
    assert all(datetime.fromisoformat(line["time"]).utcoffset() is not None for line in lines)
    return [line["message"] for line in lines]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--model", "nowhere", "--no-prepare"], "nowhere is not prepared, and --no-prepare is"),
        (["--model", "a/b"], "the model could not be prepared: there is no directory a/b"),
        (["--config", "nowhere.toml"], "cannot read --config nowhere.toml"),
        (["--no_such_flag"], "unrecognized arguments: --no_such_flag"),
        (["--port", "none"], "argument --port: "),
    ],
)
def test_a_server_that_cannot_start_says_so_in_json(tmp_path, encoder, flags, reason):
    (tmp_path / SAVED_MODELS).mkdir()
    (tmp_path / SAVED_MODELS / "encoder").symlink_to(encoder)  # else it is prepared
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    words = (ROOT / "server.py", "--port", "0", *flags, *JSON)
    ended = run_python(*words, cwd=tmp_path, env=env)
    assert ended.returncode == 2
    assert messages(ended.stderr)[-1].startswith(reason)
    assert ended.stderr.count(reason) == 1
    messages(ended.stdout)


def test_a_server_that_serves_and_stops_says_so_in_json(quick_model):
    given = ["--model", str(quick_model), "--port", "0", "--num_inference_sessions", "1"]
    command = [sys.executable, "server.py", *given, *FIXED_ENGINE, *JSON]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=pipe, stderr=pipe) as server:
        try:
            assert line_with(present(server.stdout), "QA server ready")
            server.terminate()
            out, err = server.communicate(timeout=GIVE_UP_S)
        finally:
            server.kill()
    assert messages(out) == ["QA server stopped."]
    assert any("version 1 serves" in message for message in messages(err))


def test_a_grpc_gateway_that_cannot_listen_says_so_in_json():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_python(*GATEWAY, "--host", "127.0.0.1", "--port", port, *JSON)
    assert ended.returncode == 2
    assert "cannot listen on" in messages(ended.stderr)[-1]


def test_a_gateway_of_jobs_without_a_broker_says_so_in_json():
    ended = run_python("jobs.py", "gateway", "--broker_url", "nonsense", *JSON)
    assert ended.returncode == 2
    assert "is not an address of the form" in messages(ended.stderr)[-1]


def test_a_crash_and_a_warning_are_json():
    code = (
        "import warnings; from qa_service.logs import configure_logging as set\n"
        "set('info', 'json'); warnings.warn('odd'); 1 / 0"
    )
    ended = run_python("-c", code)
    said = messages(ended.stderr)
    assert "UserWarning: odd" in said[0]
    assert said[1:] == ["the program ends"]
    assert "ZeroDivisionError" in json.loads(ended.stderr.splitlines()[1])["traceback"]


def test_what_threads_raise_and_what_nothing_can_catch_is_json():
    code = (
        "import threading; from qa_service.logs import configure_logging as set\n"
        "set('info', 'json')\n"
        "thread = threading.Thread(target=lambda: 1 / 0, name='its thread')\n"
        "thread.start(); thread.join()\n"
        "quiet = threading.Thread(target=exit); quiet.start(); quiet.join()\n"
        "class Odd:\n  def __del__(self): 1 / 0\n"
        "Odd()"
    )
    ended = run_python("-c", code)
    thread, ignored = messages(ended.stderr)
    assert thread == "the thread its thread ends"
    assert ignored.startswith("exception ignored in: <function Odd.__del__")
    for line in ended.stderr.splitlines():
        assert "ZeroDivisionError" in json.loads(line)["traceback"]


@pytest.mark.parametrize("flag", [("--log-format=json",), ("--log_format", "json")])
def test_a_usage_error_of_a_program_is_json_where_its_log_is(flag):
    ended = run_python("jobs.py", "gateway", *flag, "--no_such_flag")
    assert ended.returncode == 2
    messages(ended.stderr)
