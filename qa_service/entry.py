"""The first that a program runs which may be process 1: it can be stopped while its modules load.

The kernel ignores a SIGTERM to process 1 of a container unless a handler is set, and loading takes
longer than an impatient supervisor waits. A descriptor of standard input, output or error that is
closed would be the next file's or socket's; it is opened on `/dev/null`.
"""

from __future__ import annotations

import importlib
import os
import signal
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""The exit code of a program that SIGTERM ended, as in shells."""


def server() -> int:
    """Runs the program qa-server; returns its exit code."""
    return _run("qa_service.server.main")


def grpc_gateway() -> int:
    """Runs the program qa-grpc-gateway; returns its exit code."""
    return _run("qa_service.sidecars.grpc_gateway.program")


def jobs() -> int:
    """Runs the program qa-jobs; returns its exit code."""
    return _run("qa_service.programs.jobs.program")


def index() -> int:
    """Runs the program qa-index; returns its exit code."""
    return _run("qa_service.retrieval.index_main")


def prepare_model() -> int:
    """Runs the program qa-prepare-model; returns its exit code."""
    return _run("qa_service.preparation.main")


def _run(module: str) -> int:
    signal.signal(signal.SIGTERM, _end)
    _open_standard_descriptors()
    return int(importlib.import_module(module).main())  # the import takes most of the first second


def _end(signum: int, frame: FrameType | None) -> None:
    os._exit(TERMINATED)


def _open_standard_descriptors() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one
