"""The pages that the server shows, whose policy lets only their scripts and styles run."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from qa_service.wire.http.http_reply import HttpReply


def page_reply(html: bytes) -> HttpReply:
    policy = (
        f"default-src 'none'; script-src {_hashes('script', html)}; "
        f"style-src {_hashes('style', html)}; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    fields = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return HttpReply(html, content_type="text/html; charset=utf-8", fields=fields)


def _hashes(element: str, html: bytes) -> str:
    """The hashes by which a Content-Security-Policy allows the contents of such elements."""
    contents = re.findall(rf"<{element}>(.*?)</{element}>".encode(), html, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(content).digest()).decode() for content in contents]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


REPLY = page_reply((Path(__file__).parents[2] / "data" / "page.html").read_bytes())
"""The page at `/`."""
