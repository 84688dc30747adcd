"""The spans of a request that is traced, and what the loop and the exporter say to each other.

loop ──[Trace, …]──▶ exporter     as they end, many in a frame
loop ◀──Report── exporter         what came of the spans

A span is a tree: its children began in it. Times are the loop's clock, which processes of one
machine share; the exporter turns them into those of the day, and gives spans their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from qa_service.wire.frames import PREFIX

MAX_CHILDREN = 256
"""What a span has beyond is not recorded: a long text has a child for each of its segments."""
MAX_MESSAGE_BYTES = 1 << 28

AttributeValue = str | bool | int | float


class Span(msgspec.Struct, array_like=True, eq=False):
    """A part of the work on a request.

    Attributes:
        name: What was done.
        start_s: When it began.
        end_s: When it ended; 0 until then.
        attributes: What is known of it; names of OpenTelemetry's conventions, or under `qa.`.
        is_error: Whether it has failed by the server's fault.
        children: Its parts.
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
        """Makes a part of it."""
        span = Span(name, start_s, end_s, attributes or {})
        if len(self.children) < MAX_CHILDREN:
            self.children.append(span)
        return span

    def count(self) -> int:
        """How many spans it is, with all its parts."""
        return 1 + sum(span.count() for span in self.children)


class Trace(msgspec.Struct, array_like=True, eq=False):
    """What this server has done of a trace.

    Attributes:
        trace_id: The trace, as 32 hexadecimal digits.
        parent_id: The client's span that has asked, as 16; empty if the trace begins here.
        root: The request.
    """

    trace_id: str
    parent_id: str
    root: Span


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What came of spans that the exporter was given.

    Attributes:
        exported: How many the endpoint has accepted.
        dropped: How many it has not.
    """

    exported: int = 0
    dropped: int = 0


traces_decoder = msgspec.msgpack.Decoder(list[Trace])
report_decoder = msgspec.msgpack.Decoder(Report)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Sequence[Trace] | Report) -> bytearray:
    """Encodes a message as a frame."""
    frame = bytearray(PREFIX.size)
    _encoder.encode_into(message, frame, PREFIX.size)
    PREFIX.pack_into(frame, 0, len(frame) - PREFIX.size)
    return frame


def count_spans(traces: Iterable[Trace]) -> int:
    """How many spans traces have."""
    return sum(trace.root.count() for trace in traces)
