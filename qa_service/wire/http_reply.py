"""HTTP replies as bytes: status line, header fields, body. Sans-IO."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from qa_service.errors import HttpError, QaError, UnauthorizedError
from qa_service.wire.messages import Timings

JSON = "application/json"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_encode = msgspec.json.Encoder().encode


class HttpReply(msgspec.Struct, frozen=True):
    """A reply, without what depends on the connection.

    Attributes:
        fields: Header fields beside those of every reply.
    """

    body: bytes = b""
    status: int = 200
    content_type: str = JSON
    fields: Mapping[str, str] = {}


def json_reply(value: object, status: int = 200) -> HttpReply:
    """A reply whose body is this value's JSON."""
    return HttpReply(_encode(value), status)


def error_reply(error: QaError, body: object = None) -> HttpReply:
    """The reply that tells an error, in Triton's form unless another body is given."""
    fields = dict(error.fields) if isinstance(error, HttpError) else {}
    if error.retry_after_ms is not None:
        fields["Retry-After"] = str(math.ceil(error.retry_after_ms / 1e3))
    if isinstance(error, UnauthorizedError):
        fields["WWW-Authenticate"] = "Bearer"
    content = _encode({"error": error.message} if body is None else body)
    return HttpReply(content, error.status, fields=fields)


def timed_reply(value: object, timings: Timings) -> HttpReply:
    """A reply whose body is this value's JSON, with the times as `Server-Timing` (W3C)."""
    durations = f"queue;dur={timings.queue:.3f}, inference;dur={timings.inference:.3f}"
    return HttpReply(_encode(value), fields={"Server-Timing": durations})


def compressed(reply: HttpReply, accept_encoding: str) -> HttpReply:
    """The reply in a coding that the client accepts; unchanged if there is none."""
    if not accept_encoding:
        return reply
    accepted: dict[str, bool] = {}
    for item in accept_encoding.lower().split(","):
        name, _, weight = item.partition(";")
        accepted[name.strip()] = weight.replace(" ", "") not in {"q=0", "q=0.0"}
    coding = next((coding for coding in _CODINGS if accepted.get(coding)), None)
    if coding is None:
        return reply
    packer = zlib.compressobj(level=1, wbits=_CODINGS[coding])
    body = packer.compress(reply.body) + packer.flush()
    fields = {**reply.fields, "Content-Encoding": coding, "Vary": "Accept-Encoding"}
    return HttpReply(body, reply.status, reply.content_type, fields)


_CODINGS = {"gzip": 31, "deflate": 15}
"""zlib's `wbits` for the names of RFC 9110, whose `deflate` is the zlib format."""


def decompress(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Undoes a request's `Content-Encoding`.

    Raises:
        HttpError: The coding is unknown, the body is malformed, or it inflates to over `max_bytes`.
    """
    coding = coding.lower()
    if coding in {"", "identity"}:
        return body
    if coding not in _CODINGS:
        fields = {"Accept-Encoding": ", ".join(_CODINGS)}
        raise HttpError(f"bodies may be in {' or '.join(_CODINGS)}", status=415, fields=fields)
    unpacker = zlib.decompressobj(_CODINGS[coding])
    try:
        inflated = unpacker.decompress(body, max_bytes + 1)
    except zlib.error:
        raise HttpError(f"the body is not in {coding}") from None
    if len(inflated) > max_bytes:
        raise HttpError(f"the body inflates to over {max_bytes} bytes", status=413)
    if not unpacker.eof or unpacker.unused_data:
        raise HttpError(f"the body is not in {coding}, or not all of it")
    return inflated


def encode_reply(
    reply: HttpReply,
    fields: Mapping[str, str] = {},
    *,
    is_last: bool = False,
    is_http_1_0: bool = False,
    is_head: bool = False,
) -> bytes:
    """Encodes a reply.

    Args:
        fields: Header fields beside the reply's own.
        is_last: Whether the connection ends after it.
        is_http_1_0: Whether the client must be told if the connection stays.
        is_head: Whether the method is HEAD, whose reply has no body.
    """
    head = _FIRST_LINES[reply.status]
    if reply.status != NO_CONTENT:
        head += f"Content-Type: {reply.content_type}\r\nContent-Length: {len(reply.body)}\r\n"
    for name, value in (*reply.fields.items(), *fields.items()):
        head += f"{name}: {value}\r\n"
    if is_last:
        head += "Connection: close\r\n"
    elif is_http_1_0:
        head += "Connection: keep-alive\r\n"
    body = b"" if is_head else reply.body
    return b"%b\r\n%b" % (head.encode("latin-1"), body)


NO_CONTENT = 204
_FIRST_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nX-Content-Type-Options: nosniff\r\n"
    for status in HTTPStatus
}
