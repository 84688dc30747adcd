"""One HTTP/1.1 message: its syntax by llhttp (through httptools), its meaning by the rules here.

A message that two readers could understand in two ways is refused (RFC 9112, section 11.2), and so
is what this server has no use for, such as a transfer coding other than chunked. Sans-IO.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import httptools
import msgspec

from qa_service.errors import HttpError

MAX_FIELDS = 64
"""Several times what browsers and proxies send."""
MAX_TARGET_BYTES = 8192
"""RFC 9112, section 3, recommends to take request lines of 8,000 bytes."""
MAX_FRAMING_BYTES = 32768
"""Chunk sizes, extensions and trailers of a chunked body together, beyond `FRAMING_PER_BYTE`:
without a bound, a client could send framing for ever and never reach the body's limit."""
FRAMING_PER_BYTE = 12
"""What a chunk of one byte may have around it: its size in eight digits, and two line ends."""

_REMEMBERED_HEADS, _REMEMBERED_BYTES = 512, 512
"""256 KiB of heads at most; those of most clients are shorter than 512 bytes."""
_AUTHORITY = re.compile(r"(?:[a-z0-9._~-]+|\[[0-9a-f:.]+\])(?::[0-9]{0,5})?\Z")
_ABSOLUTE = re.compile(r"https?://([^/?#@]*)((?:[/?][^#]*)?)\Z", re.IGNORECASE)
_LENGTH = re.compile(r"(?:0|[1-9][0-9]*)\Z")
_CHUNKED_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class HttpHead(msgspec.Struct, frozen=True):
    """A request line and the header fields.

    Attributes:
        path: The target's path, still percent-encoded; `*` for the server as a whole.
        host: The target's authority, else the Host, in lower case; empty if HTTP/1.0 has neither.
        fields: By name in lower case; those of one name are joined by commas.
        is_last: Whether the connection ends after the response.
        body_bytes: None if the length of the body is known only at its end.
    """

    method: str
    path: str
    host: str
    fields: Mapping[str, str]
    is_http_1_0: bool
    is_last: bool
    body_bytes: int | None


class _HeadFields:
    __slots__ = ("pairs", "target")

    def __init__(self) -> None:
        self.target = b""
        self.pairs: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.pairs.append((name, value))


def _parse_head(data: bytes) -> HttpHead:
    found = _HeadFields()
    parser = httptools.HttpRequestParser(found)
    _parse(parser, data)
    method, version = parser.get_method().decode(), parser.get_http_version()
    if len(found.pairs) > MAX_FIELDS:
        raise HttpError(f"over {MAX_FIELDS} header fields", status=431)
    fields: dict[str, str] = {}
    for raw_name, raw_value in found.pairs:  # a repeated single-valued field becomes invalid
        name, value = raw_name.decode().lower(), raw_value.strip().decode("latin-1")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    host, path = _split_target(method, found.target.decode("latin-1"), version, fields)
    is_last, body_bytes = _is_last(fields, version), _body_bytes(fields, version)
    return HttpHead(method, path, host, fields, version == "1.0", is_last, body_bytes)


def head_of(data: bytes) -> HttpHead:
    """Parses a whole head, or remembers it: a client mostly sends the same one.

    Long heads are not remembered, nor those with a token.

    Raises:
        HttpError: The head is malformed, over a bound, or asks for what is not served here.
    """
    if len(data) > _REMEMBERED_BYTES or b"authorization" in data.lower():
        return _parse_head(data)
    return _remembered_head(data)


_remembered_head = lru_cache(_REMEMBERED_HEADS)(_parse_head)


def _parse(parser: httptools.HttpRequestParser, data: bytes) -> None:
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # ignored (RFC 9110, section 7.8): the next request is an HTTP/1.1 one too
    except httptools.HttpParserError as error:
        raise HttpError(f"malformed HTTP: {error}") from None


class ChunkedBody:
    """A chunked body, put together as a parser reports it; its trailers are dropped."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._fed_bytes = 0
        self._fault: HttpError | None = None
        self.data = bytearray()
        self.is_complete = False
        self._parser: httptools.HttpRequestParser = httptools.HttpRequestParser(self)
        # Not the request's own head: after one with an upgrade the parser reads no chunks.
        self._parser.feed_data(_CHUNKED_HEAD)

    def feed(self, data: bytes) -> None:
        """Parses the next bytes, which must not reach behind the body; else an `HttpError`."""
        try:
            _parse(self._parser, data)
        except HttpError as error:
            raise self._fault or error from None
        self._fed_bytes += len(data)
        framing_bytes = self._fed_bytes - len(self.data)
        if framing_bytes > MAX_FRAMING_BYTES + FRAMING_PER_BYTE * len(self.data):
            raise HttpError("the body's chunks and trailers are too long")

    def on_body(self, data: bytes) -> None:
        self.data += data
        if len(self.data) > self._max_bytes:
            self._fault = body_too_large(self._max_bytes)
            raise self._fault

    def on_message_complete(self) -> None:
        self.is_complete = True


def body_too_large(max_body_bytes: int) -> HttpError:
    return HttpError(f"the body is too long; at most {max_body_bytes} bytes", status=413)


def _split_target(
    method: str, target: str, version: str, fields: Mapping[str, str]
) -> tuple[str, str]:
    """The authority and the path of a target (RFC 9112, section 3.2); its query is not read."""
    if len(target) > MAX_TARGET_BYTES:
        raise HttpError(f"the target is over {MAX_TARGET_BYTES} bytes long", status=414)
    host = fields.get("host")
    if host is not None and (absolute := _ABSOLUTE.match(target)):
        host, target = absolute[1], absolute[2]
        target = target if target.startswith("/") else f"/{target}"
    is_of_server = target == "*" and method == "OPTIONS"
    if (not is_of_server and not target.startswith("/")) or "#" in target:
        raise HttpError("the target must be a path, as in `GET /v2 HTTP/1.1`")
    path = target.partition("?")[0]
    if host is None and version == "1.0":
        return "", path
    if host is None or not _AUTHORITY.match(host.lower()):
        raise HttpError("a request has one well-formed Host")
    return host.lower(), path


def _is_last(fields: Mapping[str, str], version: str) -> bool:
    """Whether the connection ends after this request."""
    if (connection := fields.get("connection")) is None:
        return version != "1.1"
    options = {option.strip() for option in connection.lower().split(",")}
    return "close" in options or (version != "1.1" and "keep-alive" not in options)


def _body_bytes(fields: Mapping[str, str], version: str) -> int | None:
    coding, length = fields.get("transfer-encoding"), fields.get("content-length", "0")
    if coding is None:
        if not _LENGTH.match(length):
            raise HttpError("the Content-Length is malformed")
        return int(length)
    if version == "1.0" or "content-length" in fields:
        raise HttpError("this Transfer-Encoding could be read in two ways")
    if coding.lower() != "chunked":
        raise HttpError("the only Transfer-Encoding is chunked", status=501)
    return None
