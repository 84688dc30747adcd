"""A server whose whole file system is read-only, without a folder for temporary files."""

import os
import sys

import pytest

from harness.process import reserve_port
from tests.programs import run

SCRIPT = """
for folder in / /tmp /var/tmp "$PWD"; do
    mount --bind "$folder" "$folder" && mount -o remount,bind,ro "$folder" || exit 99
done
cd "$PWD"
exec env -u TMPDIR -u TMP -u TEMP "$@"
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or run("unshare", "--mount", "true").returncode != 0,
    reason="a mount namespace needs root",
)


def run_read_only(*command: str):
    return run("unshare", "--mount", "sh", "-c", SCRIPT, "sh", *command)


def test_grpc_without_a_folder_for_its_socket_is_one_line_and_exit_code_2(builtin_model):
    flags = ("--inference_engine_type", "instant", "--model", str(builtin_model), "--port", "0")
    grpc = ("--grpc_port", str(reserve_port()))
    done = run_read_only(sys.executable, "server.py", *flags, *grpc)
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert "--unix_socket" in line
    assert "TMPDIR" in line
