"""An instance in a separate process, which runs the model or drives an actor on a Ray cluster."""

from __future__ import annotations

import signal
import socket
from typing import ClassVar

from qa_service.instance.launch import WORKER_PROGRAM, launch
from qa_service.instance.messages import Setup
from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.server.instances.base import Worker, WorkerListener

_OWN_SIGNALS = {
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV),
    *(signal.SIGSYS, signal.SIGTRAP),
}
"""What a program's own fault raises; any other signal is sent by somebody: a person, the kernel
short of memory, a supervisor."""


class ProcessWorker(Worker):
    """A worker process.

    Raises:
        OSError: It cannot be started.
    """

    program: ClassVar[str] = WORKER_PROGRAM
    _is_killed_here = False

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
        super().__init__(number, loop, listener, setup)

    def _launch(self) -> socket.socket:
        self._process, channel = launch(self.program, self.setup, self._logs)
        return channel

    def kill(self) -> None:
        """Sends SIGKILL."""
        if self._process.poll() is None:
            self._is_killed_here = True
            self._process.kill()

    def exit_status(self) -> str | None:
        """The process's exit code or signal; reaps it."""
        code = self._process.poll()
        if code is None:
            return None
        return f"killed by {_name(-code)}" if code < 0 else f"exited with {code}"

    @property
    def was_killed(self) -> bool:
        """Whether a signal that nobody here sent has ended it; known once `exit_status` is."""
        code = self._process.poll()
        is_signal = code is not None and code < 0 and -code not in _OWN_SIGNALS
        return is_signal and not self._is_killed_here


class RayWorker(ProcessWorker):
    """The bridge to an actor on a Ray cluster.

        loop ──channel── bridge process ──Ray── actor process on a node ──channel── local worker

    To the loop it is a worker process like any other. The loop's process never imports Ray, which
    ends its process when it loses the cluster's head.
    """

    program: ClassVar[str] = "qa_service.instance.ray_main"
    is_blameless = True
    """A request is to blame only if the actor's process itself died; the bridge then says so."""

    @property
    def device(self) -> str:
        """The node and the device there; `ray` until that is known."""
        return self.ready.device if self.ready else "ray"


def _name(signum: int) -> str:
    """A signal's name; a real-time one has none."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
