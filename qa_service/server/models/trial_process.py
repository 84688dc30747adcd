"""The program that measures engines, seen from the loop."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from qa_service.autotune.messages import MAX_MESSAGE_BYTES, TrialReply, TrialRequest, encode
from qa_service.child_program import start_program
from qa_service.net.event_loop import EventLoop
from qa_service.net.stream import Stream
from qa_service.wire.frames import FrameReader

TRIAL_PROGRAM = "qa_service.autotune.trial_main"


class TrialProcess:
    """Starts the program and calls `on_end` with its reply, once; not after `close`.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self, loop: EventLoop, request: TrialRequest, on_end: Callable[[TrialReply], None]
    ) -> None:
        self._on_end = on_end
        self._frames = FrameReader(MAX_MESSAGE_BYTES)
        self._process, sock = start_program(TRIAL_PROGRAM)
        self._stream = Stream(loop, sock)
        self._stream.start(self._on_data, self._on_stream_end)
        self._stream.write(encode(request))

    def close(self) -> None:
        """Ends the program and the instances that it has started."""
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
