"""What clients speak: questions to bytes, and bytes to replies, without the server's codecs.

frames   a reply is known by its id
HTTP     replies come in the order of the requests
"""

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.frames import cut, frame
from tests.http_calls import tensors
from tests.simulation.questions import Subject
from tests.support import present

HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass(eq=False)
class Asked:
    """Something that a client has sent and that is to be answered once.

    Attributes:
        kind: `ask`, `infer`, `query`, `auth` or `bad`; the last is to be refused.
        subjects: What is asked.
        options: The request's other fields: model, version, timeout_ms, priority.
        what: The type of a query, or what is bad.
        sent_s: When its last byte was sent; None if it has not been.
        end: How many bytes its connection had sent with its last one.
        was_alone: Whether nothing else waited for an answer when it was sent.
        is_cancelled: Whether its client has cancelled it.
    """

    kind: str
    subjects: tuple[Subject, ...] = ()
    options: dict = field(default_factory=dict)
    what: str = ""
    sent_s: float | None = None
    end: int = 0
    was_alone: bool = True
    is_cancelled: bool = False

    @property
    def body(self) -> dict:
        """Of one that asks a single question."""
        [subject] = self.subjects
        more = {"top_k": subject.top_k} if subject.top_k > 1 else {}
        text = {} if "collection" in self.options else {"text": subject.text}
        return {"question": subject.question, **text, **more, **self.options}


@dataclass
class Reply:
    """What has come of something asked.

    Attributes:
        asked: None for a reply to nothing.
        code: The error's code, or `http 503` where there is only a status; empty for an answer.
        answers: Of each question, `(answer, score, start, end)`.
        says_close: Whether it says that the connection ends.
        message: The error's message.
    """

    asked: Asked | None
    code: str = ""
    answers: list = field(default_factory=list)
    model: str = ""
    version: int = 0
    body: Any = None
    says_close: bool = False
    message: str = ""


class FrameWire:
    """A client's side of the frames."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._buffer = bytearray()
        self._by_id: dict[object, Asked] = {}
        self._nameless: deque[Asked] = deque()
        self._next_id = 0

    @property
    def outstanding(self) -> list[Asked]:
        return [*self._by_id.values(), *self._nameless]

    def hello(self) -> tuple[Asked, bytes] | None:
        if self._token is None:
            return None
        asked = Asked("auth")
        return asked, self._frame(asked, {"type": "auth", "token": self._token})

    def encode(self, asked: Asked) -> bytes:
        if asked.kind == "query":
            return self._frame(asked, {"type": asked.what, **asked.options})
        if asked.kind == "bad":
            return self._bad(asked)
        return self._frame(asked, asked.body)

    def cancel(self, number: int) -> bytes:
        """A frame that cancels one of the questions outstanding; empty without any."""
        questions = [(id, asked) for id, asked in self._by_id.items() if asked.kind == "ask"]
        if not questions:
            return b""
        wire_id, asked = questions[number % len(questions)]
        asked.is_cancelled = True
        return frame({"type": "cancel", "id": wire_id})

    def _bad(self, asked):
        if asked.what in _NAMELESS:
            self._nameless.append(asked)
            return _NAMELESS[asked.what]
        return self._frame(asked, {"question": "", "text": "t"})

    def _frame(self, asked, body):
        self._next_id += 1
        self._by_id[self._next_id] = asked
        return frame({"id": self._next_id, **body})

    def feed(self, data: bytes) -> Iterator[Reply]:
        self._buffer += data
        yield from map(self._reply, cut(self._buffer))

    def _reply(self, body):
        asked = self._by_id.pop(body["id"], None)
        if body["id"] is None and self._nameless and body["error"]["code"] in _NAMELESS_CODES:
            asked = self._nameless.popleft()
        if error := body.get("error"):
            return Reply(asked, error["code"], body=body, message=error["message"])
        if "answer" not in body:
            return Reply(asked, body=body)
        best = (body["answer"], body["score"], body["start"], body["end"])
        return Reply(asked, "", [best], body.get("model", ""), body.get("version", 0), body)


class HttpWire:
    """A client's side of HTTP."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._buffer = bytearray()
        self._needed = 0
        """Bytes until which there is no whole reply."""
        self._asked: deque[Asked] = deque()

    @property
    def outstanding(self) -> list[Asked]:
        return list(self._asked)

    def hello(self) -> None:
        return None

    def cancel(self, _number: int) -> bytes:
        return b""

    def encode(self, asked: Asked) -> bytes:
        self._asked.append(asked)
        if asked.kind == "query":
            return self._request(*_QUERIES[asked.what](asked.options))
        if asked.kind == "bad":
            return self._request("POST", *_BAD[asked.what])
        if asked.kind == "infer":
            return self._request("POST", *_infer(asked))
        return self._request("POST", "/qa", json.dumps(asked.body).encode())

    def _request(self, method, path, body=b""):
        token = f"Authorization: Bearer {self._token}\r\n" if self._token is not None else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{token}Content-Length: {len(body)}"
        return head.encode() + HEAD_END + body

    def feed(self, data: bytes) -> Iterator[Reply]:
        self._buffer += data
        while len(self._buffer) >= self._needed and (at := self._buffer.find(HEAD_END)) >= 0:
            head = bytes(self._buffer[:at])
            self._needed = end = at + len(HEAD_END) + int(present(_LENGTH.search(head))[1])
            if len(self._buffer) < end:
                break
            self._needed = 0
            body = bytes(self._buffer[at + len(HEAD_END) : end])
            del self._buffer[:end]
            asked = self._asked.popleft() if self._asked else None
            yield _reply(asked, head, body)


def _infer(asked: Asked) -> tuple[str, bytes]:
    options = dict(asked.options)
    model, version = options.pop("model", "a"), options.pop("version", None)
    parameters = {"top_k": asked.subjects[0].top_k}
    if timeout_ms := options.pop("timeout_ms", None):
        parameters["timeout"] = max(1, int(timeout_ms * 1000))
    questions, texts = ([s.question for s in asked.subjects], [s.text for s in asked.subjects])
    inputs = tensors(question=questions, text=texts)
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"
    return path, json.dumps({"inputs": inputs, "parameters": parameters}).encode()


def _reply(asked: Asked | None, head: bytes, body: bytes) -> Reply:
    status = int(head[9:12])
    says_close = b"\r\nConnection: close" in head
    said = json.loads(body) if body[:1] == b"{" else {}
    if status >= 400:
        error = said.get("error", "")
        detail = error if isinstance(error, dict) else {"message": error}
        code = detail.get("code", f"http {status}")
        message = detail["message"]
        return Reply(asked, code, body=said, says_close=says_close, message=message)
    if asked and asked.kind == "infer":
        columns = {output["name"]: output["data"] for output in said["outputs"]}
        rows = zip(*(columns[name] for name in ("answer", "score", "start", "end")), strict=True)
        top_k = asked.subjects[0].top_k
        answers = [(a, round(s, 4), None if b < 0 else b, None if e < 0 else e)
                   for a, s, b, e in list(rows)[::top_k]]  # fmt: skip
        return Reply(asked, "", answers, said["model_name"], int(said["model_version"]), said,
                     says_close)  # fmt: skip
    if "answer" in said:
        best = (said["answer"], said["score"], said["start"], said["end"])
        model, version = said.get("model", ""), said.get("version", 0)
        return Reply(asked, "", [best], model, version, said, says_close)
    return Reply(asked, body=said, says_close=says_close)


_NAMELESS = {"json": frame(b'{"question": "q", "te'), "length": b"\0\xff\xff\xff"}
_NAMELESS_CODES = {"invalid_frame", "frame_too_large"}
"""Frames whose id cannot be read, and their replies."""

_QUERIES = {
    "health": lambda _: ("GET", "/v2/health/ready"),
    "live": lambda _: ("GET", "/v2/health/live"),
    "stats": lambda _: ("GET", "/stats"),
    "models": lambda _: ("GET", "/v2/models/stats"),
    "model": lambda _: ("GET", "/v2/models/a"),
    "load": lambda its: ("POST", f"/v2/repository/models/{its['model']}/load"),
    "unload": lambda its: ("POST", f"/v2/repository/models/{its['model']}/unload"),
}
_QUESTION = b'{"inputs": [{"name": "question", "shape": [1], "datatype": "BYTES", "data": ["q"]}, '
_QUESTION += b'{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["t"]}]}'
_BAD = {
    "json": ("/qa", b'{"question": "q", "te'),
    "empty": ("/qa", b'{"question": "", "text": "t"}'),
    "path": ("/nowhere", b""),
    "version": (f"/v2/models/a/versions/{'9' * 5000}/infer", _QUESTION),
}
