"""The gRPC gateway's flags, and what is made of what it says; the figures of GPUs, of a stand-in
for NVIDIA's management library: there is no GPU here.
"""

import os
import signal
import sys
import types
from pathlib import Path

import pytest

from qa_service.server import sidecars
from qa_service.server.config import ServerConfig
from qa_service.server.sidecars import GpuMeter, GrpcProcess
from qa_service.sidecars.gateway_messages import LISTENING
from qa_service.sidecars.gpu_meter import NvmlReader, gpu_families
from qa_service.sidecars.grpc_gateway.program import parse
from qa_service.wire.http.prometheus import write_text
from tests.support import FakeTimeLoop, run_until

SOCKET = Path("/run/qa/socket")


def test_without_a_port_no_gateway_runs():
    assert ServerConfig().gateway_flags(None) == []
    loop = FakeTimeLoop()
    gateway = GrpcProcess(loop, [])
    gateway.start()
    gateway.reload()
    gateway.child.close()
    assert (gateway.has_started, gateway.child.reap(), gateway.failure) == (True, True, "")
    loop.close()


def test_the_gateway_takes_the_flags_that_the_server_gives():
    config = ServerConfig.of(
        grpc_port=8001, host="::", max_frame_bytes=4096, tls_cert=Path("c"), tls_key=Path("k"),
        drain_timeout_ms=7, log_format="json",
    )  # fmt: skip
    settings = parse("", config.gateway_flags(SOCKET))
    assert (settings.unix_socket, settings.host, settings.port) == (SOCKET, "::", 8001)
    assert (settings.tls_cert, settings.tls_client_ca) == (Path("c"), None)
    assert (settings.max_frame_bytes, settings.drain_timeout_ms) == (4096, 7)
    assert (settings.log_level, settings.log_format) == ("info", "json")


def test_a_gateway_alone_has_the_servers_defaults():
    assert parse("", ["--unix_socket", str(SOCKET), "--port", "8001"]) == parse(
        "", ServerConfig.of(grpc_port=8001).gateway_flags(SOCKET)
    )


PROGRAM = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as sock:
    sock.sendall({words!r})
    {then}
"""


class Started:
    """A gateway whose program is a few lines of its own."""

    def __init__(self, tmp_path, monkeypatch, words, then):
        (tmp_path / "scripted_gateway.py").write_text(PROGRAM.format(words=words, then=then))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(sidecars, "GATEWAY_PROGRAM", "scripted_gateway")
        self.changes = 0
        self.loop = FakeTimeLoop()
        self.loop.on_mark = self.count
        self.gateway = GrpcProcess(self.loop, ["--port", "1"])
        self.gateway.start()

    def count(self):
        self.changes += 1

    def close(self):
        self.gateway.child.kill()
        run_until(self.loop, self.gateway.child.reap)
        self.loop.close()


def test_the_gateway_has_started_once_it_listens(tmp_path, monkeypatch):
    its = Started(tmp_path, monkeypatch, LISTENING, "sock.recv(1)")
    assert not its.gateway.has_started
    run_until(its.loop, lambda: its.changes == 1)
    assert its.gateway.has_started
    its.close()
    assert its.gateway.failure == ""


@pytest.mark.parametrize(
    ("said", "words"), [(b"grpc is missing", "grpc is missing"), (b"", "the log says why")]
)
def test_a_gateway_that_dies_at_start_fails_the_start(tmp_path, monkeypatch, said, words):
    its = Started(tmp_path, monkeypatch, said, "sys.exit(2)")
    run_until(its.loop, lambda: its.changes == 1)
    assert not its.gateway.has_started
    assert its.gateway.failure.endswith(words)
    its.close()


def test_a_later_death_of_the_gateway_is_logged_with_its_words(tmp_path, monkeypatch, caplog):
    its = Started(tmp_path, monkeypatch, LISTENING + b"the port is gone", "sys.exit(2)")
    run_until(its.loop, lambda: "the port is gone" in caplog.text)
    assert (its.gateway.has_started, its.gateway.failure) == (True, "")
    its.close()


PYNVML = """
class NVMLError(Exception):
    pass

from types import SimpleNamespace as Figures

energies = iter(range(5_000_000, 9_000_000, 1500))

def nvmlInit():
    if {is_broken}:
        raise NVMLError("Driver Not Loaded")

def nvmlDeviceGetCount():
    return 2

nvmlDeviceGetHandleByIndex = int
nvmlDeviceGetUUID = "GPU-{}".format
nvmlDeviceGetUtilizationRates = lambda gpu: Figures(gpu=73, memory=20)
nvmlDeviceGetMemoryInfo = lambda gpu: Figures(total=80 << 30, free=79 << 30, used=1 << 30)
nvmlDeviceGetPowerUsage = lambda gpu: 70_500
nvmlDeviceGetPowerManagementLimit = lambda gpu: 400_000

def nvmlDeviceGetTotalEnergyConsumption(gpu):
    if gpu == 1:
        raise NVMLError("Not Supported")
    return next(energies)
"""
"""The functions of `pynvml` that are asked, as its documentation has them; the second GPU is older
and does not count energy."""

EXPECTED = """\
nv_gpu_utilization{gpu_uuid="GPU-0"} 0.73
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.73
qa_gpu_busy_seconds_total{gpu_uuid="GPU-0"} 0.0
qa_gpu_busy_seconds_total{gpu_uuid="GPU-1"} 0.0
nv_gpu_memory_total_bytes{gpu_uuid="GPU-0"} 85899345920
nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 85899345920
nv_gpu_memory_used_bytes{gpu_uuid="GPU-0"} 1073741824
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1073741824
nv_gpu_power_usage{gpu_uuid="GPU-0"} 70.5
nv_gpu_power_usage{gpu_uuid="GPU-1"} 70.5
nv_gpu_power_limit{gpu_uuid="GPU-0"} 400.0
nv_gpu_power_limit{gpu_uuid="GPU-1"} 400.0
nv_energy_consumption{gpu_uuid="GPU-0"} 0.0
"""


@pytest.fixture
def meter(loop):
    meter = GpuMeter(loop)
    yield meter
    meter.child.kill()


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Makes the stand-in what the program imports."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")

    def make(*, is_broken=False):
        (tmp_path / "pynvml.py").write_text(PYNVML.replace("{is_broken}", str(is_broken)))

    return make


@pytest.fixture
def reporting(meter, library):
    """A meter that has had its first report."""
    library()
    meter.start()
    run_until(meter.child.loop, lambda: bool(meter.readings))
    return meter


def lines(meter):
    text = write_text(gpu_families(meter.readings)).decode()
    return "".join(line for line in text.splitlines(keepends=True) if line[0] != "#")


def test_every_gpu_has_the_figures_that_it_reports_and_no_others(reporting):
    assert lines(reporting) == EXPECTED


@pytest.fixture
def reader():
    """Of the stand-in, in this process."""
    nvml = types.ModuleType("pynvml")
    exec(PYNVML.replace("{is_broken}", "False"), vars(nvml))
    return NvmlReader(nvml)


def test_energy_is_counted_from_the_first_report(reader):
    reports = [reader.read() for _ in range(3)]
    assert [first.energy_consumption for first, _ in reports] == [0.0, 1.5, 3.0]


def test_busy_time_is_the_utilization_by_the_time_between_readings(reader, monkeypatch):
    moments = iter([10.0, 10.0, 12.0, 12.0])
    monkeypatch.setattr("qa_service.sidecars.gpu_meter.time.monotonic", moments.__next__)
    assert [one.busy_s for one in reader.read()] == [0.0, 0.0]
    assert [one.busy_s for one in reader.read()] == [1.46, 1.46]


def test_without_a_driver_no_figures_are_reported(meter, library):
    library(is_broken=True)
    meter.start()
    run_until(meter.child.loop, meter.child.reap)
    assert (lines(meter), meter.child.exit_code) == ("", 0)


def test_figures_are_removed_when_the_meter_ends(reporting):
    os.kill(reporting.child.pid, signal.SIGKILL)
    run_until(reporting.child.loop, reporting.child.reap)
    assert lines(reporting) == ""


def test_the_meter_ends_when_its_reader_closes(reporting):
    reporting.child.close()
    run_until(reporting.child.loop, reporting.child.reap)
    assert reporting.child.exit_code == 0
