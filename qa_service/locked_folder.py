"""A folder for temporary files, which the next process removes if this one is killed.

A process holds a lock on its folder, which goes with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

SUFFIX = ".tmp"
"""Ends its name, which a folder that somebody has made to keep hardly has."""
NEW_S = 60.0
"""An empty folder is only just being made, or was left by a process killed at that."""


class LockedFolder:
    """A locked folder, which only this user may enter.

    Args:
        prefix: Of its name, and of those that are removed if no process holds them any more.
        parent: Where it is made; None for the folder of temporary files.

    Raises:
        OSError: There is no place for it.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        for left in (parent or Path(tempfile.gettempdir())).glob(f"{prefix}*{SUFFIX}"):
            with contextlib.suppress(OSError):
                if left.is_symlink() or not left.is_dir() or left.stat().st_uid != os.geteuid():
                    continue
                is_new = time.time() - left.stat().st_mtime < NEW_S
                if is_new and not any(left.iterdir()):
                    continue
                if (lock := _lock(left)) is not None:  # no process holds it any more
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(lock)
        self.path = Path(tempfile.mkdtemp(SUFFIX, prefix, parent))
        self._lock = _lock(self.path)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(path: Path) -> int | None:
    """A descriptor with the folder's lock; None if another process has it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
