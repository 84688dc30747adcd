"""Runs a file of questions by `jobs.py run`, killing it on the way, and accounts for every line.

    python -m benchmarks.jobs_run --questions 100000 --kills 2

The server runs the instant engine. The program is killed (SIGKILL; with `--signal SIGTERM`,
stopped) when its file of answers has grown to an even share, and started again. The rate is that of
all questions over all of it, its starts included.

Exit code 0 if each question has its one answer, in order; 1 otherwise.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import load_average, machine
from harness.file_run import Run, asked_of, run_with_stops
from harness.server import INSTANT, running_server
from qa_service.repository.options import DEFAULT_MODEL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--questions", type=int, default=100_000, help="how many")
    add("--kills", type=int, default=2, help="how often the program is killed")
    add("--signal", default="SIGKILL", help="what kills it")
    add("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    flags, run_flags = parser.parse_known_args()
    print(f"{machine()}; load average {load_average()}")
    with tempfile.TemporaryDirectory() as folder, running_server(flags.model, *INSTANT) as server:
        run = Run(Path(folder), flags.questions, (f"--port={server.port}", *run_flags))
        run.write_questions()
        took_s = run_with_stops(run, flags.kills, signal.Signals[flags.signal])
        again, wrong = asked_of(server) - flags.questions, run.wrong_lines()
    print(
        f"{flags.questions} questions in {took_s:.1f} s, {flags.kills} times {flags.signal}: "
        f"{flags.questions / took_s:.0f}/s; {again} asked twice; {wrong} lines wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
