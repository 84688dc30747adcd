"""Which HTTP requests may be served at all: from which site, under which name, with which token.

A browser sends what a page of any site makes it send. So a request that another site's page has
made is refused unless that site is named; and a server that listens for this machine alone is
reached by this machine's names alone, because a site may have its own name resolve to 127.0.0.1.
Sans-IO.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

from qa_service.errors import HttpError
from qa_service.wire.http_message import HttpHead

_REMEMBERED_HOSTS = 64
_PORT = re.compile(r":[0-9]*\Z")
_EXPOSED = "Inference-Header-Content-Length, Retry-After, Server-Timing"
_ALLOWED = "Authorization, Content-Type, Inference-Header-Content-Length, traceparent"


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """Who may ask.

    Attributes:
        is_loopback: Whether the server listens for this machine alone.
        cors_origins: The other sites whose pages may ask, as `https://example.com`.
    """

    is_loopback: bool = False
    cors_origins: frozenset[str] = frozenset()

    def check(self, head: HttpHead) -> None:
        """Refuses what another site has made a browser send.

        Raises:
            HttpError: It is not served.
        """
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
        """Whether it comes from a page of another site that is named."""
        return head.fields.get("origin", "") in self.cors_origins

    def fields(self, head: HttpHead) -> dict[str, str]:
        """What a browser has to be told about a reply, so that such a page may read it."""
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


def bearer_token(head: HttpHead) -> str:
    """The token in a request's `Authorization`; empty if there is none."""
    scheme, _, token = head.fields.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


@lru_cache(_REMEMBERED_HOSTS)
def _is_loopback_name(host: str) -> bool:
    name = _PORT.sub("", host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
