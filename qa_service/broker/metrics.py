"""What the gateway counts, for Prometheus: the text format 0.0.4 on a port of its own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

_PUBLISH_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class GatewayMetrics:
    """The gateway's counters; each metric's text says what it counts."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.consumed = Counter("qa_jobs_consumed", "Jobs delivered.", registry=registry)
        self.answered = Counter("qa_jobs_answered", "Jobs answered.", registry=registry)
        self.retried = Counter("qa_jobs_retried", "Jobs put off.", ["code"], registry=registry)
        self.dead = Counter("qa_jobs_dead", "Jobs that failed.", ["code"], registry=registry)
        self.queue_full = Counter(
            "qa_jobs_queue_full", "Questions the server had no room for.", registry=registry
        )
        self.publish_s = Histogram(
            "qa_jobs_publish_seconds",
            "From publishing a message to the broker's confirmation.",
            buckets=_PUBLISH_BUCKETS_S,
            registry=registry,
        )

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Adds a value that is read at each scrape."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Serves `GET /metrics` from a thread; returns a function that stops it.

        Raises:
            OSError: The port cannot be opened.
        """
        server, thread = start_http_server(port, addr=host, registry=self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop
