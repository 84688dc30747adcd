"""Raw frames over a socket."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

PREFIX = struct.Struct(">I")


def frame(body: bytes | object) -> bytes:
    """A frame of raw bytes, or of an object's JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return PREFIX.pack(len(data)) + data


def receive(sock: socket.socket) -> Any:
    """The next frame's object; None at the stream's end."""
    if not (prefix := _read(sock, PREFIX.size)):
        return None
    (length,) = PREFIX.unpack(prefix)
    return json.loads(_read(sock, length))


def _read(sock: socket.socket, size: int) -> bytes:
    """Reads a number of bytes, or none at the stream's end; SSL sockets lack MSG_WAITALL."""
    data = b""
    while len(data) < size and (piece := sock.recv(size - len(data))):
        data += piece
    assert len(data) in {0, size}, "the stream ended in a frame"
    return data
