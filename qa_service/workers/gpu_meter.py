"""How the GPUs are, as a program beside the loop reports it every two seconds.

NVIDIA's library may take milliseconds for an answer, and what the driver maps, opens and may crash
of stays out of the loop's process. So the loop has the last report, and asks nobody.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from qa_service.net.event_loop import EventLoop
from qa_service.net.stream import Stream
from qa_service.telemetry.gpus import GpuReading
from qa_service.wire.frames import FrameReader
from qa_service.workers.process import python_path

logger = logging.getLogger(__name__)

METER_PROGRAM = "qa_service.inference.gpu_meter_main"
MAX_REPORT_BYTES = 1 << 20
REAP_DELAY_S = 1.0

_decoder = msgspec.msgpack.Decoder(list[GpuReading])


class GpuMeter:
    """Starts the program and keeps its last report.

    Args:
        loop: The server's loop.

    Attributes:
        readings: How each GPU is; empty if nobody can say.
    """

    def __init__(self, loop: EventLoop) -> None:
        self.readings: Sequence[GpuReading] = ()
        self._loop = loop
        self._frames = FrameReader(MAX_REPORT_BYTES)
        self._stream: Stream | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the program, once."""
        if self._stream:
            return
        ours, theirs = socket.socketpair()
        self._stream = Stream(self._loop, ours)
        self._stream.start(self._on_data, self._on_end)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", METER_PROGRAM, str(theirs.fileno()), str(os.getpid())],
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "PYTHONPATH": python_path()},
                    stdin=subprocess.DEVNULL,
                    stdout=sys.__stderr__,
                    start_new_session=True,  # a Ctrl-C at the terminal is the server's to handle
                )
            except OSError as error:
                logger.warning("no figures of the GPUs: %s", error)

    def close(self) -> None:
        """Has the program end: it sees that nobody listens."""
        if self._stream:
            self._stream.close()

    def _on_data(self, data: bytes) -> None:
        self._frames.feed(data)
        while (frame := self._frames.next_frame()) is not None:
            self.readings = _decoder.decode(frame)

    def _on_end(self) -> None:
        """It has ended: there is no GPU, no library, or it broke."""
        self.readings = ()
        self._loop.call_at(self._loop.now_s() + REAP_DELAY_S, self._reap)

    def _reap(self) -> None:
        if self._process:
            self._process.poll()
