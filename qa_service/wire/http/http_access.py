"""Which HTTP requests may be served at all: from which site, under which name, with which token.

A page of any site can have a browser send requests. So those of another site's page are refused,
unless the options name the site. A site may also have its own name resolve to 127.0.0.1; so a
server that listens on a loopback address answers only under the names of this machine. Sans-IO.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from qa_service.errors import HttpError
from qa_service.wire.http.http_message import HttpHead

_REMEMBERED_HOSTS = 64
"""Clients reach a server under few names and ports."""
_PORT = re.compile(r":[0-9]*\Z")
_EXPOSED = "Inference-Header-Content-Length, Retry-After, Server-Timing"
_ALLOWED = "Authorization, Content-Type, Inference-Header-Content-Length, traceparent"


class HttpAccess(msgspec.Struct, frozen=True):
    """Which sites' pages may ask.

    Attributes:
        is_loopback: Whether only this machine's programs, browsers among them, reach the server.
        cors_origins: The other sites whose pages may ask, as `https://example.com`.
    """

    is_loopback: bool = False
    cors_origins: frozenset[str] = frozenset()

    def check(self, head: HttpHead) -> None:
        """Refuses a request that another site's page has a browser send, by an `HttpError`."""
        if self.is_loopback and head.host and not _is_loopback_name(head.host):
            raise HttpError(
                f"this server listens for this machine alone and is not {head.host}: let a proxy "
                "send `Host: localhost`, or start the server with another --host",
                status=421,
            )
        if head.method != "POST" or self.allows(head):
            return
        origin, site = head.fields.get("origin"), head.fields.get("sec-fetch-site", "")
        is_foreign = origin is not None and origin.lower().partition("://")[2] != head.host
        if is_foreign or site == "cross-site":
            raise HttpError("a page of another site may not ask here", status=403)

    def allows(self, head: HttpHead) -> bool:
        """Whether a request comes from a page of a site in `cors_origins`."""
        return head.fields.get("origin", "") in self.cors_origins

    def fields(self, head: HttpHead) -> dict[str, str]:
        """The reply's fields that let such a page read it (the Fetch Standard, section 3.3)."""
        if not self.cors_origins:
            return {}
        if not self.allows(head):
            return {"Vary": "Origin"}
        allowed = {
            "Access-Control-Allow-Origin": head.fields["origin"],
            "Access-Control-Expose-Headers": _EXPOSED,
            "Vary": "Origin",
        }
        if head.method == "OPTIONS":
            allowed["Access-Control-Allow-Methods"] = "GET, HEAD, POST"
            allowed["Access-Control-Allow-Headers"] = _ALLOWED
        return allowed


def bearer_token(fields: Mapping[str, str]) -> str:
    """The token in a request's `Authorization`; empty if there is none."""
    scheme, _, token = fields.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


@lru_cache(_REMEMBERED_HOSTS)
def _is_loopback_name(host: str) -> bool:
    name = _PORT.sub("", host).removesuffix(".")  # the root of all names
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
