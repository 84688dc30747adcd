"""The program that reads the GPUs through NVIDIA's management library, and metrics of its readings.

`python -m qa_service.sidecars.gpu_meter FD PARENT` writes a frame of msgpack to its descriptor
every `INTERVAL_S`. Without a GPU, or without `pynvml` (the package nvidia-ml-py), it ends and
writes nothing. The metrics have Triton's names where it has one.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from qa_service.child_program import end_with_parent, inherited_socket
from qa_service.wire.frames import frame_of
from qa_service.wire.http.prometheus import Family, Sample

INTERVAL_S = 0.5
"""A load of two seconds, as benchmarks make it, has several readings; Triton takes one in 2 s."""


class GpuReading(msgspec.Struct, frozen=True):
    """A GPU's metrics; None for what it does not report.

    The utilization is a share of the last sampling period, 0 to 1, and `busy_s` its sum; power is
    in watts, and energy in joules since the first reading. A `uuid` is the same on every start.
    """

    uuid: str
    utilization: float | None = None
    busy_s: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_usage: float | None = None
    power_limit: float | None = None
    energy_consumption: float | None = None


_FAMILIES: dict[str, tuple[str, Literal["counter", "gauge"], str]] = {
    "utilization": ("nv_gpu_utilization", "gauge", "Share of the time in which a GPU computes."),
    "busy_s": ("qa_gpu_busy_seconds_total", "counter", "Time in which a GPU computed, in seconds."),
    "memory_total_bytes": ("nv_gpu_memory_total_bytes", "gauge", "Memory of a GPU."),
    "memory_used_bytes": ("nv_gpu_memory_used_bytes", "gauge", "Memory in use of a GPU."),
    "power_usage": ("nv_gpu_power_usage", "gauge", "Power that a GPU takes, in watts."),
    "power_limit": ("nv_gpu_power_limit", "gauge", "Power that a GPU may take, in watts."),
    "energy_consumption": ("nv_energy_consumption", "counter", "Energy of a GPU, in joules."),
}


def gpu_families(readings: Sequence[GpuReading]) -> Iterator[Family]:
    """The metrics of all GPUs, without those that no GPU reports."""
    for field, (name, kind, text) in _FAMILIES.items():
        samples = [
            Sample(value, {"gpu_uuid": one.uuid})
            for one in readings
            if (value := getattr(one, field)) is not None
        ]
        if samples:
            yield Family(name, kind, text, samples)


class NvmlReader:
    """Reads all GPUs, by the initialized module `pynvml`."""

    def __init__(self, nvml: Any) -> None:  # noqa: ANN401 - it has no types
        self._nvml = nvml
        self._first_mj: dict[str, int] = {}
        self._busy_s: dict[str, float] = {}
        self._read_s: dict[str, float] = {}

    def read(self) -> list[GpuReading]:
        nvml = self._nvml
        count = nvml.nvmlDeviceGetCount()
        return [self._read(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]

    def _read(self, gpu: object) -> GpuReading:
        uuid = self._nvml.nvmlDeviceGetUUID(gpu)
        rates = self._ask("nvmlDeviceGetUtilizationRates", gpu)
        memory = self._ask("nvmlDeviceGetMemoryInfo", gpu)
        usage_mw = self._ask("nvmlDeviceGetPowerUsage", gpu)
        limit_mw = self._ask("nvmlDeviceGetPowerManagementLimit", gpu)
        energy_mj = self._ask("nvmlDeviceGetTotalEnergyConsumption", gpu)
        if energy_mj is not None:
            energy_mj -= self._first_mj.setdefault(uuid, energy_mj)
        utilization, busy_s = None if rates is None else rates.gpu / 100, None
        if utilization is not None:
            now_s = time.monotonic()
            past_s = now_s - self._read_s.get(uuid, now_s)
            self._read_s[uuid] = now_s
            self._busy_s[uuid] = self._busy_s.get(uuid, 0.0) + utilization * past_s
            busy_s = round(self._busy_s[uuid], 3)
        return GpuReading(
            uuid=uuid,
            utilization=utilization,
            busy_s=busy_s,
            memory_total_bytes=None if memory is None else memory.total,
            memory_used_bytes=None if memory is None else memory.used,
            power_usage=_from_thousandths(usage_mw),
            power_limit=_from_thousandths(limit_mw),
            energy_consumption=_from_thousandths(energy_mj),
        )

    def _ask(self, function: str, gpu: object) -> Any:  # noqa: ANN401 - it has no types
        """A value from the library; None if this kind of GPU does not have it."""
        try:
            return getattr(self._nvml, function)(gpu)
        except self._nvml.NVMLError:
            return None


def _from_thousandths(value: int | None) -> float | None:
    return None if value is None else value / 1000


def main() -> None:
    fd, parent = map(int, sys.argv[1:])
    end_with_parent(parent)
    try:
        import pynvml  # noqa: PLC0415 - only where it is installed
    except ImportError:
        return
    with inherited_socket(fd) as sock, contextlib.suppress(pynvml.NVMLError, OSError):
        pynvml.nvmlInit()
        reader = NvmlReader(pynvml)
        sock.settimeout(INTERVAL_S)
        while True:
            sock.sendall(frame_of(msgspec.msgpack.encode(reader.read())))
            with contextlib.suppress(TimeoutError):
                sock.recv(1)  # the server sends nothing, so this is end-of-file
                return


if __name__ == "__main__":
    main()
