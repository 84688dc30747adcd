"""Who takes part, and how each is started and stopped.

Every contestant is a program of its own in this Python, on a free port, with two sessions of one
thread each unless it says otherwise. It counts as started when it answers; what does not is
reported in one line, and the others go on.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generator import Generator, ask
from benchmarks.servers.reading import MODEL_VARIABLE
from benchmarks.wires import Frames, Http, Wire

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
WARMUP_CLIENTS, WARMUP_REQUESTS = 4, 24
WARMUP_TEXT = "The letter was written by Ada in 1843. " * 20


class NotStartedError(Exception):
    """A contestant does not run here; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server to be measured.

    Attributes:
        name: What the tables call it.
        command: What to run after `python`, up to the port.
        wire: How it is spoken to.
        settings: What it was set to, in words.
    """

    name: str
    command: tuple[str, ...]
    wire: Wire
    settings: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """A contestant that has answered.

    Attributes:
        contestant: Which.
        port: Where it listens.
        pid: Of its first process.
    """

    contestant: Contestant
    port: int
    pid: int

    def generator(self, requests: Sequence[bytes], first: int = 0) -> Generator:
        """Clients for it."""
        return Generator(self.port, self.contestant.wire, requests, first)

    def cpu_s(self) -> float:
        """Processor time that all of its processes have used."""
        return sum(_cpu_s(pid) for pid in _tree(self.pid))

    def rss_bytes(self) -> int:
        """Memory resident in all of its processes."""
        return sum(_rss_bytes(pid) for pid in _tree(self.pid))


def ours(name: str, *flags: str, settings: str = "") -> Contestant:
    """This project's server."""
    command = ("server.py", "--host", "127.0.0.1", "--log_level", "warning", *flags)
    return Contestant(name, command, Frames(), settings)


def peer(name: str, module: str, wire: Wire, *flags: str, settings: str = "") -> Contestant:
    """One of `benchmarks/servers/`."""
    return Contestant(name, ("-m", f"benchmarks.servers.{module}", *flags), wire, settings)


MOSEC = Http("/inference")
LITSERVE = Http("/predict")
RAY = Http("/")


@contextmanager
def running(contestant: Contestant, model: Path) -> Iterator[Running]:
    """Starts a contestant, warms its sessions, and stops it with all of its processes.

    Raises:
        NotStartedError: It does not answer.
    """
    port = _free_port()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, *contestant.command, "--port", str(port), *_model(contestant, model)],
            cwd=ROOT,
            env=_environment(model),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            server = Running(contestant, port, process.pid)
            _wait_for_answer(server, process, log)
            _warm_up(server)
            yield server
        finally:
            _stop(process)


def _model(contestant: Contestant, model: Path) -> list[str]:
    return ["--model", str(model)] if contestant.command[0] == "server.py" else []


def _environment(model: Path) -> dict[str, str]:
    return {
        **os.environ,
        MODEL_VARIABLE: str(model.resolve()),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _wait_for_answer(server: Running, process: subprocess.Popen, log: object) -> None:
    wire = server.contestant.wire
    request = wire.encode("Who wrote the letter?", WARMUP_TEXT)
    give_up_s = time.monotonic() + START_TIMEOUT_S
    fault = ""
    while process.poll() is None and time.monotonic() < give_up_s:
        try:
            if wire.is_answer(ask(server.port, wire, request)):
                return
        except (OSError, ValueError) as error:
            fault = str(error)
        time.sleep(0.1)  # another's program: there is no event to wait for
    log.seek(0)
    lines = [line for line in log.read().splitlines() if line.strip()]
    said = lines[-1] if lines else "nothing"
    raise NotStartedError(f"last fault: {fault or 'no answer'}; last line of its log: {said}")


def _warm_up(server: Running) -> None:
    """Every session has answered some before the first measurement."""
    request = server.contestant.wire.encode("Who wrote the letter?", WARMUP_TEXT)
    server.generator([request]).run_count(WARMUP_CLIENTS, WARMUP_REQUESTS)


def _stop(process: subprocess.Popen) -> None:
    """Asks it to stop, then ends whatever of it is left."""
    family = _tree(process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in family:
        if _is_of(pid, process.pid):
            os.kill(pid, signal.SIGKILL)


def _is_of(pid: int, session: int) -> bool:
    """Whether a process is still there and of the session that was started for it."""
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    pids = [pid]
    for parent in pids:
        pids += _children(parent)
    return pids


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except FileNotFoundError:
        pass
    return found


def _cpu_s(pid: int) -> float:
    """User and system time, threads that have ended included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except FileNotFoundError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
