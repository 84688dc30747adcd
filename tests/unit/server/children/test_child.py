"""A program of the loop's: what it is sent, when it is late, how it ends and starts again."""

import logging
import os
import signal
import sys
from functools import partial
from typing import cast

import msgspec
import pytest

from qa_service.child_program import start_program
from qa_service.server.children.child import (
    EXIT_S,
    FIRST_BACKOFF_S,
    MAX_BACKOFF_S,
    STEADY_S,
    Child,
    Launch,
)
from qa_service.wire.frames import frame_of
from tests.support import FakeTimeLoop, run_until
from tests.unit.server.handled_worker import HandledProcess

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

FRAMES = f"""
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as sock:
    for byte in {b"".join(map(frame_of, [b"one", b"two", b"invalid", b"three"]))!r}:
        sock.sendall(bytes([byte]))
    sock.recv(1)
"""


class Setting:
    def __init__(self, loop, **options):
        self.loop = loop
        self.received, self.late = b"", []
        self.deaths = self.starts = self.marks = 0
        loop.on_mark = self._on_mark
        launch = partial(start_program, "echo_program", "hello", environment={"GREETING": "here"})
        self.child = Child(
            loop, "the echo", launch, on_start=self._on_start, on_end=self._on_end,
            on_late=self.late.extend, **{"on_data": self._on_data, **options},
        )  # fmt: skip

    def _on_mark(self):
        self.marks += 1

    def _on_start(self):
        self.starts += 1

    def _on_data(self, data):
        self.received += data

    def _on_end(self):
        self.deaths += 1
        self.child.start_later()

    def start(self):
        self.child.start()
        self.wait_for(f"hello here {os.getpid()} ".encode())

    def wait_for(self, data):
        run_until(self.loop, lambda: self.received == data)
        self.received = b""

    def die(self, deaths, *, exits=True):
        self.child.write(b"die")
        run_until(self.loop, lambda: self.deaths == deaths)
        if exits:
            self.wait_for_exit()

    def wait_for_exit(self):
        run_until(self.loop, lambda: self.child.exit_code is not None)
        self.child.reap()

    def pass_s(self, seconds):
        self.loop.clock.pass_s(seconds)
        self.loop.call_soon(self.loop.stop)
        self.loop.run()


@pytest.fixture
def setting(tmp_path, monkeypatch):
    (tmp_path / "echo_program.py").write_text(ECHO)
    (tmp_path / "frames_program.py").write_text(FRAMES)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")
    loop = FakeTimeLoop()
    setting = Setting(loop)
    yield setting
    setting.child.kill()
    run_until(loop, setting.child.reap)
    loop.close()


@pytest.mark.parametrize(("has_end", "level"), [(True, "INFO"), (False, "WARNING")])
def test_only_a_program_that_has_an_end_may_exit_by_itself(
    setting, tmp_path, caplog, has_end, level
):
    caplog.set_level(logging.INFO)
    (tmp_path / "done_program.py").touch()
    child = Child(setting.loop, "it", partial(start_program, "done_program"), has_end=has_end)
    child.start()
    run_until(setting.loop, lambda: not child.is_running and child.reap())
    assert [(one.levelname, one.message) for one in caplog.records] == [(level, "it exited with 0")]


def test_a_child_ends_at_end_of_file(setting):
    setting.start()
    setting.child.close()
    run_until(setting.loop, setting.child.reap)
    assert (setting.child.exit_code, setting.child.status) == (0, "exited with 0")
    setting.pass_s(MAX_BACKOFF_S)
    assert (setting.starts, setting.deaths) == (1, 0)


def test_the_log_says_of_a_child_that_is_killed_here_that_this_server_did(setting, caplog):
    caplog.set_level(logging.INFO)
    setting.start()
    setting.child.kill()
    run_until(setting.loop, setting.child.reap)
    assert caplog.messages[-1] == "the echo is ended by this server"


def test_a_dead_child_is_restarted_after_a_backoff(setting, caplog):
    setting.start()
    os.kill(setting.child.pid, signal.SIGKILL)
    run_until(setting.loop, lambda: setting.deaths == 1)
    assert (setting.child.is_running, setting.child.is_waiting) == (False, True)
    setting.wait_for_exit()
    assert (setting.child.was_killed, setting.child.num_processes) == (True, 0)
    setting.child.write(b"lost")
    setting.pass_s(FIRST_BACKOFF_S * 0.9)
    assert setting.starts == 1
    setting.pass_s(FIRST_BACKOFF_S * 0.2)
    assert setting.starts == 2
    setting.wait_for(f"hello here {os.getpid()} ".encode())
    assert "the echo was killed by SIGKILL" in caplog.text


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
    assert "the echo exited with 3" in caplog.text


def test_a_child_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "socket.py").write_text("raise SystemExit(9)")
    (tmp_path / "done_program.py").write_text("import socket")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process, sock = start_program("done_program")
    with sock:
        assert process.wait() == 0


def test_a_child_that_cannot_start_is_tried_again(setting, caplog, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nonexistent/python")
        with pytest.raises(FileNotFoundError):
            setting.child.start()
        setting.child.try_start()
    assert "the echo cannot be started now" in caplog.text
    setting.pass_s(FIRST_BACKOFF_S)
    setting.wait_for(f"hello here {os.getpid()} ".encode())


def test_a_closed_child_is_not_restarted(setting):
    setting.start()
    setting.die(1)
    setting.child.close()
    setting.pass_s(MAX_BACKOFF_S)
    assert setting.starts == 1


def test_bytes_written_before_close_arrive(setting):
    setting.start()
    setting.child.write(b"die")
    setting.child.close()
    run_until(setting.loop, setting.child.reap)
    assert setting.child.exit_code == 3


def test_a_child_that_closes_its_descriptor_is_restarted(setting, caplog, tmp_path):
    deaf = ECHO.replace("sys.exit(3)", "sock.close(); import time; time.sleep(600)")
    (tmp_path / "echo_program.py").write_text(deaf)
    setting.start()
    first = setting.child._run.process
    setting.die(1, exits=False)
    setting.pass_s(FIRST_BACKOFF_S)
    assert first.wait(20) == -signal.SIGKILL
    assert "the echo has not ended since its channel did: killed" in caplog.text
    assert setting.starts == 2


def test_a_child_that_closes_its_descriptor_is_killed_in_time(setting, tmp_path):
    deaf = ECHO.replace("sys.exit(3)", "sock.close(); import time; time.sleep(600)")
    (tmp_path / "echo_program.py").write_text(deaf)
    exits = []
    setting.start()
    setting.die(1, exits=False)
    setting.child.close()  # it does not start again
    setting.child.when_exited(lambda: exits.append(setting.child.status))
    setting.pass_s(EXIT_S * 0.9)
    assert (setting.child.num_processes, exits) == (1, [])
    setting.pass_s(EXIT_S * 0.2)
    run_until(setting.loop, setting.child.reap)
    assert exits == ["was killed by SIGKILL"]
    assert not setting.child.was_killed, "by nobody else"


def test_a_closed_child_that_does_not_end_is_killed(setting, tmp_path):
    deaf = ECHO.replace("    while", "    import time; time.sleep(600)\n    while")
    (tmp_path / "echo_program.py").write_text(deaf)
    child = Setting(setting.loop, drain_timeout_s=30.0)
    child.start()
    child.child.close()
    child.pass_s(29.0)
    assert not child.child.reap()
    child.pass_s(2.0)
    run_until(child.loop, child.child.reap)
    assert (child.child.exit_code, child.deaths) == (-signal.SIGKILL, 0)
    child.pass_s(0.0)
    assert child.marks, "the loop hears of the end"


def test_a_closed_child_that_is_reaped_before_its_channel_ends_has_not_died(loop):
    process, deaths = HandledProcess(code=None), []
    launch = cast(Launch, lambda: (process, process.ours))
    child = Child(loop, "one", launch, on_end=lambda: deaths.append(1))
    child.start()
    child.close()
    process.code = 0
    assert child.reap()
    process.peer.close()
    rounds = iter(range(3))
    run_until(loop, lambda: next(rounds, None) is None)
    assert deaths == []


def test_a_child_that_is_late_is_killed_and_says_with_what(setting):
    setting.start()
    setting.child.expect("one", 10.0)
    setting.child.expect("other", 10.0, since_s=setting.loop.now_s() + 5.0)
    setting.child.expect("done", 1.0)
    setting.child.done("done")
    setting.pass_s(9.9)
    assert (setting.late, setting.deaths) == ([], 0)
    setting.pass_s(0.2)
    assert (setting.late, setting.deaths) == (["one"], 1)
    assert setting.child.failure == "it took longer than 10 s"
    setting.wait_for_exit()
    assert setting.child.status == "was killed by SIGKILL"
    setting.pass_s(30.0)
    assert setting.late == ["one"], "the next process is not at it"


def test_a_pause_of_the_server_is_not_the_childs_time(setting):
    setting.start()
    setting.child.expect("one", 10.0)
    setting.loop.last_pause_s = setting.loop.now_s() + 20.0
    setting.pass_s(29.0)
    assert setting.late == []
    setting.pass_s(1.1)
    assert setting.late == ["one"]


def test_frames_are_taken_one_by_one_and_an_invalid_one_ends_the_child(setting):
    bodies = []

    def take(body):
        if body == b"invalid":
            raise msgspec.DecodeError("what is this?")
        bodies.append(body)

    its = Setting(setting.loop, on_data=take, max_frame_bytes=100)
    its.child.launch = partial(start_program, "frames_program")
    its.child.start()
    run_until(its.loop, lambda: its.deaths == 1)
    assert bodies == [b"one", b"two"]
    assert its.child.failure == "it sent an invalid message: what is this?"
    its.child.kill()
    run_until(its.loop, its.child.reap)
