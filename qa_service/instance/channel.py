"""The worker's end of its channel: a socketpair whose other end the loop selects on.

Frames are a 4-byte big-endian length and a body. End-of-file means that the other side has ended;
the two share no lock that a killed process could hold.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from qa_service.instance.worker_messages import (
    MAX_MESSAGE_BYTES,
    ToLoop,
    ToWorker,
    encode,
    to_worker_decoder,
)
from qa_service.wire.frames import FrameReader, receive_frame


class WorkerChannel:
    """The worker's end of the socketpair: blocking, one message at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._frames = FrameReader(MAX_MESSAGE_BYTES)

    def receive(self, on_arrival: Callable[[], object] = lambda: None) -> ToWorker | None:
        """Waits for the next message; None when the loop's end is closed.

        `on_arrival` is called when it is there, before it is decoded.
        """
        if (body := self.receive_body()) is None:
            return None
        on_arrival()
        message: ToWorker = to_worker_decoder.decode(body)
        return message

    def receive_body(self) -> bytes | None:
        """Waits for the next message's bytes; None when the loop's end is closed."""
        return receive_frame(self._frames, self._sock.recv)

    def send(self, message: ToLoop) -> None:
        self._sock.sendall(encode(message))

    def close(self) -> None:
        self._sock.close()
