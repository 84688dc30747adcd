"""server.py as a user runs it: a process of its own, real sockets, a real model."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from harness.frames import frame, receive
from harness.process import GIVE_UP_S, LoggingProcess

ROOT = Path(__file__).resolve().parents[1]
LISTENING, READY = "QA server listening on ", "QA server ready on "
INSTANT = ("--inference_engine_type", "instant", "--num_inference_sessions", "1")
"""Flags of a server that starts quickly: for tests in which no answer's quality matters."""

EXACT_ENGINE = ("--inference_engine_type", "onnx", "--precision", "fp32")
"""One that starts in a quarter of the fastest one's time, for tests of what stands before it. In a
batch it answers what it answers alone, so whatever else comes is a mix-up: with int8 and bf16,
scores move with the batch, and so now and then the best span."""

FIXED_ENGINE = (*EXACT_ENGINE, "--cost_table", "off")
"""The same without a table of costs, which is another for each copy of a model."""

ONE_INSTANCE = (*FIXED_ENGINE, "--num_inference_sessions", "1")
"""One such instance: it starts in half the time of two."""

ONE_BY_ONE = (*ONE_INSTANCE, "--max_batch_size", "1")


class RunningServer(LoggingProcess):
    """A server process.

    Args:
        env: Variables added to this process's environment.
        root: The checkout that it runs in.
        constants: Others for those of the program, as in `harness.with_constants`.
        is_ready: Whether to wait until it is ready; else only until it listens.
        wrapper: Words before its command: a program that starts it.

    Attributes:
        ready_line: The line that it printed when it was ready; empty until then.
    """

    def __init__(
        self,
        model: Path,
        *flags: str,
        env: Mapping[str, str] | None = None,
        root: Path = ROOT,
        constants: Mapping[str, float] = MappingProxyType({}),
        is_ready: bool = True,
        wrapper: Sequence[str] = (),
    ) -> None:
        program = [str(root / "server.py")]
        if constants:
            changed = (f"{name}={value}" for name, value in constants.items())
            program = ["-m", "harness.with_constants", *changed, "--"]
        command = [*wrapper, sys.executable, *program, "--port", "0"]
        super().__init__(
            [*command, "--model", str(model.resolve()), *flags],
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,  # its workers are modules of the same checkout
            env={**os.environ, **(env or {})},
        )
        self.ready_line = ""
        line = self._wait_for_line(LISTENING, READY)  # an older checkout may have only the second
        self.port = int(port_of(line))
        if line.startswith(READY):
            self.ready_line = line
        elif is_ready:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        self.ready_line = self._wait_for_line(READY)

    def _wait_for_line(self, *words: str) -> str:
        line = line_with(self.process.stdout, *words)
        assert line, f"the server did not start:\n{self.log}"
        return line

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("localhost", self.port), GIVE_UP_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def ask(self, **request: object) -> dict:
        """Asks one question on a connection of its own."""
        with self.connect() as sock:
            sock.sendall(frame(request))
            return receive(sock)

    def stats(self) -> dict:
        return self.ask(type="stats")["stats"]

    def health(self) -> dict:
        return self.ask(type="health")["health"]

    def worker_pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split() if not _is_zombie(pid)]

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def wait(self) -> int:
        """Waits for its end; returns its exit code."""
        return self.process.wait(GIVE_UP_S)

    @staticmethod
    def wait_for_queue(sock: socket.socket) -> list[dict]:
        """Waits until what was sent on a connection has been read from it.

        An error is answered at once, so its answer shows that all before it was taken.

        Returns:
            The answers that came before that.
        """
        sock.sendall(frame(b"are you there?"))
        replies = []
        while "error" not in (reply := receive(sock)):
            replies.append(reply)
        assert reply["error"]["code"] == "invalid_frame"
        return replies


def line_with(output: Iterable[str], *words: str) -> str:
    """The first line of a server's output that begins with one of these; empty if none does.

    Of a line of JSON, as `--log_format json` makes them, it is the message.
    """
    return next((said for line in output if (said := _message_of(line)).startswith(words)), "")


def _message_of(line: str) -> str:
    return str(json.loads(line)["message"]) if line.startswith("{") else line.rstrip("\n")


def port_of(line: str) -> str:
    """The port in the line of a server that listens, or is ready."""
    return re.split("[:,] ", line)[0].rpartition(":")[2]


def _is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def engine_flags(engine_and_precision: str) -> tuple[str, ...]:
    """The server's flags for what benchmarks take as `ENGINE:PRECISION`."""
    engine, precision = engine_and_precision.split(":")
    return "--inference_engine_type", engine, "--precision", precision


@contextmanager
def running_server(
    model: Path,
    *flags: str,
    root: Path = ROOT,
    constants: Mapping[str, float] = MappingProxyType({}),
    wrapper: Sequence[str] = (),
) -> Iterator[RunningServer]:
    """Runs a checkout's server; on a clean exit of the block, checks that it stops cleanly too."""
    server = RunningServer(model, *flags, root=root, constants=constants, wrapper=wrapper)
    try:
        yield server
        if server.process.poll() is None:
            server.signal(signal.SIGTERM)
            assert server.wait() == 0, server.log
            assert [_message_of(line) for line in server.process.stdout] == ["QA server stopped."]
        assert "Traceback" not in server.log, server.log
    finally:
        server.close()
