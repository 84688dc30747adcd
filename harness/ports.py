"""Ports for programs that cannot be handed a socket, or that come back to the one they had.

The kernel gives a port that was bound and closed to the next who asks for any. These lie below
those that it gives by itself, and a lock keeps each to one process of ours until that ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 20_000, 32_000
LOCKS = Path(tempfile.gettempdir()) / f"qa-ports-{os.getuid()}"
_held: list[int] = []


def reserve_port() -> int:
    """A port that nobody listens on, and that nobody else will be given."""
    LOCKS.mkdir(exist_ok=True)
    for port in random.sample(range(FIRST, LAST), LAST - FIRST):
        lock = os.open(LOCKS / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.create_server(("127.0.0.1", port)):
                pass
        except OSError:
            os.close(lock)
            continue
        _held.append(lock)  # until this process ends
        return port
    raise RuntimeError(f"no port from {FIRST} to {LAST} is free")
