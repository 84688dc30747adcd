"""Readings of the GPUs, which a sidecar process reports twice a second.

NVIDIA's library may take milliseconds for an answer, and the driver may crash the process that
loads it. So the loop keeps the last report and never calls the library.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import msgspec

from qa_service.child_program import start_program
from qa_service.net.event_loop import EventLoop
from qa_service.server.children.child import Child
from qa_service.sidecars.gpu_readings import GpuReading

logger = logging.getLogger(__name__)

METER_PROGRAM = "qa_service.sidecars.gpu_meter_main"
MAX_REPORT_BYTES = 1 << 20
"""A thousand times what eight GPUs take."""

_decoder = msgspec.msgpack.Decoder(list[GpuReading])


class GpuMeter:
    """Starts the program and keeps its last report: `readings`, one for each GPU."""

    def __init__(self, loop: EventLoop) -> None:
        self.readings: Sequence[GpuReading] = ()
        self.child = Child(
            loop,
            "the GPU meter",
            partial(start_program, METER_PROGRAM),
            on_data=self._on_report,
            max_frame_bytes=MAX_REPORT_BYTES,
            on_end=self._on_end,
        )
        self._is_started = False

    def start(self) -> None:
        """Starts the program, once; a failure is not retried."""
        if self._is_started:
            return
        self._is_started = True
        try:
            self.child.start()
        except OSError as error:
            logger.warning("no figures of the GPUs: %s", error)

    def _on_report(self, report: bytes) -> None:
        self.readings = _decoder.decode(report)

    def _on_end(self) -> None:
        """The program has ended: there is no GPU or no library, or it crashed."""
        self.readings = ()
