"""Starts a program of this package with one inherited descriptor: its end of a socketpair.

End-of-file on the socketpair tells each side that the other has ended.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from qa_service.no_telemetry import NO_TELEMETRY


def start_program(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Runs `python -m MODULE FD PARENT ARGUMENT…`: the descriptor, and this process's id.

    The environment is added to this process's.

    Returns:
        The process, and this end of the socketpair.

    Raises:
        OSError: The process cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid()), *arguments],
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
    package_parent = str(Path(__file__).resolve().parents[2])
    python_path = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))
    return {**os.environ, **NO_TELEMETRY, "PYTHONPATH": python_path}
