"""HTTP/1.1 with keep-alive, as the peers speak it, for the load generator."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator

import msgspec

from qa_service.client import ProtocolError
from qa_service.data.squad import SquadQuestion
from qa_service.programs.load.wire import Reply

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"


class _Answer(msgspec.Struct):
    answer: str
    start: int | None
    end: int | None


class HttpWire:
    """A POST of JSON to a path; replies come in order and say their length."""

    _decode = msgspec.json.Decoder(_Answer).decode

    def __init__(self, path: str) -> None:
        self._path = path.encode()
        self._ids: deque[int] = deque()

    def body(self, question: SquadQuestion) -> bytes:
        asked = {"question": question.question, "text": question.context}
        return self._request(json.dumps(asked).encode())

    def _request(self, body: bytes) -> bytes:
        return (
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (self._path, len(body), body)
        )

    def request(self, request_id: int, body: bytes) -> bytes:
        self._ids.append(request_id)
        return body

    def replies(self, inbox: bytearray) -> Iterator[Reply]:
        while (head := inbox.find(_HEAD_END)) >= 0:
            length = _LENGTH.search(inbox, 0, head)
            if not length or not self._ids:
                raise ProtocolError(f"no reply to a request: {bytes(inbox[:head])!r}")
            end = head + len(_HEAD_END) + int(length[1])
            if len(inbox) < end:
                return
            status, body = bytes(inbox[9:12]), bytes(inbox[head + len(_HEAD_END) : end])
            del inbox[:end]
            yield self._reply(self._ids.popleft(), status, body)

    def _reply(self, request_id: int, status: bytes, body: bytes) -> Reply:
        if status != b"200":
            return Reply(request_id, f"http_{status.decode(errors='replace')}")
        try:
            answer = self._decode(body)
        except msgspec.MsgspecError as error:
            raise ProtocolError(str(error)) from error
        return Reply(request_id, "", answer.answer, answer.start, answer.end)
