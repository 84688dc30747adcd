"""Options of a client's connection: its bounds, timeouts and authentication, and HTTP."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from qa_service.options import Count, Ms, OptionalCount, OptionalMs
from qa_service.wire.messages import MAX_PRIORITY

_ORIGIN = r"[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?"
"""As a browser writes it (RFC 6454, section 6.2)."""


class ConnectionOptions(Struct, frozen=True, kw_only=True):
    """Bounds and timeouts of one connection."""

    max_in_flight_per_connection: Annotated[
        Count,
        Meta(description="unanswered requests of one connection; at this bound the server stops "
             "reading"),
    ] = 64  # fmt: skip
    max_output_buffer_bytes: Annotated[
        int,
        Meta(ge=1, le=2**30,
             description="bytes of unread answers; at this bound the server stops reading"),
    ] = 1 << 20  # fmt: skip
    max_priority: Annotated[
        int,
        Meta(ge=0, le=MAX_PRIORITY,
             description="highest priority that counts for a client without a token; each step is "
             "one more share of the machine"),
    ] = 0  # fmt: skip
    idle_timeout_ms: Annotated[
        OptionalMs, Meta(description="milliseconds a connection may stay idle; 0 for no limit")
    ] = 600_000
    max_connection_age_s: Annotated[
        OptionalCount,
        Meta(
            description="seconds, give or take a tenth, after which a connection is closed once it "
            "has nothing in flight, so that servers started later get their share; 0 for no limit"
        ),
    ] = 0
    client_timeout_ms: Annotated[
        Ms,
        Meta(
            description="milliseconds from a request's first byte to its last, and that a client "
            "may leave answers unread; it has a third of them for the TLS handshake, and from "
            "connecting to its token"
        ),
    ] = 30_000
    request_timeout_ms: Annotated[
        OptionalMs,
        Meta(description="milliseconds a request may wait for an instance; 0 for no limit"),
    ] = 30_000

    @property
    def client_timeout_s(self) -> float:
        return self.client_timeout_ms / 1e3

    @property
    def handshake_timeout_s(self) -> float:
        """How long a client may stay without a token, and without TLS."""
        return self.client_timeout_s / 3

    @property
    def idle_timeout_s(self) -> float:
        """Infinity for no limit."""
        return self.idle_timeout_ms / 1e3 or math.inf

    @property
    def request_timeout_s(self) -> float:
        """Infinity for no limit."""
        return self.request_timeout_ms / 1e3 or math.inf


class AuthOptions(Struct, frozen=True, kw_only=True):
    """Tokens."""

    auth_token_file: Annotated[
        Path | None,
        Meta(
            description="tokens, one a line; a client must show one, as docs/SECURITY.md explains"
        ),
    ] = None


class HttpOptions(Struct, frozen=True, kw_only=True):
    """HTTP on the same port as the frames."""

    http: Annotated[bool, Meta(description="answer HTTP requests")] = True
    http_cors_origin: Annotated[
        str,
        Meta(
            pattern=rf"^({_ORIGIN}( *, *{_ORIGIN})*)?\Z",
            title="a list of origins as in https://example.com, in lower case, without a path",
            description="another site whose pages may ask from a browser, as in "
            "https://example.com; several with commas",
        ),
    ] = ""
