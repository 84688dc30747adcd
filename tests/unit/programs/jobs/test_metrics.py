"""The gateway's metrics over HTTP, as Prometheus scrapes them."""

import urllib.error
import urllib.request

import pytest

from harness.process import reserve_port
from qa_service.programs.jobs.job_gateway import GatewayMetrics


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_metrics_are_served_until_stopped(host, shown):
    metrics, port = GatewayMetrics(), reserve_port()
    metrics.consumed += 2
    metrics.dead["invalid_frame"] += 1
    metrics.publish_s.observe(0.002)
    metrics.add_gauge("qa_jobs_in_flight", "Questions asked.", lambda: 3)
    stop = metrics.serve(host, port)
    try:
        with urllib.request.urlopen(f"http://{shown}:{port}/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            lines = response.read().decode().splitlines()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{shown}:{port}/elsewhere")
    finally:
        stop()
    assert {
        "# TYPE qa_jobs_retried_total counter",
        "qa_jobs_consumed_total 2.0",
        'qa_jobs_dead_total{code="invalid_frame"} 1.0',
        "qa_jobs_in_flight 3.0",
        'qa_jobs_publish_seconds_bucket{le="0.001"} 0',
        'qa_jobs_publish_seconds_bucket{le="+Inf"} 1',
    } <= set(lines)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{shown}:{port}/metrics")
