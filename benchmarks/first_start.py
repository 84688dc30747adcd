"""From the command to the first answer: `qa-server` in an empty folder, and once more.

    python -m benchmarks.first_start --repeats 5
    python -m benchmarks.first_start --before PATH  # another checkout, measured in turn

A first start prepares the built-in model and the encoder in a new folder of data; a second start
follows with the same folder, as soon as the first has answered. Processor time is that of all of
the server's processes until the answer: on a busy machine it says more than the clock.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import (
    Repeats,
    Section,
    add_before,
    checkouts_of,
    make_parser,
    markdown,
    spread,
)
from harness.frames import frame, receive
from harness.process import cpu_s, tree
from harness.server import LISTENING, line_with, port_of

ASKED = {"id": 1, "question": "Who wrote the notes?", "text": "Ada wrote the notes in 1843."}
EVERY_S = 0.05


def start(root: Path, data: Path) -> dict[str, float]:
    """Starts a server in an empty folder, asks until it answers, and stops it."""
    started_s = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, str(root / "server.py"), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env={**os.environ, "XDG_DATA_HOME": str(data), "PYTHONPATH": str(root)},
        ) as server,
    ):
        try:
            assert server.stdout
            port = int(port_of(line_with(server.stdout, LISTENING)))
            listens_s = time.perf_counter() - started_s
            while "answer" not in ask(port):
                time.sleep(EVERY_S)
            return {
                "listens_s": listens_s,
                "answers_s": time.perf_counter() - started_s,
                "cpu_s": sum(cpu_s(pid, with_children=True) for pid in tree(server.pid)),
            }
        finally:
            server.terminate()


def ask(port: int) -> dict[str, object]:
    with socket.create_connection(("localhost", port), 60.0) as sock:
        sock.sendall(frame(ASKED))
        return receive(sock)


def measure(flags: argparse.Namespace) -> Repeats:
    found = Repeats()
    for _ in range(1 if flags.quick else flags.repeats):
        for name, (root, _) in checkouts_of(flags).items():
            with tempfile.TemporaryDirectory() as data:
                for which in ("first", "second"):
                    found.add(f"{name}, {which} start", start(root, Path(data)))
    return found


def main() -> None:
    parser = make_parser(__doc__)
    add_before(parser)
    flags = parser.parse_args()
    section = Section("first_start", "A first start", flags, ("openvino",))
    found = measure(flags)
    rows = [[name, *map(spread, of.values())] for name, of in found.items()]
    head = ["", "listens, s", "first answer, s", "processor, s"]
    section.say(markdown(head, rows))
    section.raw["cells"] = found
    section.close()


if __name__ == "__main__":
    main()
