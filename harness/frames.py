"""Raw frames over a socket; a text, questions about it, and the answers to them."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import suppress
from typing import Any

TEXT = (
    "Ada Lovelace wrote the notes in London in 1843. Charles Babbage had designed the Analytical "
    "Engine, and Luigi Menabrea had described it in French."
)
QUESTIONS = {
    "Who wrote the notes?": "Ada Lovelace",
    "When were the notes written?": "1843",
    "Who designed the Analytical Engine?": "Charles Babbage",
    "In which language did Menabrea describe it?": "French",
}
ASK: dict[str, Any] = {"question": "Who wrote the notes?", "text": TEXT}
ANSWER = QUESTIONS[ASK["question"]]
FIRST_WORD = "Ada"
"""What the instant engine answers to any question about the text."""
PREFIX = struct.Struct(">I")


def frame(body: bytes | object) -> bytes:
    """A frame of raw bytes, or of an object's JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return PREFIX.pack(len(data)) + data


def cut(data: bytearray) -> list[Any]:
    """Takes the whole frames from the beginning of what has come; returns their objects."""
    found = []
    while len(data) >= PREFIX.size:
        end = PREFIX.size + PREFIX.unpack_from(data)[0]
        if len(data) < end:
            break
        found.append(json.loads(data[PREFIX.size : end]))
        del data[:end]
    return found


def frames_in(data: bytes) -> list[Any]:
    """The objects of frames, of which the last is whole too."""
    rest = bytearray(data)
    found = cut(rest)
    assert not rest, rest
    return found


def everything(sock: socket.socket) -> bytes:
    """All that comes until the end, be it a close or a reset."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := sock.recv(1 << 16):
            data += piece
    return data


def reset_at_close(sock: socket.socket) -> None:
    """Has a close throw away what is unsent and unread."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


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
