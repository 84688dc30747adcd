"""Readings of the GPUs, which a sidecar process reports twice a second.

NVIDIA's library may take milliseconds for an answer, and the driver may crash the process that
loads it. So the loop keeps the last report and never calls the library.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Sequence

import msgspec

from qa_service.child_program import start_program
from qa_service.net.event_loop import EventLoop
from qa_service.net.stream import Stream
from qa_service.sidecars.gpu_readings import GpuReading
from qa_service.wire.frames import FrameReader

logger = logging.getLogger(__name__)

METER_PROGRAM = "qa_service.sidecars.gpu_meter_main"
MAX_REPORT_BYTES = 1 << 20
"""A thousand times what eight GPUs take."""
REAP_DELAY_S = 1.0
"""A program that closed its descriptor has ended by then."""

_decoder = msgspec.msgpack.Decoder(list[GpuReading])


class GpuMeter:
    """Starts the program and keeps its last report: `readings`, one for each GPU."""

    def __init__(self, loop: EventLoop) -> None:
        self.readings: Sequence[GpuReading] = ()
        self._loop = loop
        self._frames = FrameReader(MAX_REPORT_BYTES)
        self._is_started = False
        self._stream: Stream | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the program, once; a failure is not retried."""
        if self._is_started:
            return
        self._is_started = True
        try:
            self._process, sock = start_program(METER_PROGRAM)
        except OSError as error:
            logger.warning("no figures of the GPUs: %s", error)
            return
        self._stream = Stream(self._loop, sock)
        self._stream.start(self._on_data, self._on_end)

    def close(self) -> None:
        """Sends end-of-file, at which the program ends."""
        if self._stream:
            self._stream.close()

    def _on_data(self, data: bytes) -> None:
        self._frames.feed(data)
        while (frame := self._frames.next_frame()) is not None:
            self.readings = _decoder.decode(frame)

    def _on_end(self) -> None:
        """The program has ended: there is no GPU or no library, or it crashed."""
        self.readings = ()
        self._loop.call_at(self._loop.now_s() + REAP_DELAY_S, self._reap)

    def _reap(self) -> None:
        if self._process:
            self._process.poll()
