"""Processes: memory, descriptors and time as the kernel counts them; waiting; logs; ports.

The kernel gives a port that was bound and closed to the next who asks for any. Those that are
reserved here lie below those that it gives by itself, and a lock keeps each to one process of ours
until that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20
GIVE_UP_S = 300.0
"""What has not come by then will not: no verdict on how fast it is, even on a busy machine."""

LOOK_INTERVAL_S = 0.01
Seen = TypeVar("Seen")
FIRST, LAST = 20_000, 32_000
LOCKS = Path(tempfile.gettempdir()) / f"qa-ports-{os.getuid()}"
_held: list[int] = []


def wait_until(look: Callable[..., Seen], is_so: Callable[[Seen], object] = bool) -> Seen:
    """Looks again and again until what is seen is so; for what has no event to wait for."""
    give_up_s = time.monotonic() + GIVE_UP_S
    while not is_so(seen := look()):
        assert time.monotonic() < give_up_s, f"it never came; seen last: {seen}"
        time.sleep(LOOK_INTERVAL_S)
    return seen


class LoggingProcess:
    """A process whose log is kept.

    Args:
        logs_to: The streams that are its log.
        options: Further ones of `subprocess.Popen`.
    """

    def __init__(
        self, command: Sequence[str], logs_to: Sequence[str] = ("stderr",), **options: Any
    ) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        streams: dict[str, Any] = dict.fromkeys(logs_to, self._log)
        self.process: Any = subprocess.Popen(command, **streams, **options)

    @property
    def log(self) -> str:
        """What it has logged so far, with what its own processes have."""
        # Opened once more: its own descriptor's position is the process's too.
        return Path(f"/proc/self/fd/{self._log.fileno()}").read_text()

    def wait_for_log(self, words: str, times: int = 1) -> None:
        """Waits until it has logged the words so often."""
        wait_until(lambda: self.log, lambda log: log.count(words) >= times)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self._log.close()


def rss_bytes(pid: int) -> int:
    """Memory that is resident; 0 once the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except FileNotFoundError:
        return 0


def cpu_s(pid: int, *, with_children: bool = False) -> float:
    """User and system time, threads that have ended included; 0 once the process is gone.

    Args:
        with_children: Whether children that have ended count too.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11 : 15 if with_children else 13])) / TICKS_PER_S


def tree(pid: int) -> list[int]:
    pids = [pid]
    for parent in pids:
        with contextlib.suppress(FileNotFoundError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def wait_for_end(*pids: int) -> None:
    """Until processes are gone that others than us started."""
    for pid in pids:
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists())


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
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Growth:
    """How much more a process holds after something than before."""

    MAX_BYTES = 8 * MIB

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.before = self.after = (rss_bytes(pid), num_descriptors(pid))

    def end(self) -> None:
        """Takes the second measure, once the process has had time to let go."""
        num_before = self.before[1]
        num_after = wait_until(lambda: num_descriptors(self._pid), lambda num: num <= num_before)
        self.after = (rss_bytes(self._pid), num_after)  # a second look may see one that is opened

    @property
    def is_small(self) -> bool:
        """Whether no descriptor is left, and hardly any memory."""
        return self.after[0] - self.before[0] < self.MAX_BYTES and self.after[1] <= self.before[1]

    def __str__(self) -> str:
        (before, _), (after, _) = self.before, self.after
        return f"RSS {before / MIB:.1f} MiB before, {after / MIB:.1f} MiB after"


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
