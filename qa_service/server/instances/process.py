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


class ProcessWorker(Worker):
    """A worker process.

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
