"""What the gateway counts, for Prometheus: the text format 0.0.4 on a separate port."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from qa_service.wire.histogram import Histogram
from qa_service.wire.http.prometheus import (
    CONTENT_TYPE,
    Family,
    Labels,
    Sample,
    histogram_samples,
    write_text,
)

_PUBLISH_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CLIENT_TIMEOUT_S = 10.0
"""Prometheus's default `scrape_timeout`."""
_PUBLISH_HELP = "From publishing a message to the broker's confirmation."


class GatewayMetrics:
    """The gateway's counters; each metric's text says what it counts."""

    def __init__(self) -> None:
        self.consumed = self.answered = self.queue_full = 0
        self.retried: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.publish_s = Histogram(_PUBLISH_BUCKETS_S)
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def count_queue_full(self) -> None:
        self.queue_full += 1

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._gauges[name] = text, read

    def families(self) -> Iterator[Family]:
        yield _total("consumed", "Jobs delivered.", [(self.consumed, {})])
        yield _total("answered", "Jobs answered.", [(self.answered, {})])
        yield _total("retried", "Jobs put off.", _by_code(self.retried))
        yield _total("dead", "Jobs that failed.", _by_code(self.dead))
        text = "Questions the server had no room for."
        yield _total("queue_full", text, [(self.queue_full, {})])
        samples = histogram_samples(self.publish_s.buckets(), self.publish_s.sum, {})
        yield Family("qa_jobs_publish_seconds", "histogram", _PUBLISH_HELP, samples)
        for name, (text, read) in self._gauges.items():
            yield Family(name, "gauge", text, [Sample(float(read()), {})])

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Serves `GET /metrics` from a thread; returns a function that stops it."""
        server = _Server(host, port, self)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop


class _Server(ThreadingHTTPServer):
    def __init__(self, host: str, port: int, metrics: GatewayMetrics) -> None:
        # http.server binds only IPv4 by default.
        [found, *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self.address_family, *_, address = found
        self.metrics = metrics
        super().__init__((str(address[0]), port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = write_text(self.server.metrics.families())
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing: the gateway logs jobs."""


def _by_code(counted: Counter[str]) -> list[tuple[int, Labels]]:
    # A copy: the gateway's thread may count meanwhile.
    return [(count, {"code": code}) for code, count in counted.copy().items()]


def _total(name: str, text: str, counts: Sequence[tuple[int, Labels]]) -> Family:
    samples = [Sample(float(count), labels) for count, labels in counts]
    return Family(f"qa_jobs_{name}_total", "counter", text, samples)
