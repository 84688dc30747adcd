"""A program beside the loop: what it is sent, when it is started again, how it ends."""

import os
import signal
import sys

import pytest

from qa_service.server.sidecars.side_program import (
    FIRST_BACKOFF_S,
    MAX_BACKOFF_S,
    STEADY_S,
    SideProgram,
)
from tests.support import FakeTimeLoop, present, run_until

ECHO = """
import os, socket, sys
fd, parent, word = sys.argv[1:]
with socket.socket(fileno=int(fd)) as sock:
    sock.sendall(f"{word} {os.environ['BESIDE']} {parent} ".encode())
    while data := sock.recv(100):
        if data == b"die":
            sys.exit(3)
        sock.sendall(data)
"""


class Beside:
    """A side program and what came of it."""

    def __init__(self, loop):
        self.loop = loop
        self.received = b""
        self.deaths = self.starts = 0
        self.program = SideProgram(
            loop, "the echo", "echo_beside", ["hello"], environment={"BESIDE": "here"},
            on_start=self._on_start, on_data=self._on_data, on_death=self._on_death,
        )  # fmt: skip

    def _on_start(self):
        self.starts += 1

    def _on_data(self, data):
        self.received += data

    def _on_death(self):
        self.deaths += 1

    def start(self):
        self.program.start()
        self.wait_for(f"hello here {os.getpid()} ".encode())

    def wait_for(self, data):
        run_until(self.loop, lambda: self.received == data)
        self.received = b""

    def die(self, deaths, *, exits=True):
        self.program.write(b"die")
        run_until(self.loop, lambda: self.deaths == deaths)
        if exits:
            present(self.program._process).wait(20)

    def pass_s(self, seconds):
        self.loop.clock.pass_s(seconds)
        self.loop.call_soon(self.loop.stop)
        self.loop.run()


@pytest.fixture
def beside(tmp_path, monkeypatch):
    (tmp_path / "echo_beside.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")
    loop = FakeTimeLoop()
    beside = Beside(loop)
    yield beside
    beside.program.kill()
    if beside.program._process:
        beside.program._process.wait(20)
    loop.close()


def test_a_side_program_receives_and_sends_bytes(beside):
    beside.start()
    beside.program.write(b"once")
    beside.wait_for(b"once")
    assert beside.program.is_running


def test_a_side_program_ends_at_end_of_file(beside):
    beside.start()
    beside.program.close()
    assert beside.program._process.wait(20) == 0
    assert beside.program.reap()
    beside.pass_s(MAX_BACKOFF_S)
    assert (beside.starts, beside.deaths) == (1, 0)


def test_a_dead_side_program_is_restarted_after_a_backoff(beside, caplog):
    beside.start()
    os.kill(beside.program.pid, signal.SIGKILL)
    run_until(beside.loop, lambda: beside.deaths == 1)
    beside.program._process.wait(20)
    assert not beside.program.is_running
    beside.program.write(b"lost")
    beside.pass_s(FIRST_BACKOFF_S * 0.9)
    assert beside.starts == 1
    beside.pass_s(FIRST_BACKOFF_S * 0.2)
    assert beside.starts == 2
    beside.wait_for(f"hello here {os.getpid()} ".encode())
    assert "the echo was killed by SIGKILL; it starts again" in caplog.text


def test_the_backoff_doubles_while_it_keeps_dying_and_no_longer(beside, caplog):
    beside.start()
    for death, backoff_s in enumerate((FIRST_BACKOFF_S, 2 * FIRST_BACKOFF_S), 1):
        beside.die(death)
        beside.pass_s(backoff_s * 0.9)
        assert beside.starts == death
        beside.pass_s(backoff_s * 0.2)
        assert beside.starts == death + 1
    beside.pass_s(STEADY_S)
    beside.die(3)
    beside.pass_s(FIRST_BACKOFF_S * 1.1)
    assert beside.starts == 4
    assert "the echo exited with 3; it starts again" in caplog.text


def test_a_side_program_that_cannot_start_is_tried_again(beside, caplog, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nonexistent/python")
        beside.program.start()
    assert "the echo cannot be started now" in caplog.text
    beside.pass_s(FIRST_BACKOFF_S)
    beside.wait_for(f"hello here {os.getpid()} ".encode())


def test_a_closed_side_program_is_not_restarted(beside):
    beside.start()
    beside.die(1)
    beside.program.close()
    beside.pass_s(MAX_BACKOFF_S)
    assert beside.starts == 1


def test_bytes_written_before_close_arrive(beside):
    beside.start()
    beside.program.write(b"die")
    beside.program.close()
    assert beside.program._process.wait(20) == 3


def test_a_side_program_that_closes_its_descriptor_is_restarted(beside, caplog, tmp_path):
    deaf = ECHO.replace("sys.exit(3)", "sock.close(); import time; time.sleep(600)")
    (tmp_path / "echo_beside.py").write_text(deaf)
    beside.start()
    first = beside.program._process
    beside.die(1, exits=False)
    beside.pass_s(FIRST_BACKOFF_S)
    assert first.wait(20) == -signal.SIGKILL
    assert "the echo has closed its descriptor; it starts again" in caplog.text
