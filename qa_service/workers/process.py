"""A session in a process of its own: a fresh interpreter, so that CUDA and fork never meet.

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

from qa_service.batching import BatchRule
from qa_service.event_loop import EventLoop
from qa_service.workers.base import Worker, WorkerListener

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ProcessWorker(Worker):
    """A worker process.

    Args:
        number: Which session it is.
        loop: The server's loop.
        listener: Who hears from it.
        rule: What it can run together, as far as that is known before it has measured.
        intra_op_num_threads: Threads for the libraries under the model.
        niceness: How far its scheduling priority is below the loop's: with every core busy in a
            worker, the loop is still to run the moment a byte arrives.
        log_level: Level of its log, which goes to the server's standard error.
        log_format: Format of its log.
    """

    def __init__(
        self,
        number: int,
        loop: EventLoop,
        listener: WorkerListener,
        rule: BatchRule,
        *,
        intra_op_num_threads: int,
        niceness: int,
        log_level: str,
        log_format: str,
    ) -> None:
        self._intra_op_num_threads = intra_op_num_threads
        self._arguments = (str(niceness), log_level, log_format)
        super().__init__(number, loop, listener, rule)

    def _launch(self, channel: socket.socket) -> None:
        descriptor = channel.fileno()
        module = "qa_service.workers.worker_main"
        with channel:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(descriptor), *self._arguments],
                pass_fds=[descriptor],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,
                start_new_session=True,  # a Ctrl-C at the terminal is the server's to handle
            )

    def _environment(self) -> dict[str, str]:
        threads = dict.fromkeys(_THREAD_VARIABLES, str(self._intra_op_num_threads))
        package_parent = str(Path(__file__).resolve().parents[2])
        python_path = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))
        return {
            **os.environ,
            **threads,
            "TOKENIZERS_PARALLELISM": "false",
            "ORT_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": python_path,
        }

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._process.kill()

    def exit_status(self) -> str | None:
        """The process's exit code or signal; reaps it."""
        code = self._process.poll()
        if code is None:
            return None
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
