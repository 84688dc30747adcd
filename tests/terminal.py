"""A program under a pseudo-terminal, read and typed at as a person would."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from harness.process import GIVE_UP_S

# What a terminal acts on rather than shows: cursor movements, modes, bells.
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x07")


class Terminal:
    """Runs a command with a terminal as stdin, stdout and stderr."""

    def __init__(self, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        # Its controlling terminal too, or Ctrl-C would interrupt nobody, even where these tests'
        # parent ignores that. By programs: in a fork of this process, gRPC writes an error now and
        # then.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "env", "--default-signal=INT", *command],
            stdin=slave, stdout=slave, stderr=slave,
            env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})},
        )  # fmt: skip
        os.close(slave)
        self._unread = b""
        self.seen = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, keys: str) -> None:
        """Types, reading meanwhile: a terminal whose output nobody reads stops its input."""
        left = keys.encode()
        while left:
            _, writable, _ = select.select([], [self._master], [], 0.01)
            if writable:
                left = left[os.write(self._master, left[:512]) :]
            self.read(0)

    def enter(self, prompt: str, line: str) -> None:
        """Types a line when the prompt is shown."""
        self.expect(prompt)
        self.type(f"{line}\r")

    def interrupt(self) -> int:
        """Presses Ctrl-C until the program ends; returns its exit code.

        More than once, because CPython loses an interrupt that comes between its showing
        the prompt and its waiting for keys until the next key.
        """
        while self.process.poll() is None:
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                return self.wait(timeout_s=1.0)
        return self.wait()

    def wait_for_keys(self) -> None:
        """Waits until the program sleeps, waiting for keys; a poll, for there is no event.

        CPython loses an interrupt that comes before that, until the next key.
        """
        stat = Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "S":
            self.read(0.01)

    def paste(self, text: str) -> None:
        """Pastes as terminals do where a program asked for bracketed pastes."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def expect(self, text: str, timeout_s: float = GIVE_UP_S) -> str:
        """Reads until the text is shown; returns what was shown up to its end."""
        deadline_s = time.monotonic() + timeout_s
        while text.encode() not in (shown := _CONTROL.sub(b"", self._unread)):
            assert time.monotonic() < deadline_s, f"{text!r} is not in {shown!r}"
            assert self.read(0.1) is not None, f"ended without {text!r}: {shown!r}"
        before, _, self._unread = shown.partition(text.encode())
        return before.decode() + text

    def wait(self, timeout_s: float = GIVE_UP_S) -> int:
        """Reads on until the program ends; returns its exit code."""
        deadline_s = time.monotonic() + timeout_s
        while self.read(0.1) is not None:
            assert time.monotonic() < deadline_s, self._unread
        return self.process.wait(timeout=GIVE_UP_S)

    @property
    def rest(self) -> str:
        """What was shown after the last thing expected."""
        return _CONTROL.sub(b"", self._unread).decode()

    def read(self, timeout_s: float = 0.1) -> int | None:
        """Takes what is shown within a time; None at the end."""
        if not select.select([self._master], [], [], timeout_s)[0]:
            return 0
        try:
            shown = os.read(self._master, 1 << 16)
        except OSError:  # How Linux says that the last one has left the terminal.
            return None
        self._unread += shown
        self.seen += shown
        return len(shown) or None
