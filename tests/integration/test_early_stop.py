"""Programs that are stopped while they load their modules, or start without standard error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.process import GIVE_UP_S, wait_until
from harness.server import ROOT
from tests.support import present

SERVER = [sys.executable, "server.py", "--port", "0", "--inference_engine_type", "instant"]

CODE = "import sys; from qa_service import entry; getattr(entry, sys.argv.pop(1))()"
ENTRY = [
    sys.executable,
    "-c",
    CODE,
]
PROGRAMS = {
    "server": SERVER,
    "jobs": [sys.executable, "jobs.py", "gateway", "--broker_url", "amqp://127.0.0.1:1/"],
    "grpc_gateway": [*ENTRY, "grpc_gateway", "--unix_socket", "/no/socket", "--port", "0"],
    "index": [*ENTRY, "index", "docs", "--output", "/no/folder"],
    "prepare_model": [sys.executable, "prepare_model.py", "--output_dir", "/proc/no/folder"],
}


def catches_sigterm(pid: int) -> bool:
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return bool(int(fields["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)


def child_of(pid: int) -> int:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes takes root")
@pytest.mark.parametrize("program", PROGRAMS)
def test_process_1_ends_at_a_sigterm_while_its_modules_are_loaded(program):
    command = ["unshare", "--pid", "--fork", "--kill-child", *PROGRAMS[program]]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as outer:
        try:
            wait_until(lambda: child_of(outer.pid))
            server = child_of(outer.pid)
            wait_until(lambda: catches_sigterm(server))
            os.kill(server, signal.SIGTERM)
            assert outer.wait(GIVE_UP_S) == 128 + signal.SIGTERM
            assert present(outer.stdout).read() == b""  # it had not yet begun
        finally:
            outer.kill()


def test_a_server_without_standard_error_keeps_descriptor_2_free(builtin_model):
    script = f"exec 2>&-; exec {' '.join(SERVER)} --model {builtin_model}"
    with subprocess.Popen(["sh", "-c", script], cwd=ROOT, stdout=subprocess.PIPE) as server:
        try:
            assert b"listening" in present(server.stdout).readline()
            assert str(Path(f"/proc/{server.pid}/fd/2").readlink()) == os.devnull
        finally:
            server.terminate()
            present(server.stdout).read()
