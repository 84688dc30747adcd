"""HTTP/1.1: a stream of bytes cut into requests. Sans-IO.

    HEAD ──no body, or Content-Length──▶ BODY ────┐
      │ └──Transfer-Encoding: chunked──▶ CHUNKS ──┤
      │◀──────────whole, the client stays─────────┤
      └──▶ CLOSED ◀──an error, or the last one────┘

A head is parsed when it is whole, so that nothing but its bytes is held until then, and the result
does not depend on how they were cut. A refused request is the last of its stream: the bytes behind
it are never read as another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto

from qa_service.errors import HttpError
from qa_service.wire.http.http_message import (
    MAX_TARGET_BYTES,
    ChunkedBody,
    HttpHead,
    body_too_large,
    head_of,
)

MAX_HEAD_BYTES = 2 * MAX_TARGET_BYTES
"""The longest target, and as much for the fields."""
MAX_LINE_BYTES = MAX_TARGET_BYTES + 64
"""The longest target, a method and a version."""
FEED_BYTES = 16384
"""Bytes of a chunked body that one call of `next_event` parses, in at most `MAX_SLICES` pieces:
a bound on how long one client holds the loop."""
MAX_SLICES = 64
BLANK_LINE = b"\r\n\r\n"

_LINE = re.compile(rb"[A-Z][^\n]{0,%d} HTTP/1\.[01]\r\n" % (MAX_LINE_BYTES - 12))
"""A request line that needs no further look."""
_PATH = re.compile(rb"[A-Z]+ (?:https?://[^/?# \r\n]*)?(/[^?# \r\n]*)[?# ]", re.IGNORECASE)
"""The path in a request line, whatever else is wrong with it."""
_ORIGIN = re.compile(rb"\r\norigin:[ \t]*([^ \t\r\n]*)[ \t]*\r\n", re.IGNORECASE)
"""The first `Origin` of a head, whatever else is wrong with it."""
_VERSION = re.compile(rb" HTTP/([0-9.]+)\r\n\Z")


class _State(Enum):
    HEAD = auto()
    BODY = auto()
    CHUNKS = auto()


class HttpReader:
    """Cuts a stream of bytes into requests: of each a head, then its whole body.

    Args:
        max_body_bytes: The longest body accepted, as it is sent.

    Attributes:
        path: Of a closed reader: the path of the request whose head was being read; empty if there
            was none, or if it is malformed.
        origin: Likewise, its `Origin`: a page is to read why its request is refused.
        has_more: Whether `next_event` gave nothing only because it had parsed enough for one call.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._buffer = bytearray()
        self._state = _State.HEAD
        self._is_last = False
        self._body_bytes = 0
        self._chunks: ChunkedBody | None = None
        self.is_closed = False
        self.path = self.origin = ""
        self.has_more = False

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer) + (len(self._chunks.data) if self._chunks else 0)

    def feed(self, data: bytes) -> None:
        if not self.is_closed:
            self._buffer += data

    def close(self) -> None:
        self.is_closed = True
        if self._state is _State.HEAD and (found := _PATH.match(self._buffer)):
            self.path = found[1].decode("latin-1")
            origin = _ORIGIN.search(self._buffer, 0, self._size_until(BLANK_LINE))
            self.origin = origin[1].decode("latin-1") if origin else ""
        self._buffer.clear()
        self._chunks = None
        self.has_more = False

    def next_event(self) -> HttpHead | bytes | None:
        """Takes out the next head, or the body that belongs to the last one.

        None if more bytes are needed, or if this call has parsed as much as one may: then
        `has_more` is true, and the caller asks again when others have had their turn.

        Raises:
            HttpError: The stream cannot be followed any further. Nothing more will come.
        """
        if self.is_closed:
            return None
        try:
            return _NEXT[self._state](self)
        except HttpError:
            self.close()
            raise

    def _next_head(self) -> HttpHead | None:
        if not self._buffer:
            return None
        if not _LINE.match(self._buffer):
            while self._buffer.startswith(b"\r\n"):
                del self._buffer[:2]
            self._check_line()
        size = self._size_until(BLANK_LINE)
        if size > MAX_HEAD_BYTES:
            raise HttpError("the head is too long", status=431)
        if size > len(self._buffer):
            return None
        head = head_of(bytes(self._buffer[:size]))
        self._is_last = head.is_last
        if head.body_bytes is None:
            self._chunks = ChunkedBody(self._max_body_bytes)
            self._state = _State.CHUNKS
        elif head.body_bytes > self._max_body_bytes:
            raise body_too_large(self._max_body_bytes)
        else:
            self._body_bytes = head.body_bytes
            self._state = _State.BODY
        del self._buffer[:size]
        return head

    def _check_line(self) -> None:
        """Checks the request line once it is whole: other protocols fail here."""
        size = self._size_until(b"\n")
        if size > MAX_LINE_BYTES:
            raise HttpError("the target is too long", status=414)
        if size > len(self._buffer):
            return
        version = _VERSION.search(bytes(self._buffer[:size]))
        if not version:
            raise HttpError("the request line is malformed")
        if version[1] not in {b"1.1", b"1.0"}:
            raise HttpError("only HTTP/1.1 and HTTP/1.0 are spoken", status=505)

    def _size_until(self, end: bytes) -> int:
        """Length through `end`, or more than is buffered if absent."""
        at = self._buffer.find(end)
        return at + len(end) if at >= 0 else len(self._buffer) + 1

    def _next_body(self) -> bytes | None:
        if len(self._buffer) < self._body_bytes:
            return None
        body = bytes(self._buffer[: self._body_bytes])
        del self._buffer[: self._body_bytes]
        self._end_request()
        return body

    def _next_chunks(self) -> bytes | None:
        chunks, budget, self.has_more = self._chunks, FEED_BYTES, False
        assert chunks
        for _ in range(MAX_SLICES):
            # A slice never ends within a blank line and has nothing behind one: so it never reaches
            # into the next request, as a chunked body ends with a blank line.
            end = self._buffer.find(BLANK_LINE)
            if end < 0:
                size = min(budget, max(0, len(self._buffer) - len(BLANK_LINE) + 1))
            else:
                size = end + len(BLANK_LINE)
                size = size if size <= budget else min(budget, end)
            if not size:
                self.has_more = budget < len(BLANK_LINE)
                return None
            chunks.feed(bytes(self._buffer[:size]))
            del self._buffer[:size]
            budget -= size
            if chunks.is_complete:
                self._end_request()
                return bytes(chunks.data)
        self.has_more = True
        return None

    def _end_request(self) -> None:
        self._chunks = None
        self._state = _State.HEAD
        if self._is_last:
            self.close()


_NEXT: Mapping[_State, Callable[[HttpReader], HttpHead | bytes | None]] = {
    _State.HEAD: HttpReader._next_head,
    _State.BODY: HttpReader._next_body,
    _State.CHUNKS: HttpReader._next_chunks,
}
