"""What a process holds, as the kernel counts it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20
GIVE_UP_S = 300.0
"""What has not come by then will not: no verdict on how fast it is, even on a busy machine."""


def rss_bytes(pid: int) -> int:
    """Memory that is resident; 0 once the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except FileNotFoundError:
        return 0


def cpu_s(pid: int) -> float:
    """User and system time, threads that have ended included; 0 once the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    pids = [pid]
    for parent in pids:
        with contextlib.suppress(FileNotFoundError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


@contextlib.contextmanager
def held_still(pids: Sequence[int]) -> Iterator[None]:
    """Stops processes for a while; those that have died meanwhile stay so."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def num_descriptors(pid: int) -> int:
    """Open file descriptors."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
