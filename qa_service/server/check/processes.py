"""The process that listens at a port or at a path, as /proc shows it to this user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

PROC = Path("/proc")
_LISTENING = "0A"
"""TCP_LISTEN in the table of sockets (proc_pid_net(5))."""
_ACCEPTS = 0x10000
"""The flag of a Unix socket that listens."""
_OURS = ("qa-server", "qa-grpc-gateway", "server.py")


@dataclass(frozen=True, slots=True)
class Process:
    """A process.

    Attributes:
        words: Its command without the flags, which may hold secrets.
    """

    pid: int
    words: tuple[str, ...]

    @property
    def is_qa_server(self) -> bool:
        return any(
            word.startswith("qa_service.") or Path(word).name in _OURS for word in self.words
        )

    def __str__(self) -> str:
        return f"process {self.pid} ({' '.join(self.words)})"


def process_at_port(port: int) -> Process | None:
    """Who listens at a TCP port; None if nobody does, or another user whom only root sees."""
    rows = (row for name in ("tcp", "tcp6") for row in _rows(name))
    return _holder(
        row[9]
        for row in rows
        if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port
    )


def process_at_path(path: Path) -> Process | None:
    return _holder(
        row[6]
        for row in _rows("unix")
        if int(row[3], 16) & _ACCEPTS and row[7:] == [str(path.absolute())]
    )


def _rows(table: str) -> Iterator[list[str]]:
    with contextlib.suppress(OSError):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            yield line.split(maxsplit=7) if table == "unix" else line.split()


def _holder(inodes: Iterable[str]) -> Process | None:
    """The process that has one of these sockets open."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in PROC.glob("[0-9]*") if wanted else ():
        with contextlib.suppress(OSError):
            if any(str(fd.readlink()) in wanted for fd in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_text().rstrip("\0").split("\0")
                its = takewhile(lambda word: not word.startswith("--"), words)
                return Process(int(folder.name), tuple(its))
    return None
