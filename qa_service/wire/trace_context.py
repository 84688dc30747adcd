"""The trace that a request belongs to, by its `traceparent` field (W3C Trace Context). Sans-IO."""

from __future__ import annotations

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z"
)
_SAMPLED = 1


class TraceContext(NamedTuple):
    """The trace and the span that a request belongs to.

    Attributes:
        trace_id: 32 hexadecimal digits; empty if the client has named no trace.
        parent_id: The client's span: 16 hexadecimal digits.
        is_sampled: Whether the client's own spans are recorded.
    """

    trace_id: str = ""
    parent_id: str = ""
    is_sampled: bool = False


NO_TRACE = TraceContext()


def trace_context(traceparent: str) -> TraceContext:
    """Reads the field; a malformed one names no trace. Versions after 00 may have further parts."""
    found = _TRACEPARENT.match(traceparent)
    if not found or (found[1] == "00" and found[5]):
        return NO_TRACE
    if not int(found[2], 16) or not int(found[3], 16):
        return NO_TRACE
    return TraceContext(found[2], found[3], bool(int(found[4], 16) & _SAMPLED))
