"""An instance in a process of its own: a fresh interpreter, so that CUDA and fork never meet.

It is started as a plain program with one inherited descriptor, its channel. Its environment
is set before any library under the model loads, which is when they read it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import msgspec

from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.workers.base import Worker, WorkerListener
from qa_service.workers.messages import Setup

WORKER_PROGRAM = "qa_service.inference.worker_main"

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ProcessWorker(Worker):
    """A worker process.

    Args:
        number: Which instance it is.
        loop: The server's loop.
        listener: Who hears from it.
        setup: What it is to be. It sees no GPU but its own, which it knows by number 0.
        logs: Its log, which goes to the server's standard error.

    Raises:
        OSError: It cannot be started.
    """

    program: ClassVar[str] = WORKER_PROGRAM

    def __init__(
        self,
        number: int,
        loop: EventLoop,
        listener: WorkerListener,
        setup: Setup,
        *,
        logs: LogOptions,
    ) -> None:
        self._logs = logs
        its_view = msgspec.structs.replace(setup.device, cuda_index=0)
        setup = msgspec.structs.replace(setup, device=its_view)
        super().__init__(number, loop, listener, setup)

    def _launch(self) -> socket.socket:
        self._process, channel = launch(self.program, self.setup, self._logs)
        return channel

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._process.kill()

    def exit_status(self) -> str | None:
        """The process's exit code or signal; reaps it."""
        code = self._process.poll()
        if code is None:
            return None
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


def launch(
    program: str, setup: Setup, logs: LogOptions
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts the program of an instance.

    Returns:
        The process, and this end of its channel.

    Raises:
        OSError: It cannot be started.
    """
    ours, theirs = socket.socketpair()
    # With every core busy in a worker, the loop is still to run the moment a byte arrives.
    niceness = str(setup.options.worker_niceness)
    arguments = (str(theirs.fileno()), str(os.getpid()), niceness, logs.log_level, logs.log_format)
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", program, *arguments],
                pass_fds=[theirs.fileno()],
                env=_environment(setup),
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,
                start_new_session=True,  # a Ctrl-C at the terminal is the server's to handle
            )
        except OSError:
            ours.close()
            raise
    return process, ours


def python_path() -> str:
    """PYTHONPATH for a program of this package, wherever the server was started."""
    package_parent = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))


def _environment(setup: Setup) -> dict[str, str]:
    threads = dict.fromkeys(_THREAD_VARIABLES, str(setup.options.intra_op_num_threads))
    return {
        **os.environ,
        **threads,
        "CUDA_VISIBLE_DEVICES": setup.device.visible_as,
        "TOKENIZERS_PARALLELISM": "false",
        "ORT_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": python_path(),
    }
