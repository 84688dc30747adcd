"""An instance in a process of its own: a fresh interpreter, so that CUDA and fork never meet.

The libraries under a model read their environment variables when they load, so the variables are
set when the process starts.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from typing import ClassVar

import msgspec

from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.workers.base import Worker, WorkerListener
from qa_service.workers.messages import Setup
from qa_service.workers.program import start_program

WORKER_PROGRAM = "qa_service.inference.worker_main"

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ProcessWorker(Worker):
    """A worker process.

    Args:
        setup: The process sees no GPU but its own, as number 0; so `cuda_index` is not used.

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
        device = msgspec.structs.replace(setup.device, cuda_index=0)
        super().__init__(number, loop, listener, msgspec.structs.replace(setup, device=device))

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
    """Starts the program of an instance; returns its process and the loop's end of the channel.

    Raises:
        OSError: It cannot be started.
    """
    environment = {
        **dict.fromkeys(_THREAD_VARIABLES, str(setup.options.intra_op_num_threads)),
        "CUDA_VISIBLE_DEVICES": setup.device.visible_as,
        "TOKENIZERS_PARALLELISM": "false",
        "ORT_DISABLE_TELEMETRY": "1",
    }
    # Workers run at a lower priority, so that the loop runs at once when every core is busy.
    niceness = str(setup.options.worker_niceness)
    return start_program(
        program, niceness, logs.log_level, logs.log_format, environment=environment
    )
