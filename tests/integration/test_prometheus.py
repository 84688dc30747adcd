"""The metrics as Prometheus reads them: Debian's promtool, and a Prometheus that scrapes."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request

import pytest

from harness.ports import reserve_port
from harness.process import GIVE_UP_S, wait_until
from harness.questions import ASK
from harness.server import ROOT, running_server

PROMETHEUS = ROOT / "deploy" / "prometheus"
LOAD_S = 60.0
PER_S = 25.0
TRITONS = "nv_"

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="there is no promtool (Debian's `prometheus`)"
)
needs_prometheus = pytest.mark.skipif(
    not shutil.which("prometheus"), reason="there is no Prometheus (Debian's `prometheus`)"
)


@pytest.fixture(scope="module")
def server(builtin_model):
    with running_server(builtin_model) as running:
        for _ in range(3):
            assert "answer" in running.ask(**ASK)
        running.ask(question="no text")
        yield running


def read_metrics(server):
    with urllib.request.urlopen(f"http://localhost:{server.port}/metrics") as reply:
        assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return reply.read()


def values(text: bytes) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.decode().splitlines() if line[0] != "#")
    return {name: float(value) for name, _, value in lines}


@needs_promtool
def test_promtool_finds_fault_with_tritons_names_alone(server):
    ran = subprocess.run(
        ["promtool", "check", "metrics"],
        input=read_metrics(server),
        capture_output=True,
        check=False,
    )
    faults = ran.stderr.decode().splitlines()
    assert [fault for fault in faults if not fault.startswith(TRITONS)] == []
    assert ran.returncode in {0, 3}  # 3: it does not like names, but could read everything


@needs_promtool
@pytest.mark.parametrize(
    "command",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"),
     ("test", "rules", "alerts_test.yml")],
    ids=" ".join,
)  # fmt: skip
def test_what_is_deployed_is_valid(command):
    ran = subprocess.run(
        ["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboard_asks_for_metrics_that_there_are(server):
    names = {name.partition("{")[0] for name in values(read_metrics(server))}
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    words = {word for expression in asked for word in _words(expression)}
    assert words
    assert words <= names


def _words(expression):
    separated = "".join(c if c.isalnum() or c == "_" else " " for c in expression)
    return {w for w in separated.split() if w.startswith(("qa_", "nv_", "process_"))}


def test_counts_are_those_of_the_requests(server):
    seen = values(read_metrics(server))
    model = 'model="builtin",version="1"'
    assert seen[f"nv_inference_request_success{{{model}}}"] == 3
    assert seen[f"nv_inference_count{{{model}}}"] == 3
    assert seen['qa_requests_total{outcome="invalid_request"}'] == 1
    for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
        assert seen[f'nv_inference_request_failure{{{model},reason="{reason}"}}'] == 0
    assert seen["qa_request_seconds_count"] == seen['qa_request_seconds_bucket{le="+Inf"}'] == 3
    microseconds = seen[f"nv_inference_request_duration_us{{{model}}}"]
    assert microseconds == pytest.approx(seen["qa_request_seconds_sum"] * 1e6, rel=1e-3)
    assert seen['qa_instances{state="alive"}'] == 2
    assert seen["process_resident_memory_bytes"] > 1 << 20
    buckets = [name for name in seen if name.startswith("qa_queue_seconds_bucket")]
    assert 15 <= len(buckets) <= 25


@pytest.mark.soak
@needs_prometheus
def test_a_prometheus_counts_what_was_asked(builtin_model, tmp_path):
    with (
        running_server(builtin_model, "--inference_engine_type", "instant") as server,
        running_prometheus(server.port, tmp_path) as prometheus,
    ):
        expression = 'nv_inference_request_success{model="builtin"}'
        wait_for(prometheus, expression)
        connection = http.client.HTTPConnection("localhost", server.port, timeout=60)
        started_s = time.monotonic()
        for number in range(round(LOAD_S * PER_S)):
            connection.request("POST", "/qa", json.dumps(ASK))
            assert connection.getresponse().read()
            due_s = started_s + (number + 1) / PER_S
            time.sleep(max(0.0, due_s - time.monotonic()))  # a steady load is what is measured
        took_s = time.monotonic() - started_s
        count = round(LOAD_S * PER_S)
        assert wait_for(prometheus, f"{expression} == {count}") == count
        rate = wait_for(prometheus, f"rate({expression}[{LOAD_S - 5:.0f}s])")
        print(f"\n{rate:.2f} answers/s by Prometheus, {LOAD_S * PER_S / took_s:.2f} by the client")


class running_prometheus:  # noqa: N801 - used like the function of its kind
    """A Prometheus that scrapes a server each second; gives its own port."""

    def __init__(self, port, folder):
        self._port = reserve_port()
        config = folder / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: qa-server\n"
            f"  static_configs: [{{targets: ['localhost:{port}']}}]\n"
        )
        self._command = [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}", "--log.level=error",
        ]  # fmt: skip

    def __enter__(self):
        self._process = subprocess.Popen(self._command)
        return self._port

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(GIVE_UP_S)


def wait_for(port: int, expression: str) -> float:
    """The value of an expression, once Prometheus has one."""
    query = urllib.parse.urlencode({"query": expression})

    def value() -> float | None:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}") as reply,
        ):
            if result := json.load(reply)["data"]["result"]:
                return float(result[0]["value"][1])
        return None

    return wait_until(value, lambda found: found is not None)
