"""Versions of a model take each other's place under clients, every answer checked.

    python -m benchmarks.fault_swaps --num_swaps 20 --num_clients 50

First nothing happens for as long as `--quiet_s` says; then the file names the other version, again
and again, each time when the one before serves. Exit code 0 if every request was answered right.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from harness.load import QuietAnswers, beside, report_of
from harness.server import EXACT_ENGINE, ROOT, running_server
from qa_service.load.report import Report

LIMIT_S = 600.0


def main() -> int:
    flags = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        model, file = Path(folder) / "m", Path(folder) / "server.toml"
        for number in (1, 2):
            shutil.copytree(flags.model, model / str(number))
        write(file, model, 1, flags.transition)
        with running_server(model, *EXACT_ENGINE, "--config", str(file)) as server:
            answers = QuietAnswers(server.port)
            quiet = report_of(answers.plan(flags.num_clients, flags.quiet_s))
            print(f"no swap, {flags.num_clients} clients:\n{quiet}\n", flush=True)
            with beside(answers.plan(flags.num_clients, LIMIT_S)) as samples:
                for number in range(flags.num_swaps):
                    write(file, model, 2 - number % 2, flags.transition)
                    server.signal(signal.SIGHUP)
                    server.wait_for_log_count("the reloaded model serves", number + 1)
    report = Report.of(samples)
    ratio = report.percentiles_ms[99] / quiet.percentiles_ms[99]
    print(f"{flags.num_swaps} swaps, {flags.transition}:\n{report}")
    print(f"p99: {ratio:.2f} of the quiet one")
    return 1 if report.errors else 0


def write(file: Path, model: Path, number: int, transition: str) -> None:
    lines = ("[models.m]", f'path = "{model}"', f"versions = [{number}]",
             f'transition = "{transition}"')  # fmt: skip
    file.write_text("\n".join(lines) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", type=Path, default=ROOT / "saved_models" / "builtin", help="both versions")
    add("--num_swaps", type=int, default=20, help="swaps")
    add("--num_clients", type=int, default=50, help="clients at a time")
    add("--quiet_s", type=float, default=20.0, help="seconds without a swap")
    add("--transition", choices=("swap", "rolling"), default="swap", help="how")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
