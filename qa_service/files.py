"""Files in folders that others write to."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_file(path: Path) -> bytes:
    """Reads a file, and nothing that could make it wait for a writer.

    Raises:
        OSError: It cannot be read, or is a FIFO, a socket or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        return file.read()
