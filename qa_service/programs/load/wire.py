"""The protocol of a connection of the load generator: requests to bytes, bytes to replies.

`QaWire` is this project's protocol (docs/PROTOCOL.md). The same questions are asked many times, so
a question's JSON is made once, and only its id is written each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from qa_service.client import (
    MAX_RESPONSE_BYTES,
    ProtocolError,
    QaServerError,
    frame_of,
    take_frames,
)
from qa_service.data.squad import SquadQuestion


class Reply(NamedTuple):
    """A reply of the server.

    Attributes:
        id: The request's id; None for an error of the connection.
        answer: Empty if the text holds none.
        start: In code points; None if the text holds no answer.
        end: Exclusive; None if the text holds no answer.
        passage: Where start and end of a collection's answer count; None for a text.
        closing: Whether the server takes no more requests on this connection.
    """

    id: int | None
    code: str = ""
    answer: str = ""
    start: int | None = None
    end: int | None = None
    passage: str | None = None
    closing: bool = False

    @property
    def error(self) -> QaServerError | None:
        """The error of a reply to no request."""
        return QaServerError(self.code, "the server refuses the connection") if self.code else None


class Wire(Protocol):
    """The protocol of one connection, with its state."""

    def body(self, question: SquadQuestion) -> bytes:
        """The part of a request that is the same each time."""

    def request(self, request_id: int, body: bytes) -> bytes:
        """The bytes of a request."""

    def replies(self, inbox: bytearray) -> Iterator[Reply]:
        """Takes the complete replies out of the inbox; `ProtocolError` if the bytes are none."""


class _Error(msgspec.Struct):
    code: str


class _Passage(msgspec.Struct):
    start: int
    text: str


class _Frame(msgspec.Struct):
    id: int | None = None
    answer: str = ""
    start: int | None = None
    end: int | None = None
    passage: _Passage | None = None
    error: _Error | None = None
    closing: bool = False


class QaWire:
    """Length-prefixed JSON."""

    _decode = msgspec.json.Decoder(_Frame).decode

    def body(self, question: SquadQuestion) -> bytes:
        """The JSON without the id and the brace before it."""
        return _json({"question": question.question, "text": question.context})[1:]

    def request(self, request_id: int, body: bytes) -> bytes:
        return frame_of(b'{"id":%d,' % request_id + body)

    def replies(self, inbox: bytearray) -> Iterator[Reply]:
        return map(self._reply, take_frames(inbox, MAX_RESPONSE_BYTES))

    def _reply(self, body: bytes) -> Reply:
        try:
            frame = self._decode(body)
        except msgspec.MsgspecError as error:
            raise ProtocolError(str(error)) from error
        code = frame.error.code if frame.error else ""
        start, end, text = frame.start, frame.end, None
        if frame.passage and start is not None and end is not None:
            start, end = start - frame.passage.start, end - frame.passage.start
            text = frame.passage.text
        return Reply(frame.id, code, frame.answer, start, end, text, frame.closing)


class CollectionWire(QaWire):
    """The same, for questions to a collection; None leaves the number of passages to the server."""

    def __init__(self, collection: str, max_passages: int | None = None) -> None:
        more = {"max_passages": max_passages} if max_passages else {}
        self.asked: dict[str, Any] = {"collection": collection, **more}

    def body(self, question: SquadQuestion) -> bytes:
        """Its JSON without the text, the id and the brace before it."""
        return _json({"question": question.question, **self.asked})[1:]


def _json(fields: dict[str, Any]) -> bytes:
    # A lone surrogate cannot be sent; the server would refuse the whole frame for it.
    return json.dumps(fields, ensure_ascii=False).encode(errors="replace")
