"""A separate program of the loop's: what it is sent, when it is started again, how it ends."""

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
    sock.sendall(f"{word} {os.environ['GREETING']} {parent} ".encode())
    while data := sock.recv(100):
        if data == b"die":
            sys.exit(3)
        sock.sendall(data)
"""


class Setting:
    """A side program and what came of it."""

    def __init__(self, loop):
        self.loop = loop
        self.received = b""
        self.deaths = self.starts = 0
        self.program = SideProgram(
            loop, "the echo", "echo_program", ["hello"], environment={"GREETING": "here"},
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
def setting(tmp_path, monkeypatch):
    (tmp_path / "echo_program.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")
    loop = FakeTimeLoop()
    setting = Setting(loop)
    yield setting
    setting.program.kill()
    if setting.program._process:
        setting.program._process.wait(20)
    loop.close()


def test_a_side_program_receives_and_sends_bytes(setting):
    setting.start()
    setting.program.write(b"once")
    setting.wait_for(b"once")
    assert setting.program.is_running


def test_a_side_program_ends_at_end_of_file(setting):
    setting.start()
    setting.program.close()
    assert setting.program._process.wait(20) == 0
    assert setting.program.reap()
    setting.pass_s(MAX_BACKOFF_S)
    assert (setting.starts, setting.deaths) == (1, 0)


def test_a_dead_side_program_is_restarted_after_a_backoff(setting, caplog):
    setting.start()
    os.kill(setting.program.pid, signal.SIGKILL)
    run_until(setting.loop, lambda: setting.deaths == 1)
    setting.program._process.wait(20)
    assert not setting.program.is_running
    setting.program.write(b"lost")
    setting.pass_s(FIRST_BACKOFF_S * 0.9)
    assert setting.starts == 1
    setting.pass_s(FIRST_BACKOFF_S * 0.2)
    assert setting.starts == 2
    setting.wait_for(f"hello here {os.getpid()} ".encode())
    assert "the echo was killed by SIGKILL; it starts again" in caplog.text


def test_the_backoff_doubles_while_it_keeps_dying_and_no_longer(setting, caplog):
    setting.start()
    for death, backoff_s in enumerate((FIRST_BACKOFF_S, 2 * FIRST_BACKOFF_S), 1):
        setting.die(death)
        setting.pass_s(backoff_s * 0.9)
        assert setting.starts == death
        setting.pass_s(backoff_s * 0.2)
        assert setting.starts == death + 1
    setting.pass_s(STEADY_S)
    setting.die(3)
    setting.pass_s(FIRST_BACKOFF_S * 1.1)
    assert setting.starts == 4
    assert "the echo exited with 3; it starts again" in caplog.text


def test_a_side_program_that_cannot_start_is_tried_again(setting, caplog, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nonexistent/python")
        setting.program.start()
    assert "the echo cannot be started now" in caplog.text
    setting.pass_s(FIRST_BACKOFF_S)
    setting.wait_for(f"hello here {os.getpid()} ".encode())


def test_a_closed_side_program_is_not_restarted(setting):
    setting.start()
    setting.die(1)
    setting.program.close()
    setting.pass_s(MAX_BACKOFF_S)
    assert setting.starts == 1


def test_bytes_written_before_close_arrive(setting):
    setting.start()
    setting.program.write(b"die")
    setting.program.close()
    assert setting.program._process.wait(20) == 3


def test_a_side_program_that_closes_its_descriptor_is_restarted(setting, caplog, tmp_path):
    deaf = ECHO.replace("sys.exit(3)", "sock.close(); import time; time.sleep(600)")
    (tmp_path / "echo_program.py").write_text(deaf)
    setting.start()
    first = setting.program._process
    setting.die(1, exits=False)
    setting.pass_s(FIRST_BACKOFF_S)
    assert first.wait(20) == -signal.SIGKILL
    assert "the echo has closed its descriptor; it starts again" in caplog.text
