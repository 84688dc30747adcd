"""The metrics as Prometheus reads them: Debian's promtool, and a Prometheus that scrapes."""

import contextlib
import json
import shutil
import subprocess
import urllib.parse

import pytest

from harness.frames import ASK
from harness.process import reserve_port, wait_until
from harness.server import FIXED_ENGINE, INSTANT, ROOT, running_server
from qa_service.sidecars.gpu_meter import GpuReading, gpu_families
from tests.http_calls import get
from tests.programs import run
from tests.support import present

PROMETHEUS = ROOT / "deploy" / "prometheus"
NUM_ASKED = 250
TRITONS = "nv_"

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="there is no promtool (Debian's `prometheus`)"
)
needs_prometheus = pytest.mark.skipif(
    not shutil.which("prometheus"), reason="there is no Prometheus (Debian's `prometheus`)"
)


@pytest.fixture(scope="module")
def server(quick_model):
    with running_server(quick_model, *FIXED_ENGINE) as running:
        for _ in range(3):
            assert "answer" in running.ask(**ASK)
        running.ask(question="no text")
        yield running


def read_metrics(server):
    reply = get(server.port, "/metrics")
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return reply.body.decode()


def values(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
    return {name: float(value) for name, _, value in lines}


@needs_promtool
def test_promtool_finds_fault_with_tritons_names_alone(server):
    ran = run("promtool", "check", "metrics", input=read_metrics(server))
    faults = ran.stderr.splitlines()
    assert [fault for fault in faults if not fault.startswith(TRITONS)] == []
    assert ran.returncode in {0, 3}  # 3: it does not like names, but could read everything


@needs_promtool
@pytest.mark.parametrize(
    "command",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"),
     ("test", "rules", "alerts_test.yml")],
    ids=" ".join,
)  # fmt: skip
def test_promtool_accepts_the_deployed_rules_and_configuration(command):
    ran = run("promtool", *command, cwd=PROMETHEUS)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboard_asks_for_metrics_that_there_are(server):
    names = {name.partition("{")[0] for name in values(read_metrics(server))}
    figures = dict.fromkeys(GpuReading.__struct_fields__[1:], 1)
    names |= {family.name for family in gpu_families([GpuReading("GPU-0", **figures)])}
    words = {word for expression in _dashboard_expressions() for word in _words(expression)}
    assert {"qa_loop_seconds_total", "qa_instance_seconds_total"} < words
    assert words <= names


@needs_promtool
def test_promtool_reads_the_dashboards_expressions(tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(_dashboard_expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    ran = run("promtool", "check", "rules", file)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _dashboard_expressions():
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


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
        running_server(builtin_model, *INSTANT) as server,
        running_prometheus(server.port, tmp_path) as prometheus,
    ):
        expression = 'nv_inference_request_success{model="builtin"}'
        before = wait_for(prometheus, expression)
        for _ in range(NUM_ASKED):
            server.ask(**ASK)
        assert before == 0
        assert wait_for(prometheus, f"{expression} == {NUM_ASKED}") == NUM_ASKED
        assert wait_for(prometheus, f"rate({expression}[1m])") > 0


@contextlib.contextmanager
def running_prometheus(port, folder):
    """A Prometheus that scrapes a server each second; yields its own port."""
    config, own_port = folder / "prometheus.yml", reserve_port()
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: qa-server\n"
        f"  static_configs: [{{targets: ['localhost:{port}']}}]\n"
    )
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{own_port}", "--log.level=error",
    ]  # fmt: skip
    with subprocess.Popen(command) as process:
        try:
            yield own_port
        finally:
            process.terminate()


def wait_for(port: int, expression: str) -> float:
    """The value of an expression, once Prometheus has one."""
    path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})

    def value() -> float | None:
        with contextlib.suppress(OSError, ValueError):  # until it is ready
            if result := get(port, path).json["data"]["result"]:
                return float(result[0]["value"][1])
        return None

    return present(wait_until(value, lambda found: found is not None))
