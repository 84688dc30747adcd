"""`jobs.py run` on a file of questions, stopped or killed on the way and started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from harness.frames import ASK, FIRST_WORD
from harness.server import ROOT, RunningServer

POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Run:
    """A file of `count` questions, its answers, and `jobs.py run` between them."""

    folder: Path
    count: int
    flags: tuple[str, ...]

    @property
    def answers(self) -> Path:
        return self.folder / "answers.jsonl"

    def write_questions(self) -> None:
        with (self.folder / "questions.jsonl").open("w") as file:
            file.writelines(json.dumps({"id": n, **ASK}) + "\n" for n in range(self.count))

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(ROOT / "jobs.py"), "run"]
        command += [str(self.folder / "questions.jsonl"), f"--output={self.answers}", *self.flags]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def until(self, share: float, signum: int) -> None:
        """Runs the program until so much is answered, then sends it a signal."""
        process = self.start()
        while not (line := self._first_line()) and process.poll() is None:
            time.sleep(POLL_S)
        while self.answers.stat().st_size < share * self.count * len(line):
            assert process.poll() is None, "it ended before it was to be stopped"
            time.sleep(POLL_S)
        process.send_signal(signum)
        process.wait()

    def wrong_lines(self) -> int:
        """Answers that are missing, wrong, or not in their place; and lines that are too many."""
        with self.answers.open() as file:
            answers = [json.loads(line) for line in file]
        right = sum(
            (answer["id"], answer.get("answer")) == (number, FIRST_WORD)
            for number, answer in enumerate(answers)
        )
        return max(self.count, len(answers)) - right

    def _first_line(self) -> bytes:
        if not self.answers.exists():
            return b""
        with self.answers.open("rb") as file:
            return file.readline()


def asked_of(server: RunningServer) -> int:
    """Questions that a server has taken."""
    return sum(server.stats()["counters"]["requests_total"].values())


def run_with_stops(run: Run, stops: int, signum: int) -> float:
    """Runs the file to its end, stopped so often on the way; returns the seconds it took."""
    began_s = time.monotonic()
    for number in range(stops):
        run.until((number + 1) / (stops + 1), signum)
    assert run.start().wait() == 0, "the last run failed"
    return time.monotonic() - began_s
