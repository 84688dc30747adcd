"""Files in folders that others write to."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def read_file(path: Path) -> bytes:
    """Reads a file, and nothing that could make it wait for a writer.

    Raises:
        OSError: It cannot be read, or is a FIFO, a socket or a device.
    """
    with open_regular(path) as file:
        return file.read()


def open_regular(path: Path | bytes, *, follow_links: bool = True) -> BufferedReader:
    """Opens a file to read it; never a FIFO, a socket or a device, which may be there by now.

    Raises:
        OSError: It cannot be opened, is no regular file, or is a link that is not to be followed.
    """
    links = 0 if follow_links else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | links)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file")
    return os.fdopen(descriptor, "rb")
