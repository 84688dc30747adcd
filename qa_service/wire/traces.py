"""The trace of a request (W3C Trace Context), its spans, and the messages to their exporter.

loop ───[Trace, …]───▶ exporter   as they end, many in a frame
loop ◀──ExportReport── exporter   how many spans were exported or dropped

A span is a tree: its children began in it. Times are the loop's clock, which processes of one
machine share; the exporter converts them to calendar time, and gives spans their ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from qa_service.wire.frames import encode_frame

MAX_CHILDREN = 256
"""Further children are not recorded: a long text has one for each of its segments."""
MAX_MESSAGE_BYTES = 1 << 28
"""Many times what the loop sends at once; a longer frame means that the stream is broken."""

_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z"
)
_SAMPLED = 1

AttributeValue = str | bool | int | float


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


class Span(msgspec.Struct, array_like=True, eq=False):
    """A part of the work on a request.

    Attributes:
        end_s: 0 until it ends.
        attributes: Named by OpenTelemetry's conventions, or under `qa.`.
        is_error: Whether it failed by the server's fault.
    """

    name: str
    start_s: float
    end_s: float = 0.0
    attributes: dict[str, AttributeValue] = msgspec.field(default_factory=dict)
    is_error: bool = False
    children: list[Span] = msgspec.field(default_factory=list)

    def child(
        self,
        name: str,
        start_s: float,
        end_s: float = 0.0,
        attributes: dict[str, AttributeValue] | None = None,
    ) -> Span:
        span = Span(name, start_s, end_s, attributes or {})
        if len(self.children) < MAX_CHILDREN:
            self.children.append(span)
        return span

    def count(self) -> int:
        return 1 + sum(span.count() for span in self.children)


class Trace(msgspec.Struct, array_like=True, eq=False):
    """This server's part of a trace; `parent_id` is the client's span, empty if it begins here."""

    trace_id: str
    parent_id: str
    root: Span


class ExportReport(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of spans that the endpoint has and has not accepted."""

    exported: int = 0
    dropped: int = 0


traces_decoder = msgspec.msgpack.Decoder(list[Trace])
report_decoder = msgspec.msgpack.Decoder(ExportReport)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Sequence[Trace] | ExportReport) -> bytearray:
    return encode_frame(_encoder, message)


def count_spans(traces: Iterable[Trace]) -> int:
    return sum(trace.root.count() for trace in traces)
