"""A program of this package that another starts, with one inherited descriptor.

The descriptor is the program's end of a socketpair: end-of-file shows each side that the other has
ended. The kernel ends the program with its parent.

Nothing leaves the machine but what a flag names: the libraries' telemetry is off in each program,
before it imports them, and in the programs that it starts. OpenVINO has no variable for it: see
`quiet_openvino`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Of whoever heeds the convention, the Hugging Face hub's client, ONNX Runtime and Ray."""

PACKAGE_PARENT = str(Path(__file__).resolve().parents[1])
"""Where the programs find this package."""

PR_SET_PDEATHSIG = 1


class Program(subprocess.Popen[bytes]):
    """A process that leads a group: what it starts is killed with it."""

    def kill(self) -> None:
        """Sends SIGKILL to the group, unless the process has ended."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)


def command_of(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as a program.

    Without `-P`, Python would first look for every module in the working directory, which may be a
    folder of documents.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def start_program(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> tuple[Program, socket.socket]:
    """Runs `python -P -m MODULE FD PARENT ARGUMENT…`: the descriptor, and this process's id.

    The environment is added to this process's.

    Returns:
        The process, and this end of the socketpair.

    Raises:
        OSError: The process cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = Program(
                command_of(module, str(theirs.fileno()), str(os.getpid()), *arguments),
                pass_fds=[theirs.fileno()],
                env={**environment_of_programs(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,
                start_new_session=True,  # a Ctrl-C at the terminal is the server's to handle
            )
        except OSError:
            ours.close()
            raise
    return process, ours


def environment_of_programs() -> dict[str, str]:
    """This process's environment, in which this package is found, and nothing calls home."""
    python_path = os.pathsep.join(filter(None, [PACKAGE_PARENT, os.environ.get("PYTHONPATH")]))
    return {**os.environ, **NO_TELEMETRY, "PYTHONPATH": python_path}


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its server ends, even within a C call.

    Linux, PR_SET_PDEATHSIG in prctl(2): the parent is the thread that started this process; in the
    server only the loop's thread starts processes.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(0)


def inherited_socket(descriptor: int) -> socket.socket:
    """A program's end of its socketpair, for its `main`.

    No process that the program starts or forks keeps it: end-of-file would come only when that
    process ends too.
    """
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    os.register_at_fork(after_in_child=sock.close)
    return sock


def turn_off_telemetry() -> None:
    os.environ.update(NO_TELEMETRY)
