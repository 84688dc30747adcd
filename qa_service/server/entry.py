"""The first that a server's process runs: it can be stopped before its modules are loaded.

The kernel ignores a SIGTERM to process 1 of a container unless a handler is set, and loading takes
longer than an impatient supervisor waits. A descriptor of standard input, output or error that is
closed would be the next file's or socket's; it is opened on `/dev/null`.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""The exit code of a program that SIGTERM ended, as in shells."""


def _end(signum: int, frame: FrameType | None) -> None:
    os._exit(TERMINATED)


def main() -> int:
    """Runs the server; returns its exit code."""
    signal.signal(signal.SIGTERM, _end)
    _open_standard_descriptors()
    from qa_service.server.main import main  # noqa: PLC0415 - takes most of a start's first second

    return main()


def _open_standard_descriptors() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one
