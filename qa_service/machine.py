"""What this machine is and has: its processor, this process's CPUs and memory."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

ROOT = Path("/")


class Processor(msgspec.Struct, frozen=True):
    """A processor's model name and its flags, as Linux writes them."""

    name: str
    flags: frozenset[str]

    def __str__(self) -> str:
        """The same in every process: a set's own text has another order in each."""
        return " ".join([self.name, *sorted(self.flags)])


def processor(root: Path = ROOT) -> Processor:
    """This machine's processor, from `/proc/cpuinfo`; without it, its architecture's name."""
    fields: dict[str, str] = {}
    with suppress(OSError):
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
        parts = (line.partition(":") for line in lines.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in parts}
    flags = fields.get("flags") or fields.get("Features") or ""
    return Processor(fields.get("model name") or platform.machine(), frozenset(flags.split()))


def gpu_driver(root: Path = ROOT) -> str:
    """What NVIDIA's kernel module says of itself; empty where there is none."""
    with suppress(OSError):
        return (root / "proc/driver/nvidia/version").read_text().partition("\n")[0]
    return ""


@functools.cache
def num_cpus(root: Path = ROOT) -> int:
    """How many CPUs this process may use, at least 1: by its affinity and its cgroup's quota.

    A quota of one and a half CPUs counts as two.
    """
    allowed = len(os.sched_getaffinity(0))
    quotas = filter(None, map(_quota_of, _cgroups(root, "cpu")))
    return max(1, min([allowed, *map(math.ceil, quotas)]))


def available_bytes(root: Path = ROOT) -> int:
    """The memory that programs may still take, of the machine's and of each cgroup's above this.

    Pages of files that the kernel gives back are free. Linux, proc_meminfo(5) (`MemAvailable`),
    Documentation/admin-guide/cgroup-v2.rst (`memory.max`), cgroup-v1/memory.rst.
    """
    found = [meminfo_bytes("MemAvailable", root)]
    for folder in _cgroups(root, "memory"):
        with suppress(OSError, ValueError):  # no such file, or `max`
            is_new = (folder / "memory.max").exists()
            limit, used = ("max", "current") if is_new else ("limit_in_bytes", "usage_in_bytes")
            stat = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
            free = int((folder / f"memory.{limit}").read_text())
            free -= int((folder / f"memory.{used}").read_text())
            found.append(free + int(stat["inactive_file" if is_new else "total_inactive_file"]))
    return min(found)


def meminfo_bytes(name: str, root: Path = ROOT) -> int:
    """A field of the machine's memory, in bytes. Linux, proc_meminfo(5)."""
    lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":") for line in lines)
    return int(fields[name].split()[0]) * 1024


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the cgroups above this process, in version 1 a controller's."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / controllers
        inside = mounted / path.strip("/")
        for folder in [inside, *inside.parents]:
            if not folder.is_relative_to(mounted):
                break
            yield folder


def _quota_of(folder: Path) -> float | None:
    """The CPUs that a cgroup grants by its files; None without a quota.

    Linux, Documentation/admin-guide/cgroup-v2.rst (`cpu.max`), scheduler/sched-bwc.rst (version 1).
    """
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # no such file, or `max`
        return None


def allow_descriptors(number: int) -> int:
    """Raises this process's limit of descriptors to a number, as far as its hard limit allows.

    Returns how many it may have.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        soft = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return number if soft == resource.RLIM_INFINITY else soft


def process_age_s() -> float:
    """Seconds since this process began, its interpreter's own start included."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes() -> int:
    return _memory_bytes()[0]


def own_bytes() -> int:
    """The same without files that are mapped: the kernel has those back when it needs them."""
    resident, shared = _memory_bytes()
    return resident - shared


def _memory_bytes() -> tuple[int, int]:
    """What this process has in use, and what of that others share. Linux, proc_pid_statm(5)."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    page = os.sysconf("SC_PAGE_SIZE")
    return resident * page, shared * page


def return_free_memory() -> None:
    """Gives the kernel back what the allocator holds and nobody uses; only glibc can be asked."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
