"""What the way through the broker costs, and what waiting jobs cost an interactive client.

    python -m benchmarks.jobs_throughput --jobs 1000 --rounds 3

In each round, on one server: a file of questions by `jobs.py run`, and the same questions as jobs
through a RabbitMQ and a gateway; the rate is that between a tenth and nine tenths of the answers.
Then a client that asks one question at a time, alone and while jobs wait.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from operator import truediv
from pathlib import Path

from benchmarks.tables import percentile
from harness.jobs import (
    RunningGateway,
    depth,
    flags_of,
    publish,
    publish_unconfirmed,
    queues_of,
    run_jobs,
    running_gateway,
)
from harness.jobs import job as make_job
from harness.process import cpu_s, tree
from harness.rabbitmq import MISSING, RunningRabbitMq, is_installed, running_rabbitmq
from harness.server import EXACT_ENGINE, ROOT, RunningServer, running_server
from qa_service.client import QaClient
from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.programs.jobs.base import Queues
from qa_service.server.models.options import DEFAULT_MODEL

POLL_S = 0.5
"""Counting costs processor time too: each count opens a connection to the broker."""

PREFETCH = 64


def bodies(count: int) -> Iterator[dict]:
    questions = read_squad(OWN_QUESTIONS)
    picked = (questions[number % len(questions)] for number in range(count))
    yield from ({"id": n, "question": q.question, "text": q.context} for n, q in enumerate(picked))


Rate = tuple[float, list[float]]
"""Answers a second, and what each process used of the processors for one answer, in ms."""


def rate_of(count: int, read: Callable[[], int], pids: Sequence[int] = ()) -> Rate:
    """Watches a count grow; the rate is that between a tenth and nine tenths."""
    seen: list[tuple[int, list[float]]] = []  # how many were done, and the clocks then
    while not seen or seen[-1][0] < count:
        clocks_s = [time.monotonic(), *(sum(map(cpu_s, tree(pid))) for pid in pids)]
        seen.append((read(), clocks_s))
        time.sleep(POLL_S)
    inner = [each for each in seen if count * 0.1 <= each[0] <= count * 0.9]
    (first, early_s), (last, late_s) = inner[0], inner[-1]
    done = last - first
    took_s, *used_s = (late - early for early, late in zip(early_s, late_s, strict=True))
    return done / took_s, [each / done * 1e3 for each in used_s]


def run_rate(server: RunningServer, asked: list[dict], folder: Path) -> float:
    questions, answers = folder / "questions.jsonl", folder / "answers.jsonl"
    questions.write_text("".join(json.dumps(body) + "\n" for body in asked))
    answers.write_bytes(b"")
    command = [sys.executable, str(ROOT / "jobs.py"), "run", str(questions)]
    process = subprocess.Popen(
        [*command, f"--output={answers}", f"--port={server.port}", f"--prefetch={PREFETCH}"],
        stdout=subprocess.DEVNULL,
    )
    per_s, _ = rate_of(len(asked), lambda: answers.read_bytes().count(b"\n"))
    process.wait()
    return per_s


def broker_rate(
    broker: RunningRabbitMq, server: RunningServer, asked: list[dict], prefix: str
) -> Rate:
    url, queues = broker.url, queues_of(prefix)
    run_jobs("status", "--interval_s=0.1", f"--broker_url={url}", *flags_of(queues))  # declares
    jobs = [make_job(f"m{body['id']}", body) for body in asked]
    asyncio.run(publish(url, queues.jobs, jobs))
    with running_gateway(url, server.port, queues, f"--prefetch={PREFETCH}") as gateway:
        pids = (broker.pid, gateway.process.pid)
        return rate_of(len(asked), lambda: asyncio.run(depth(url, queues.results)), pids)


def latencies_ms(server: RunningServer, count: int) -> list[float]:
    asked = list(bodies(count))
    with QaClient("localhost", server.port) as client:
        client.ask(asked[0]["question"], asked[0]["text"])
        return [client.ask(body["question"], body["text"]).latency_ms for body in asked]


def interactive(
    url: str, server: RunningServer, num_jobs: int, count: int, prefetches: list[int]
) -> None:
    """Prints the latency of a client alone, and with waiting jobs."""
    queues = queues_of("interactive")
    run_jobs("status", "--interval_s=0.1", f"--broker_url={url}", *flags_of(queues))
    jobs = (make_job(f"m{body['id']}", body) for body in bodies(num_jobs))
    asyncio.run(publish_unconfirmed(url, queues.jobs, jobs))
    for prefetch in prefetches:
        compare_latency(url, server, queues, count, prefetch)


def compare_latency(
    url: str, server: RunningServer, queues: Queues, count: int, prefetch: int
) -> None:
    quiet = latencies_ms(server, count)
    gateway = RunningGateway(url, server.port, queues, f"--prefetch={prefetch}")
    try:
        gateway.wait_for_log("taking jobs")
        loaded = latencies_ms(server, count)
        left = asyncio.run(depth(url, queues.jobs))
    finally:
        gateway.close()  # jobs are left over: it would do them first
    for name, values in (("alone", quiet), (f"with {left} jobs, --prefetch {prefetch}", loaded)):
        p50_ms, p99_ms = (percentile(values, percent) for percent in (50, 99))
        print(f"one client {name}: p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms")
    print(f"p99 with jobs / alone: {percentile(loaded, 99) / percentile(quiet, 99):.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1000, help="questions of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument(
        "--waiting", type=int, default=10_000, help="jobs waiting while the one client asks"
    )
    prefetches = "of the gateway while the one client asks"
    parser.add_argument("--prefetch", type=int, nargs="+", default=[PREFETCH], help=prefetches)
    parser.add_argument("--asked", type=int, default=300, help="questions of the one client")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    flags, server_flags = parser.parse_known_args()
    if not is_installed():
        print(MISSING, file=sys.stderr)
        return 2
    asked = list(bodies(flags.jobs))
    with (
        tempfile.TemporaryDirectory() as folder,
        running_rabbitmq() as broker,
        running_server(flags.model, *EXACT_ENGINE, *server_flags) as server,
    ):
        own, through = [], []
        for number in range(flags.rounds):
            own.append(run_rate(server, asked, Path(folder)))
            per_s, (broker_ms, gateway_ms) = broker_rate(broker, server, asked, f"rate{number}")
            through.append(per_s)
            print(
                f"jobs.py run {own[-1]:.1f}/s, through the broker {through[-1]:.1f}/s; of the "
                f"processors the broker takes {broker_ms:.2f} ms a job, the gateway "
                f"{gateway_ms:.2f} ms",
                flush=True,
            )
        if flags.rounds:
            share = statistics.median(map(truediv, through, own))
            print(f"median of the ratios: {share:.3f} of the rate without a broker")
        if flags.waiting:
            interactive(broker.url, server, flags.waiting, flags.asked, flags.prefetch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
