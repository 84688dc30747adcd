"""What a process holds, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


def rss_bytes(pid: int) -> int:
    """Memory that is resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def num_descriptors(pid: int) -> int:
    """Open file descriptors."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
