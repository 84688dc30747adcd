"""A receiver of OpenTelemetry's spans: OTLP over HTTP, decoded by OpenTelemetry's own types."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from harness.process import GIVE_UP_S

NS = 1e-9


@dataclass
class ReceivedSpan:
    """A span as it has arrived, its children below it once `tree` has put them there."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_s: float
    end_s: float
    is_error: bool
    attributes: dict[str, object]
    children: list[ReceivedSpan] = field(default_factory=list)

    @property
    def shape(self) -> object:
        """Its name, or its name with those of its children."""
        return {self.name: [child.shape for child in self.children]} if self.children else self.name

    @property
    def count(self) -> int:
        """How many spans it is, with all its parts."""
        return 1 + sum(child.count for child in self.children)

    def child(self, name: str) -> ReceivedSpan:
        """Its only child of that name."""
        [found] = [child for child in self.children if child.name == name]
        return found


class Receiver:
    """A receiver, and what has arrived: spans, and each request's resources and headers.

    Attributes:
        status: What it answers.
    """

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self.spans: list[ReceivedSpan] = []
        self.resources: list[dict[str, object]] = []
        self.headers: list[dict[str, str]] = []
        self._arrived = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._make_handler())
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of a server that sends its spans here."""
        return ("--otlp_endpoint", f"http://127.0.0.1:{self.port}")

    def wait_for(self, requests: int) -> list[ReceivedSpan]:
        """Waits for the spans of this number of requests; returns the first span of each."""
        with self._arrived:
            whole = self._arrived.wait_for(lambda: len(self.roots) >= requests, GIVE_UP_S)
        assert whole, f"{len(self.roots)} of {requests} have come"
        return self.roots

    @property
    def roots(self) -> list[ReceivedSpan]:
        """The spans whose parent is not here, with their children in the order of their starts."""
        by_id = {span.span_id: span for span in self.spans}
        for span in self.spans:
            its = [one for one in self.spans if one.parent_id == span.span_id]
            span.children = sorted(its, key=lambda one: one.start_s)
        return [span for span in self.spans if span.parent_id not in by_id]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        assert path == "/v1/traces"
        with self._arrived:
            self.headers.append(headers)
            if self.status == 200:
                self._take_spans(ExportTraceServiceRequest.FromString(body))
            self._arrived.notify_all()

    def _take_spans(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            self.resources.append(_attributes(group.resource.attributes))
            for scope in group.scope_spans:
                assert scope.scope.name == "qa_service"
                self.spans += [
                    ReceivedSpan(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.kind,
                        span.start_time_unix_nano * NS,
                        span.end_time_unix_nano * NS,
                        span.status.code == span.status.STATUS_CODE_ERROR,
                        _attributes(span.attributes),
                    )
                    for span in scope.spans
                ]

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver._take(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                reply = ExportTraceServiceResponse().SerializeToString()
                self.send_response(receiver.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _attributes(pairs: Any) -> dict[str, object]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in pairs}


@contextlib.contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(port)
    try:
        yield receiver
    finally:
        receiver.close()
