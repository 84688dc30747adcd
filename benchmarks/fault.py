"""Faults and load on a server, while honest clients ask whose every answer is checked.

    python -m benchmarks.fault kill --duration_s 60 --num_clients 50
    python -m benchmarks.fault reload --duration_s 60 --num_clients 20
    python -m benchmarks.fault swaps --num_swaps 20 --num_clients 50
    python -m benchmarks.fault slow_clients --duration_s 20
    python -m benchmarks.fault costly_frames --duration_s 15
    python -m benchmarks.fault overload --duration_s 20
    python -m benchmarks.fault jobs_run --num_questions 100000 --num_stops 2

Further flags are the server's; of jobs_run, those of `jobs.py run`.
Exit code 0 if every honest request was answered once and right (under overload, or with
`queue_full`), and each question of jobs_run in its order; 1 otherwise. Ratios of latencies are for
reading.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.frame_cost import costliest
from benchmarks.record import load_average, machine
from harness.disturbances import alone_and_in_crowd, kill_workers, load_during, reload_at_random
from harness.file_run import Run, asked_of, run_with_stops
from harness.frames import frame
from harness.load import QuietAnswers, offer, report_of, under_load
from harness.server import EXACT_ENGINE, INSTANT, running_server
from qa_service.programs.load.plan import Report
from qa_service.server.models.model_options import DEFAULT_MODEL

Errors = Mapping[str, int]
"""Requests that were not answered right, by code."""

LIMIT_S = 600.0
TIMES_CAPACITY = (0.5, 0.9, 1.0, 1.5, 2.0, 3.0)
CLOSED_LOOP_CLIENTS = 16
OVERLOAD_COLUMNS = ("times", "offered", "goodput", "refused", "refusal p50", "p99", "accepted p50",
                    "p99")  # fmt: skip


def kill(flags: argparse.Namespace, server_flags: list[str]) -> Errors:
    killed: list[int] = []
    with running_server(flags.model, *EXACT_ENGINE, *server_flags) as server:
        killing = kill_workers(
            server, killed, interval_s=flags.interval_s, wait_until_whole=flags.wait_until_whole
        )
        report = load_during(killing, server, flags.num_clients, flags.duration_s)
        server.wait()
    print(f"{len(killed)} workers killed in {flags.duration_s:g} s\n{report}")
    return report.errors


def reload(flags: argparse.Namespace, server_flags: list[str]) -> Errors:
    """The model is reloaded at random moments, up to `--interval_s` apart."""
    sent: list[int] = []
    with running_server(flags.model, *EXACT_ENGINE, *server_flags) as server:
        reloading = reload_at_random(server, sent, seed=flags.seed, max_s=flags.interval_s)
        report = load_during(reloading, server, flags.num_clients, flags.duration_s)
        server.wait()
        num_reloads = server.log.count("the reloaded model serves")
    print(f"{len(sent)} SIGHUP and {num_reloads} reloads in {flags.duration_s:g} s\n{report}")
    return report.errors


def swaps(flags: argparse.Namespace, server_flags: list[str]) -> Errors:
    """Versions of a model take each other's place, each time when the one before serves."""
    with tempfile.TemporaryDirectory() as folder:
        model, file = Path(folder) / "m", Path(folder) / "server.toml"
        for number in (1, 2):
            shutil.copytree(flags.model, model / str(number))

        def name_version(number: int) -> None:
            lines = ("[models.m]", f'path = "{model}"', f"versions = [{number}]",
                     f'transition = "{flags.transition}"')  # fmt: skip
            file.write_text("\n".join(lines) + "\n")

        name_version(1)
        with running_server(model, *EXACT_ENGINE, *server_flags, "--config", str(file)) as server:
            answers = QuietAnswers(server.port)
            quiet = report_of(answers.plan(flags.num_clients, flags.duration_s))
            with under_load(answers.plan(flags.num_clients, LIMIT_S)) as samples:
                for number in range(flags.num_swaps):
                    name_version(2 - number % 2)
                    server.signal(signal.SIGHUP)
                    server.wait_for_log("the reloaded model serves", number + 1)
    return compare(quiet, f"{flags.num_swaps} swaps, {flags.transition}", Report.of(samples))


def slow_clients(flags: argparse.Namespace, server_flags: list[str]) -> Errors:
    """Hundreds send a byte a second, and one never reads."""
    with running_server(flags.model, *EXACT_ENGINE, *server_flags) as server:
        crowd = alone_and_in_crowd(server, flags.num_clients, flags.num_slow, flags.duration_s)
        quiet, crowded, num_cut_off = asyncio.run(crowd)
    print(f"slow clients cut off: {num_cut_off}")
    return compare(quiet, f"with {flags.num_slow} slow clients", crowded)


def costly_frames(flags: argparse.Namespace, server_flags: list[str]) -> Errors:
    """One client sends nothing but the frames that cost the loop most.

    A frame over 16 KiB ends its connection's turn, so that such a client delays the others by one
    frame a round.
    """
    name, body, cost_ms = costliest()
    with running_server(flags.model, *EXACT_ENGINE, *server_flags) as server:
        plan = QuietAnswers(server.port).plan(flags.num_clients, flags.duration_s)

        async def measure() -> tuple[Report, Report]:
            quiet = await asyncio.to_thread(report_of, plan)
            sender = asyncio.create_task(send_without_end(server.port, frame(body)))
            report = await asyncio.to_thread(report_of, plan)
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            return quiet, report

        quiet, report = asyncio.run(measure())
    return compare(
        quiet, f"with one that sends {name}, {len(body)} bytes, {cost_ms:.2f} ms", report
    )


async def send_without_end(port: int, costly: bytes) -> None:
    """Sends one frame after another as fast as the server takes them, and reads the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def read() -> None:
        while await reader.read(1 << 16):
            pass

    reading = asyncio.create_task(read())
    try:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(costly)
                await writer.drain()
    finally:
        reading.cancel()
        writer.close()


def overload(flags: argparse.Namespace, server_flags: list[str]) -> Errors:
    """Up to three times what the server can do is offered, in an open loop."""
    errors: dict[str, int] = {}
    server_flags += ["--max_queue_size", str(flags.max_queue_size)]
    with running_server(flags.model, *EXACT_ENGINE, *server_flags) as server:
        answers = QuietAnswers(server.port)
        per_s = report_of(answers.plan(CLOSED_LOOP_CLIENTS, flags.duration_s)).throughput
        print(f"closed loop: {per_s:.1f} answers/s; the queue's bound: "
              f"{flags.max_queue_size / per_s * 1e3:.0f} ms")  # fmt: skip
        print("".join(f"{column:>13}" for column in OVERLOAD_COLUMNS), flush=True)
        for seed, times in enumerate(TIMES_CAPACITY):
            rate_per_s = times * per_s
            report, refused = offer(
                answers, rate_per_s, flags.duration_s, num_connections=flags.num_clients, seed=seed
            )
            latencies_ms = [r.percentiles_ms[p] for r in (refused, report) for p in (50, 99)]
            figures = (times, rate_per_s, report.throughput, report.num_failed, *latencies_ms)
            print("".join(f"{figure:13.2f}" for figure in figures), flush=True)
            errors |= report.errors
    errors.pop("queue_full", None)
    return errors


def jobs_run(flags: argparse.Namespace, run_flags: list[str]) -> Errors:
    """A file of questions is run by `jobs.py run`, which is killed on the way and started again.

    The program is sent `--signal` when its file of answers has grown to an even share. The rate is
    that of all questions over all of it, its starts included.
    """
    count, stops = flags.num_questions, flags.num_stops
    with tempfile.TemporaryDirectory() as folder, running_server(flags.model, *INSTANT) as server:
        run = Run(Path(folder), count, (f"--port={server.port}", *run_flags))
        run.write_questions()
        took_s = run_with_stops(run, stops, signal.Signals[flags.signal])
        again, wrong = asked_of(server) - count, run.wrong_lines()
    print(
        f"{count} questions in {took_s:.1f} s, {stops} times {flags.signal}: "
        f"{count / took_s:.0f}/s; {again} asked twice; {wrong} lines wrong"
    )
    return {"wrong_line": wrong} if wrong else {}


def compare(quiet: Report, what: str, report: Report) -> Errors:
    print(f"alone\n{quiet}\n{what}\n{report}")
    ratio = report.percentiles_ms[99] / quiet.percentiles_ms[99]
    print(f"p99, {what} / alone: {ratio:.2f}")
    return report.errors


Fault = Callable[[argparse.Namespace, list[str]], Errors]
FAULTS: dict[str, tuple[Fault, float, int]] = {
    "kill": (kill, 60.0, 50),
    "reload": (reload, 60.0, 20),
    "swaps": (swaps, 20.0, 50),
    "slow_clients": (slow_clients, 20.0, 10),
    "costly_frames": (costly_frames, 15.0, 10),
    "overload": (overload, 20.0, 50),
    "jobs_run": (jobs_run, 0.0, 0),
}
"""By name: what it does, the seconds of each load, and how many honest clients there are."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("fault", choices=tuple(FAULTS), help="what is done")
    add("--duration_s", type=float, help="of each load; of swaps, of the one without a swap")
    add("--num_clients", type=int, help="honest clients at a time; of overload, connections")
    add("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    add("--seed", type=int, default=1, help="reload: what its moments depend on")
    add("--interval_s", type=float, default=1.0, help="from kill to kill, or SIGHUP to SIGHUP")
    add("--wait_until_whole", action="store_true", help="kill: none while another is replaced")
    add("--num_swaps", type=int, default=20, help="swaps: how many")
    add("--transition", choices=("swap", "rolling"), default="swap", help="swaps: how")
    add("--num_slow", type=int, default=500, help="slow_clients: how many")
    add("--max_queue_size", type=int, default=100, help="overload: the server's")
    add("--num_questions", type=int, default=100_000, help="jobs_run: how many")
    add("--num_stops", type=int, default=2, help="jobs_run: how often the program is stopped")
    add("--signal", default="SIGKILL", help="jobs_run: what stops it")
    flags, more_flags = parser.parse_known_args()
    run, duration_s, num_clients = FAULTS[flags.fault]
    flags.duration_s = flags.duration_s or duration_s
    flags.num_clients = flags.num_clients or num_clients
    print(f"{machine()}; load average {load_average()}")
    return 1 if run(flags, more_flags) else 0


if __name__ == "__main__":
    sys.exit(main())
