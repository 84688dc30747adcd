"""Frames: a stream of bytes cut into bodies. Sans-IO.

    0        4                    4 + length
    +--------+--------------------+
    | length | body               |     length: 4 bytes, big-endian, of the body alone
    +--------+--------------------+

A length over the limit is refused on the prefix alone, and the stream ends there: the next frame
could not be found. Clients' bodies are JSON, those of workers msgpack.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from qa_service.errors import FrameTooLargeError

PREFIX = struct.Struct(">I")
PREFIX_BYTES = PREFIX.size
READ_BYTES = 1 << 16
"""A batch of usual texts in one call."""


def frame_of(body: bytes) -> bytes:
    return PREFIX.pack(len(body)) + body


def encode_frame(encoder: msgspec.msgpack.Encoder, message: object) -> bytearray:
    """Encodes a message, which may be long, as a frame, without a copy of its body."""
    frame = bytearray(PREFIX_BYTES)
    encoder.encode_into(message, frame, PREFIX_BYTES)
    PREFIX.pack_into(frame, 0, len(frame) - PREFIX_BYTES)
    return frame


class FrameReader:
    """Cuts a stream of bytes into frames; `buffer` has what was not taken out yet."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self.buffer += data

    def next_frame(self) -> bytes | None:
        """Takes out the next frame's body; None if it is not all there yet.

        Raises:
            FrameTooLargeError: The next length is over the limit.
        """
        buffer = self.buffer
        if len(buffer) < PREFIX_BYTES:
            return None
        (length,) = PREFIX.unpack_from(buffer)
        if length > self.max_frame_bytes:
            raise FrameTooLargeError(
                f"a frame of {length} bytes; at most {self.max_frame_bytes} are accepted"
            )
        end = PREFIX_BYTES + length
        if len(buffer) < end:
            return None
        body = bytes(buffer[PREFIX_BYTES:end])
        del buffer[:end]
        return body

    def peek(self, max_bytes: int) -> bytes:
        """The next frame's body, which stays; empty if it is longer or not all there."""
        end = PREFIX_BYTES + int.from_bytes(self.buffer[:PREFIX_BYTES])
        if not PREFIX_BYTES < end <= min(len(self.buffer), PREFIX_BYTES + max_bytes):
            return b""
        return bytes(self.buffer[PREFIX_BYTES:end])


def receive_frame(frames: FrameReader, receive: Callable[[int], bytes]) -> bytes | None:
    """Waits for the next frame's body, by a blocking `socket.recv`; None if the peer has ended."""
    while (body := frames.next_frame()) is None:
        try:
            data = receive(READ_BYTES)
        except ConnectionError:
            return None
        if not data:
            return None
        frames.feed(data)
    return body
