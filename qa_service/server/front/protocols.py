"""Chooses a client's protocol by its first byte.

A frame's length begins with a zero byte, an HTTP request with a letter, or with the CR of an empty
line, which is skipped (RFC 9112, section 2.2). TLS is already decrypted here.
"""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache

from msgspec.structs import replace

from qa_service.errors import TlsRequiredError
from qa_service.server.front.connection_options import HttpOptions
from qa_service.wire.codec import Codec
from qa_service.wire.frame_codec import FrameCodec
from qa_service.wire.http.http_access import HttpAccess
from qa_service.wire.http.http_codec import HttpCodec, HttpSite
from qa_service.wire.http.http_reply import HttpReply, encode_reply
from qa_service.wire.json_codec import MAX_AUTH_FRAME_BYTES, encode_error
from qa_service.wire.messages import NULL_ID


class Protocols:
    """Makes the codecs of a server's connections.

    Args:
        options: Who may ask by HTTP; on the Unix socket everyone may, and under any name, since
            no browser reaches it.
    """

    def __init__(self, max_frame_bytes: int, options: HttpOptions, *, is_loopback: bool) -> None:
        origins = {origin.strip() for origin in options.http_cors_origin.split(",")}
        self._max_frame_bytes = max_frame_bytes
        access = HttpAccess(is_loopback, frozenset(origins - {""}))
        self._site = HttpSite(max_frame_bytes, access, http_date)
        self._local_site = replace(self._site, access=replace(access, is_loopback=False))
        self._on_port = options.http

    def codec_for(self, data: bytes, *, wants_token: bool, is_local: bool = False) -> Codec:
        """The codec for a client's first bytes; for frames if there are none yet.

        Args:
            wants_token: Whether the first frame must be a token, which is short.
        """
        if (self._on_port or is_local) and _is_http(data):
            site = self._local_site if is_local else self._site
            return HttpCodec(site, wants_token=wants_token)
        size = self._max_frame_bytes
        first = min(size, MAX_AUTH_FRAME_BYTES) if wants_token else size
        return FrameCodec(size, first)


def http_date() -> str:
    """The time as a reply's `Date` has it, made once a second."""
    return _date_of(int(time.time()))


@lru_cache(1)
def _date_of(second: int) -> str:
    return formatdate(second, usegmt=True)


def reply_without_tls(data: bytes) -> bytes:
    """The reply to a client without TLS where TLS is required; empty for an unknown protocol."""
    if _is_http(data):
        body = b"This port speaks TLS: use https:// in place of http://\n"
        reply = HttpReply(body, status=400, content_type="text/plain; charset=utf-8")
        return encode_reply(reply, date=http_date(), is_last=True)
    return bytes(encode_error(NULL_ID, TlsRequiredError())) if data[0] == 0 else b""


def _is_http(data: bytes) -> bool:
    return data[:1].isalpha() or data[:1] == b"\r"
