"""A measurement of engines as the loop sees it: a program beside it, and one message at its end.

loop ──TrialRequest──▶ program    once
loop ◀──TrialReply── program      once; end-of-file without one means that it died
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

import msgspec

from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.net.stream import Stream
from qa_service.wire.frames import PREFIX, FrameReader
from qa_service.workers.engine_table import EngineTable, Measurement
from qa_service.workers.process import python_path

TRIAL_PROGRAM = "qa_service.inference.trial_main"
MAX_MESSAGE_BYTES = 1 << 24


class TrialRequest(msgspec.Struct, frozen=True):
    """What is to be measured, and the log of the instances that are."""

    measurement: Measurement
    logs: LogOptions


class TrialReply(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        table: All findings; None if the reference could not run.
        failure: Why there is no table.
    """

    table: EngineTable | None = None
    failure: str = ""


def encode(message: TrialRequest | TrialReply) -> bytes:
    """Encodes a message as a frame."""
    body = msgspec.msgpack.encode(message)
    return PREFIX.pack(len(body)) + body


class TrialProcess:
    """Starts the program and waits for its reply.

    Args:
        loop: The server's loop.
        request: What is to be measured.
        on_end: Called once with the reply; not after `close`.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self, loop: EventLoop, request: TrialRequest, on_end: Callable[[TrialReply], None]
    ) -> None:
        self._on_end = on_end
        self._frames = FrameReader(MAX_MESSAGE_BYTES)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", TRIAL_PROGRAM, str(theirs.fileno()), str(os.getpid())],
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "PYTHONPATH": python_path()},
                    stdin=subprocess.DEVNULL,
                    stdout=sys.__stderr__,
                    start_new_session=True,  # a Ctrl-C at the terminal is the server's to handle
                )
            except OSError:
                ours.close()
                raise
        self._stream = Stream(loop, ours)
        self._stream.start(self._on_data, self._on_stream_end)
        self._stream.write(encode(request))

    def close(self) -> None:
        """Ends it, and with it the instances that it has started."""
        self._stream.close()
        self._process.kill()
        self._process.wait()

    def _on_data(self, data: bytes) -> None:
        self._frames.feed(data)
        if (frame := self._frames.next_frame()) is not None:
            self._end(msgspec.msgpack.decode(frame, type=TrialReply))

    def _on_stream_end(self) -> None:
        self._end(TrialReply(failure="the program that measures them died"))

    def _end(self, reply: TrialReply) -> None:
        self.close()
        self._on_end(reply)
