"""The spans of a traced request, and the messages between the loop and the exporter.

loop ──[Trace, …]──▶ exporter     as they end, many in a frame
loop ◀──Report── exporter         what came of the spans

A span is a tree: its children began in it. Times are the loop's clock, which processes of one
machine share; the exporter converts them to calendar time, and gives spans their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from qa_service.wire.frames import PREFIX

MAX_CHILDREN = 256
"""Further children are not recorded: a long text has one for each of its segments."""
MAX_MESSAGE_BYTES = 1 << 28
"""Many times what the loop sends at once; a longer frame means that the stream is broken."""

AttributeValue = str | bool | int | float


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
        """Adds a child."""
        span = Span(name, start_s, end_s, attributes or {})
        if len(self.children) < MAX_CHILDREN:
            self.children.append(span)
        return span

    def count(self) -> int:
        """The number of spans in the tree."""
        return 1 + sum(span.count() for span in self.children)


class Trace(msgspec.Struct, array_like=True, eq=False):
    """This server's part of a trace.

    Attributes:
        trace_id: 32 hexadecimal digits.
        parent_id: The client's span, 16 hexadecimal digits; empty if the trace begins here.
        root: The request.
    """

    trace_id: str
    parent_id: str
    root: Span


class Report(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of spans that the endpoint has and has not accepted."""

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
    """The number of spans in traces."""
    return sum(trace.root.count() for trace in traces)
