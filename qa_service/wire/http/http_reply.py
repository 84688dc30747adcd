"""HTTP replies as bytes: status line, header fields, body. Sans-IO."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus

import msgspec

from qa_service.errors import HttpError, QaError
from qa_service.wire.error_codes import header_fields_of, status_of
from qa_service.wire.messages import Timings

JSON = "application/json"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_encode = msgspec.json.Encoder().encode


class HttpReply(msgspec.Struct, frozen=True):
    """A reply but for what depends on the connection, and for the fields of every reply."""

    body: bytes = b""
    status: int = 200
    content_type: str = JSON
    fields: Mapping[str, str] = {}


def json_reply(value: object, status: int = 200) -> HttpReply:
    return HttpReply(_encode(value), status)


def error_reply(error: QaError, body: object = None) -> HttpReply:
    """The reply for an error, in Triton's form unless another body is given."""
    fields = header_fields_of(error)
    if error.retry_after_ms is not None:
        fields["Retry-After"] = str(math.ceil(error.retry_after_ms / 1e3))
    content = _encode({"error": error.message} if body is None else body)
    return HttpReply(content, status_of(error), fields=fields)


def timed_reply(value: object, timings: Timings) -> HttpReply:
    """A reply whose body is this value's JSON, with the times as `Server-Timing` (W3C)."""
    durations = f"queue;dur={timings.queue:.3f}, inference;dur={timings.inference:.3f}"
    return HttpReply(_encode(value), fields={"Server-Timing": durations})


def compressed(reply: HttpReply, accept_encoding: str) -> HttpReply:
    """The reply in the coding that the client prefers; unchanged if it accepts none."""
    coding = _preferred(accept_encoding) if accept_encoding else None
    if coding is None:
        return reply
    packer = zlib.compressobj(level=1, wbits=_CODINGS[coding])
    body = packer.compress(reply.body) + packer.flush()
    fields = {**reply.fields, "Content-Encoding": coding, "Vary": "Accept-Encoding"}
    return HttpReply(body, reply.status, reply.content_type, fields)


_CODINGS = {"gzip": 31, "deflate": 15}
"""zlib's `wbits` for the names of RFC 9110, whose `deflate` is the zlib format."""
_ALIASES = {"x-gzip": "gzip"}
"""Section 8.4.1.3."""
_REMEMBERED_ACCEPTS = 64
"""A client's library always sends the same one."""
_WEIGHT = re.compile(r"q=(0(?:\.[0-9]*)?|1(?:\.0*)?)\Z")


@lru_cache(_REMEMBERED_ACCEPTS)
def _preferred(accept_encoding: str) -> str | None:
    """The coding with the greatest weight (RFC 9110, section 12.5.3); None if `identity` has it."""
    weights: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameter = (part.strip() for part in item.partition(";"))
        found = _WEIGHT.match(parameter)
        if found or not parameter:
            weights[_ALIASES.get(name, name)] = float(found[1]) if found else 1.0
    others = weights.get("*", 0.0)
    coding = max(_CODINGS, key=lambda coding: weights.get(coding, others))
    weight = weights.get(coding, others)
    return coding if weight > 0.0 and weight >= weights.get("identity", 0.0) else None


def decompress(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Undoes a request's `Content-Encoding`.

    Raises:
        HttpError: The coding is unknown, the body is malformed, or it inflates to over `max_bytes`.
    """
    coding = coding.lower()
    coding = _ALIASES.get(coding, coding)
    if coding in {"", "identity"}:
        return body
    if coding not in _CODINGS:
        fields = {"Accept-Encoding": ", ".join(_CODINGS)}
        raise HttpError(f"bodies may be in {' or '.join(_CODINGS)}", status=415, fields=fields)
    try:
        inflated, num_members = _inflate(body, _CODINGS[coding], max_bytes)
    except (zlib.error, EOFError):
        raise HttpError(f"the body is not in {coding}, or not all of it") from None
    if len(inflated) > max_bytes:
        raise HttpError(f"the body inflates to over {max_bytes} bytes", status=413)
    if num_members > (MAX_MEMBERS if coding == "gzip" else 1):
        raise HttpError(f"the body goes on behind its {coding} data")
    return bytes(inflated)


def _inflate(body: bytes, wbits: int, max_bytes: int) -> tuple[bytearray, int]:
    """The data, of which more than `max_bytes` or `MAX_MEMBERS` members are not all read.

    A gzip file has members, one after the other (RFC 1952, section 2.2).

    Raises:
        zlib.error: The body is malformed.
        EOFError: It ends within a member.
    """
    inflated, num_members, at = bytearray(), 0, 0
    while at < len(body) and len(inflated) <= max_bytes and num_members <= MAX_MEMBERS:
        unpacker = zlib.decompressobj(wbits)
        num_members += 1
        while not unpacker.eof and len(inflated) <= max_bytes:
            if at >= len(body):
                raise EOFError
            piece = body[at : at + _PIECE_BYTES]
            inflated += unpacker.decompress(piece, max_bytes + 1 - len(inflated))
            at += len(piece) - len(unpacker.unused_data)
    if not num_members:
        raise EOFError
    return inflated, num_members


MAX_MEMBERS = 1024
"""Each costs some microseconds, however little is in it. Programs that write several put about
64 KiB into each."""
_PIECE_BYTES = 4096
"""What is behind a member's end is copied: no more than this."""


def encode_reply(
    reply: HttpReply,
    fields: Mapping[str, str] = {},
    *,
    date: str,
    is_last: bool = False,
    is_http_1_0: bool = False,
    is_head: bool = False,
) -> bytes:
    """Encodes a reply.

    Args:
        date: The time now, as `Date` has it.
        is_http_1_0: Whether the reply must say that the connection stays open.
        is_head: Whether the method is HEAD, whose reply has no body.
    """
    head = f"{_FIRST_LINES[reply.status]}Date: {date}\r\n"
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
