"""Metrics of this machine's GPUs, under Triton's names where it has one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from qa_service.wire.http.prometheus import Family, Sample


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
