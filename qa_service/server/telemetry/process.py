"""The operating system's metrics of this process, named as in Prometheus' client libraries.

They are read from /proc, which never waits for a disk.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from qa_service.wire.http.prometheus import Family, Sample

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def process_families() -> list[Family]:
    """The `process_*` metrics of the loop's process, without the workers."""
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    user_ticks, system_ticks, start_ticks = (int(after_name[i]) for i in (11, 12, 19))
    virtual_bytes, resident_pages = int(after_name[20]), int(after_name[21])
    families = [
        _family("cpu_seconds_total", "Processor time, in seconds.",
                (user_ticks + system_ticks) / TICKS_PER_S, is_counter=True),
        _family("resident_memory_bytes", "Memory in use, in bytes.", resident_pages * PAGE_BYTES),
        _family("virtual_memory_bytes", "Address space in use, in bytes.", virtual_bytes),
        _family("start_time_seconds", "When it started, in seconds since 1970.",
                _boot_s() + start_ticks / TICKS_PER_S),
        _family("max_fds", "File descriptors it may have open.",
                resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ]  # fmt: skip
    if open_fds := Path("/proc/self/fd").stat().st_size:  # 0 before Linux 6.2
        families.append(_family("open_fds", "File descriptors it has open.", open_fds))
    return families


def _boot_s() -> float:
    lines = Path("/proc/stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))


def _family(name: str, text: str, value: float, *, is_counter: bool = False) -> Family:
    return Family(
        f"process_{name}", "counter" if is_counter else "gauge", text, [Sample(value, {})]
    )
