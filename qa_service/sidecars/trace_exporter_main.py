"""The program that sends traces to an OTLP receiver, by OpenTelemetry's SDK and exporter.

`python -m qa_service.sidecars.trace_exporter_main FD PARENT ENDPOINT LOG_LEVEL LOG_FORMAT` reads
traces from its descriptor, exports them, and reports how many spans it exported or dropped. It does
not read while it exports, so that the loop bounds the waiting spans. At end-of-file it has exported
everything, and ends.

The SDK reads OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_EXPORTER_OTLP_* from the
environment; the endpoint is the flag's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import sys
import time
from collections.abc import Iterator, Sequence

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from qa_service import __version__
from qa_service.child_program import end_with_parent, inherited_socket
from qa_service.logs import KeptWarnings, configure_logging
from qa_service.wire.frames import FrameReader, receive_frame
from qa_service.wire.traces import (
    MAX_MESSAGE_BYTES,
    ExportReport,
    Span,
    Trace,
    encode,
    traces_decoder,
)

NICENESS = 10
"""Questions go first; traces may wait, as the loop bounds them."""
READ_BYTES = 1 << 18
"""More than a Unix socket's buffer holds by default, so that a read takes all there is."""
MAX_EXPORT_SPANS = 512
"""The SDK's own default for a batch."""
MAX_REASON_CHARS = 300
"""A log line's worth: the SDK's messages may hold a whole reply."""
TRACES_PATH = "/v1/traces"
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
SCOPE = InstrumentationScope("qa_service", __version__)

logger = logging.getLogger(__name__)


def convert(trace: Trace, resource: Resource) -> Iterator[ReadableSpan]:
    """Converts a request's trace to the SDK's spans, each with a new id."""
    trace_id, parent_id = int(trace.trace_id, 16), int(trace.parent_id or "0", 16)
    caller = SpanContext(trace_id, parent_id, is_remote=True) if parent_id else None
    # Compared for each trace, since the wall clock may be set.
    to_day_ns = time.time_ns() - time.monotonic_ns()

    def converted(span: Span, parent: SpanContext | None, kind: SpanKind) -> Iterator[ReadableSpan]:
        span_id = random.getrandbits(64) or 1
        context = SpanContext(trace_id, span_id, is_remote=False, trace_flags=SAMPLED)
        yield ReadableSpan(
            name=span.name,
            context=context,
            parent=parent,
            resource=resource,
            attributes=span.attributes,
            kind=kind,
            instrumentation_scope=SCOPE,
            status=Status(StatusCode.ERROR if span.is_error else StatusCode.UNSET),
            start_time=int(span.start_s * 1e9) + to_day_ns,
            end_time=int((span.end_s or span.start_s) * 1e9) + to_day_ns,
        )
        for child in span.children:
            yield from converted(child, context, SpanKind.INTERNAL)

    return converted(trace.root, caller, SpanKind.SERVER)


def _refuse_redirect(response: requests.Response, **_: object) -> None:
    """Makes a redirect a failure: the SDK follows none, and is content with it."""
    if 300 <= response.status_code < 400:
        place = response.headers.get("Location", "nowhere")
        raise requests.RequestException(f"{response.status_code}, it redirects to {place}")


class Sender:
    """Sends spans to an OTLP receiver, and logs when that fails and when it works again."""

    def __init__(self, endpoint: str) -> None:
        session = requests.Session()
        session.hooks["response"].append(_refuse_redirect)
        self._endpoint = endpoint
        url = f"{endpoint.rstrip('/').removesuffix(TRACES_PATH)}{TRACES_PATH}"
        self._exporter = OTLPSpanExporter(endpoint=url, session=session)
        self._is_failing = False
        self._faults = KeptWarnings()
        its_log = logging.getLogger("opentelemetry")
        its_log.addHandler(self._faults)
        its_log.propagate = False

    def send(self, spans: Sequence[ReadableSpan]) -> ExportReport:
        """Sends spans, which may take as long as OTEL_EXPORTER_OTLP_TIMEOUT says."""
        result = self._exporter.export(spans)
        # The first message: the next ones report retries.
        reason = "".join(self._faults.take()[:1])[:MAX_REASON_CHARS]
        has_failed = result is not SpanExportResult.SUCCESS
        if has_failed and not self._is_failing:
            logger.warning("spans do not arrive at %s, and are dropped: %s", self._endpoint, reason)
        elif self._is_failing and not has_failed:
            logger.info("spans arrive at %s again", self._endpoint)
        self._is_failing = has_failed
        return ExportReport(dropped=len(spans)) if has_failed else ExportReport(exported=len(spans))


def serve(sock: socket.socket, sender: Sender) -> None:
    # This server, under the name that the environment gives it, or this one.
    own = Resource.create({"service.name": "qa-server", "service.version": __version__})
    resource, frames = own.merge(OTELResourceDetector().detect()), FrameReader(MAX_MESSAGE_BYTES)
    while (frame := receive_frame(frames, lambda _: sock.recv(READ_BYTES))) is not None:
        spans: list[ReadableSpan] = []
        while frame is not None:
            for trace in traces_decoder.decode(frame):
                spans += convert(trace, resource)
            frame = frames.next_frame()
        for start in range(0, len(spans), MAX_EXPORT_SPANS):
            report = sender.send(spans[start : start + MAX_EXPORT_SPANS])
            # A server that ends reads no reports.
            with contextlib.suppress(OSError):
                sock.sendall(encode(report))


def main() -> None:
    fd, parent, endpoint, log_level, log_format = sys.argv[1:]
    end_with_parent(int(parent))
    os.nice(NICENESS)
    configure_logging(log_level, log_format)
    with inherited_socket(int(fd)) as sock:
        serve(sock, Sender(endpoint))


if __name__ == "__main__":
    main()
