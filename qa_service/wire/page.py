"""The page at `/`: a static file, whose policy lets only its own scripts and styles run."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from qa_service.wire.http_reply import HttpReply

_HTML = (Path(__file__).parents[1] / "data" / "page.html").read_bytes()


def _hashes(element: str) -> str:
    """The hashes by which a Content-Security-Policy allows the contents of such elements."""
    contents = re.findall(rf"<{element}>(.*?)</{element}>".encode(), _HTML, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(content).digest()).decode() for content in contents]
    return " ".join(f"'sha256-{digest}'" for digest in digests)


REPLY = HttpReply(
    _HTML,
    content_type="text/html; charset=utf-8",
    fields={
        "Content-Security-Policy": f"default-src 'none'; script-src {_hashes('script')}; "
        f"style-src {_hashes('style')}; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    },
)
