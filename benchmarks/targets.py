"""The servers that are measured, and how each is started and stopped.

This project's server is started as tests start it. A peer is a program of `benchmarks/servers/` in
this Python, on a free port, and has started when it answers; one that does not is reported in one
line, and the others go on. Each has two instances of one thread unless it says otherwise.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from benchmarks.servers.reading import MODEL_VARIABLE
from harness.process import cpu_s, reserve_port, rss_bytes, tree
from harness.server import EXACT_ENGINE, ROOT, running_server
from qa_service.client import ProtocolError
from qa_service.data.squad import SquadQuestion
from qa_service.programs.load.generator import run_load
from qa_service.programs.load.plan import LoadPlan
from qa_service.programs.load.wire import QaWire, Reply, Wire

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0  # then it is killed
HOST = "127.0.0.1"
REPLY_TIMEOUT_S = 60.0
RECEIVE_BYTES = 1 << 16
WARMUP_CLIENTS, WARMUP_REQUESTS_EACH = 4, 6  # so that each instance has some
WARMUP = SquadQuestion(
    "", "Who wrote the letter?", "The letter was written by Ada in 1843. " * 20, (), ()
)


class _Answer(msgspec.Struct):
    answer: str
    start: int | None
    end: int | None


class HttpWire:
    """A POST of JSON to a path; replies come in order and say their length."""

    _decode = msgspec.json.Decoder(_Answer).decode

    def __init__(self, path: str) -> None:
        self._path = path.encode()
        self._ids: deque[int] = deque()

    def body(self, question: SquadQuestion) -> bytes:
        asked = {"question": question.question, "text": question.context}
        return self._request(json.dumps(asked).encode())

    def _request(self, body: bytes) -> bytes:
        return (
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (self._path, len(body), body)
        )

    def request(self, request_id: int, body: bytes) -> bytes:
        self._ids.append(request_id)
        return body

    def replies(self, inbox: bytearray) -> Iterator[Reply]:
        while (head := inbox.find(_HEAD_END)) >= 0:
            length = _LENGTH.search(inbox, 0, head)
            if not length or not self._ids:
                raise ProtocolError(f"no reply to a request: {bytes(inbox[:head])!r}")
            end = head + len(_HEAD_END) + int(length[1])
            if len(inbox) < end:
                return
            status, body = bytes(inbox[9:12]), bytes(inbox[head + len(_HEAD_END) : end])
            del inbox[:end]
            yield self._reply(self._ids.popleft(), status, body)

    def _reply(self, request_id: int, status: bytes, body: bytes) -> Reply:
        if status != b"200":
            return Reply(request_id, f"http_{status.decode(errors='replace')}")
        try:
            answer = self._decode(body)
        except msgspec.MsgspecError as error:
            raise ProtocolError(str(error)) from error
        return Reply(request_id, "", answer.answer, answer.start, answer.end)


class NotStartedError(Exception):
    """A target does not run here; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server to be measured.

    Attributes:
        module: Of `benchmarks/servers/`; empty for this project's server.
        flags: Its flags, but for port and model.
    """

    name: str
    module: str
    flags: tuple[str, ...]
    wire: Callable[[], Wire]
    settings: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """A target that has answered; `pid` is that of its first process."""

    target: Target
    port: int
    pid: int

    def plan(self, questions: Sequence[SquadQuestion], **fields: Any) -> LoadPlan:
        return LoadPlan(HOST, self.port, questions, wire=self.target.wire, **fields)

    def connect(self) -> socket.socket:
        sock = socket.create_connection((HOST, self.port), REPLY_TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def ask(self, question: SquadQuestion, sock: socket.socket | None = None) -> Reply:
        """Asks one question, by default on a connection of its own.

        Raises:
            OSError: It does not listen, or hangs up.
            ProtocolError: Its bytes are no reply.
        """
        if sock is None:
            with self.connect() as own:
                return self.ask(question, own)
        wire, inbox = self.target.wire(), bytearray()
        sock.sendall(wire.request(1, wire.body(question)))
        while data := sock.recv(RECEIVE_BYTES):
            inbox += data
            for reply in wire.replies(inbox):
                return reply
        raise ConnectionResetError("hung up without an answer")

    def cpu_s(self) -> float:
        return sum(map(cpu_s, tree(self.pid)))

    def rss_bytes(self) -> int:
        return sum(map(rss_bytes, tree(self.pid)))


def ours(name: str, *flags: str, settings: str = "") -> Target:
    return Target(name, "", (*EXACT_ENGINE, "--log_level", "warning", *flags), QaWire, settings)


def peer(
    name: str, module: str, wire: Callable[[], Wire], *flags: str, settings: str = ""
) -> Target:
    return Target(name, module, flags, wire, settings)


MOSEC = partial(HttpWire, "/inference")
LITSERVE = partial(HttpWire, "/predict")


@contextmanager
def running(target: Target, model: Path, root: Path = ROOT) -> Iterator[Running]:
    """Starts a target, warms its instances, and stops it with all of its processes.

    Args:
        root: The checkout that this project's server runs in.

    Raises:
        NotStartedError: A peer does not answer.
    """
    with ExitStack() as stack:
        if target.module:
            server = stack.enter_context(_running_peer(target, model))
        else:
            own = stack.enter_context(running_server(model, *target.flags, root=root))
            server = Running(target, own.port, own.process.pid)
        _warm_up(server)
        yield server


@contextmanager
def _running_peer(target: Target, model: Path) -> Iterator[Running]:
    port = reserve_port()
    command = [sys.executable, "-m", f"benchmarks.servers.{target.module}", *target.flags]
    threads = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    names = {MODEL_VARIABLE: str(model.resolve()), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=ROOT,
            env={**os.environ, **names, **threads},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            server = Running(target, port, process.pid)
            _wait_for_answer(server, process, log)
            yield server
        finally:
            _stop(process)


def _wait_for_answer(server: Running, process: subprocess.Popen, log: IO[str]) -> None:
    give_up_s = time.monotonic() + START_TIMEOUT_S
    fault = ""
    while process.poll() is None and time.monotonic() < give_up_s:
        try:
            if not (fault := server.ask(WARMUP).code):
                return
        except (OSError, ProtocolError) as error:
            fault = str(error)
        time.sleep(0.1)  # another's program: there is no event to wait for
    log.seek(0)
    lines = [line for line in log.read().splitlines() if line.strip()]
    said = lines[-1] if lines else "nothing"
    raise NotStartedError(f"last fault: {fault or 'no answer'}; last line of its log: {said}")


def _warm_up(server: Running) -> None:
    """Every instance has answered some before the first measurement."""
    plan = server.plan(
        [WARMUP],
        num_simultaneous_clients=WARMUP_CLIENTS,
        num_total_clients=WARMUP_CLIENTS,
        num_request_per_client=WARMUP_REQUESTS_EACH,
    )
    for _ in run_load(plan):
        pass


def _stop(process: subprocess.Popen) -> None:
    family = tree(process.pid)
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
