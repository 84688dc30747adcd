"""The gRPC gateway, seen from the server: a sidecar process that asks over a Unix socket.

`gateway_messages` says what the two write each other.

If the gateway dies before it has ever listened, the server's start fails; later it is started
again. The loop is marked when the gateway listens for the first time, or cannot.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from qa_service.child_program import start_program
from qa_service.net.event_loop import EventLoop
from qa_service.server.children.child import Child
from qa_service.sidecars.gateway_messages import LISTENING, RELOAD

logger = logging.getLogger(__name__)

GATEWAY_PROGRAM = "qa_service.sidecars.grpc_gateway.child_main"
MAX_REPORT_BYTES = 4096
"""The end of what the gateway has written: a line or two."""


class GrpcProcess:
    """The gateway's program, if the server has a port for it.

    Args:
        flags: The gateway's; without any, there is no gateway, and its program never runs.

    Attributes:
        has_started: Whether it has listened, or there is none.
    """

    def __init__(self, loop: EventLoop, flags: Sequence[str]) -> None:
        self.failure = ""
        self.has_started = not flags
        self.child = Child(
            loop,
            "the gRPC gateway",
            partial(start_program, GATEWAY_PROGRAM, *flags),
            on_data=self._on_data,
            on_end=self._on_end,
        )
        self._loop = loop
        self._report = b""

    def start(self) -> None:
        if not self.has_started:
            self.child.try_start()

    def reload(self) -> None:
        self.child.write(RELOAD)

    def _on_data(self, data: bytes) -> None:
        self._report = (self._report + data)[-MAX_REPORT_BYTES:]
        if LISTENING in self._report:
            self._report = self._report.partition(LISTENING)[2]
            self.has_started = True
            self._loop.mark()

    def _on_end(self) -> None:
        self.child.start_later()
        words, self._report = self._report.decode(errors="replace").strip(), b""
        if not self.has_started:
            self.failure = words or "the gRPC gateway did not start; the log says why"
            self._loop.mark()
        elif words:
            logger.error("%s", words)
