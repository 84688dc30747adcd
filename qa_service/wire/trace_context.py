"""The trace that a request belongs to, by its `traceparent` field (W3C Trace Context). Sans-IO."""

from __future__ import annotations

import re

_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?\Z")


def trace_id(traceparent: str) -> str:
    """The trace's id, as 32 hexadecimal digits; empty if the field is malformed.

    A version after 00, which is the present one, may have further parts.
    """
    found = _TRACEPARENT.match(traceparent)
    if not found or (found[1] == "00" and found[4]):
        return ""
    return found[2] if int(found[2], 16) and int(found[3], 16) else ""
