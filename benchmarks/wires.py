"""How each contestant is spoken to: length-prefixed frames, or HTTP/1.1 with keep-alive."""

from __future__ import annotations

import json
import re
import struct
from abc import ABC, abstractmethod

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_PREFIX = struct.Struct(">I")


class Wire(ABC):
    """Requests to bytes, bytes to answers."""

    def encode(self, question: str, text: str) -> bytes:
        """A request, ready to be sent."""
        return self.message(json.dumps({"question": question, "text": text}).encode())

    @abstractmethod
    def message(self, body: bytes) -> bytes:
        """A body as it is sent."""

    @abstractmethod
    def end(self, buffer: bytes) -> int:
        """How long the first reply in a buffer is; 0 if it is not all there."""

    @abstractmethod
    def is_answer(self, reply: bytes) -> bool:
        """Whether a reply is an answer and no error."""

    @abstractmethod
    def body(self, reply: bytes) -> bytes:
        """A reply's JSON."""

    def span(self, reply: bytes) -> tuple[object, ...]:
        """What was answered: the words, and where they stand."""
        body = json.loads(self.body(reply))
        return body["answer"], body["start"], body["end"]


class Frames(Wire):
    """A 4-byte big-endian length and that many bytes of JSON."""

    def message(self, body: bytes) -> bytes:
        return _PREFIX.pack(len(body)) + body

    def end(self, buffer: bytes) -> int:
        if len(buffer) < _PREFIX.size:
            return 0
        end = _PREFIX.size + _PREFIX.unpack_from(buffer)[0]
        return end if len(buffer) >= end else 0

    def is_answer(self, reply: bytes) -> bool:
        return b'"error":{' not in reply

    def body(self, reply: bytes) -> bytes:
        return reply[_PREFIX.size :]


class Http(Wire):
    """A POST of JSON to a path; the reply says its length, as all the peers' do."""

    def __init__(self, path: str) -> None:
        self._path = path.encode()

    def message(self, body: bytes) -> bytes:
        return (
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (self._path, len(body), body)
        )

    def end(self, buffer: bytes) -> int:
        head = buffer.find(b"\r\n\r\n")
        if head < 0:
            return 0
        length = _LENGTH.search(buffer, 0, head)
        if not length:
            raise ValueError(f"a reply without its length: {buffer[:head]!r}")
        end = head + 4 + int(length[1])
        return end if len(buffer) >= end else 0

    def is_answer(self, reply: bytes) -> bool:
        return reply.startswith(b"HTTP/1.1 200")

    def body(self, reply: bytes) -> bytes:
        return reply[reply.find(b"\r\n\r\n") + 4 :]
