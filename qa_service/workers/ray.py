"""An instance on a Ray cluster: a process here that drives an actor there.

    loop ──channel── bridge process ──Ray── actor process on a node ──channel── local worker

To the loop the bridge is a worker process like any other: batches go down, results come up,
end-of-file means death. The loop's process never imports Ray, which ends its process when it loses
the cluster's head.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.workers.base import WorkerListener
from qa_service.workers.devices import CPU, DeviceAssignment
from qa_service.workers.messages import Setup
from qa_service.workers.process import ProcessWorker


class RayWorker(ProcessWorker):
    """The bridge to one actor.

    Raises:
        OSError: It cannot be started.
    """

    program: ClassVar[str] = "qa_service.inference.ray_main"

    def __init__(
        self,
        number: int,
        loop: EventLoop,
        listener: WorkerListener,
        setup: Setup,
        *,
        logs: LogOptions,
    ) -> None:
        device = DeviceAssignment("cuda:0" if setup.options.ray_num_gpus else CPU)
        setup = msgspec.structs.replace(setup, device=device)
        super().__init__(number, loop, listener, setup, logs=logs)
        # Blame a request only if the actor process itself died; the bridge then says so.
        self.is_blameless = True

    @property
    def device(self) -> str:
        """The node and the device there; `ray` until that is known."""
        return self.ready.device if self.ready else "ray"
