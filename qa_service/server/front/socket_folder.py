"""A folder in /tmp for the Unix socket of a server whose options name none.

The server holds a lock on its folder, which goes with it, so that the next server removes what a
killed one has left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from qa_service.errors import SetupError

PREFIX = "qa-server-"
SOCKET = "socket"
NEW_S = 60.0
"""A folder without a socket is only just being made, or was left by a server killed at that."""


class SocketFolder:
    """A locked folder, which only this user may enter.

    Raises:
        SetupError: There is no place for it.
    """

    def __init__(self) -> None:
        try:
            _remove_left()
            self._path = Path(tempfile.mkdtemp(prefix=PREFIX))
        except OSError as error:
            raise SetupError(
                f"--grpc_port needs a Unix socket, and there is no place for one "
                f"({error.strerror}): name a path with --unix_socket, or a folder with TMPDIR"
            ) from None
        self._lock = _lock(self._path)

    @property
    def socket(self) -> Path:
        """Where the socket belongs."""
        return self._path / SOCKET

    def remove(self) -> None:
        """Removes the folder, and releases the lock."""
        shutil.rmtree(self._path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _remove_left() -> None:
    """Removes the folders of this user that no server holds any more."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.geteuid():
                continue
            is_new = time.time() - path.stat().st_mtime < NEW_S
            if is_new and not (path / SOCKET).is_socket():
                continue
            if (lock := _lock(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _lock(path: Path) -> int | None:
    """A descriptor with the folder's lock; None if another process has it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
