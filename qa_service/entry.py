"""Every program begins here, before its modules are loaded, and ends here.

A program may be process 1 of a container, and is stopped while its modules load: the kernel ignores
a SIGTERM to process 1 unless a handler is set, and loading takes longer than an impatient
supervisor waits. A descriptor of standard input, output or error that is closed would be the next
file's or socket's: it is opened on `/dev/null`. What is written into a pipe that nobody reads any
more is dropped, and the program ends with the code of its work. A package that is missing is one
sentence, with the extra that brings it. Ctrl-C ends the program with 130, as in shells.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from qa_service.installation import say_missing

CANNOT_RUN = 2
"""The exit code of a program that lacks a package, as of all that cannot do what was asked."""


def run(module: str, extra: str) -> int:
    """Runs a module's `main` as a program; returns its exit code."""
    try:
        # What Python's own handler raises is lost in a callback, of which imports have many.
        is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_interruptible:
            signal.signal(signal.SIGINT, _end)
        signal.signal(signal.SIGTERM, _end)
        _open_standard_streams()
        gc.disable()  # it would look through the modules again and again while they load
        main = importlib.import_module(module).main  # which may take a second
        gc.freeze()  # nor does it later, and at the end
        gc.enable()
        if is_interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return int(main())
    except ModuleNotFoundError as error:
        print(f"{Path(sys.argv[0]).name}: {say_missing(error, extra)}", file=sys.stderr)
        return CANNOT_RUN
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


server = partial(run, "qa_service.server.main", "cpu")
client = partial(run, "qa_service.programs.client_main", "cpu")
stress_test = partial(run, "qa_service.programs.load.main", "load")
grpc_gateway = partial(run, "qa_service.sidecars.grpc_gateway.program", "grpc")
jobs = partial(run, "qa_service.programs.jobs.program", "jobs")
index = partial(run, "qa_service.retrieval.index_main", "cpu")
prepare_model = partial(run, "qa_service.preparation.main", "cpu")
evaluate_model = partial(run, "qa_service.evaluation.main", "cpu")


def _open_standard_streams() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one
            os.set_inheritable(descriptor, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - None if it was closed
    sys.stdout, sys.stderr = _output(sys.stdout, 1), _output(sys.stderr, 2)


def _end(signum: int, frame: FrameType | None) -> None:
    os._exit(128 + signum)  # as in shells


class _Output(io.FileIO):
    """Standard output or error, which drops what is written once nobody reads it."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - Python 3.11 has no name for its type
        try:
            return super().write(data)
        except BrokenPipeError:
            with Path(os.devnull).open("wb") as nothing:
                os.dup2(nothing.fileno(), self.fileno())
            return memoryview(data).nbytes


def _output(stream: TextIO | None, descriptor: int) -> io.TextIOWrapper:
    """A stream like one of Python's, or like one that was closed, on an `_Output`."""
    raw = _Output(descriptor, "w", closefd=False)
    if not isinstance(stream, io.TextIOWrapper):
        return io.TextIOWrapper(io.BufferedWriter(raw))
    stream.flush()
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
