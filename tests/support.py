"""What several tests need: a loop run until something is so, and raw frames over a socket."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable

from qa_service.event_loop import EventLoop

DEADLINE_S = 20.0


def run_until(loop: EventLoop, condition: Callable[[], bool]) -> None:
    """Runs the loop, round upon round, until the condition holds; fails if it never does."""
    late: list[bool] = []

    def give_up() -> None:
        late.append(True)
        loop.stop()

    def check() -> None:
        if condition():
            loop.stop()
        loop.call_soon(lambda: None)

    loop.call_soon(lambda: None)
    timer = loop.call_at(loop.now_s() + DEADLINE_S, give_up)
    loop.after_each = check
    loop.run()
    timer.cancel()
    assert not late, "the condition never held"


def frame(body: bytes | object) -> bytes:
    """A frame of raw bytes, or of an object's JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return struct.pack(">I", len(data)) + data


def receive(sock: socket.socket) -> dict | None:
    """The next frame's object; None at the stream's end."""
    if not (prefix := _read(sock, 4)):
        return None
    (length,) = struct.unpack(">I", prefix)
    return json.loads(_read(sock, length))


def _read(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or none at the stream's end; an SSL socket knows no MSG_WAITALL."""
    data = b""
    while len(data) < size and (piece := sock.recv(size - len(data))):
        data += piece
    assert len(data) in {0, size}, "the stream ended in a frame"
    return data
