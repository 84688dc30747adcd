"""How near real instances come to the pace of an accelerator that is simulated.

    python -m benchmarks.feed --questions_file dev.json
    python -m benchmarks.feed --questions_file dev.json --only T4 --instances 1

A real server answers real questions; its instances have a tokenizer, a channel and a reader, and an
engine that sleeps as long as an accelerator would compute. Its clients are this process. Where the
cores of the machine are too few for loop, instances and clients together, it is they that hold
the pace, and the figures that count are the processor's time for an answer: what one loop and one
instance would reach on cores of their own.

The accelerators are computed, not measured: the floating-point operations of a row of 160 tokens
over 40 % of the peak in half precision that the manufacturer names, and 1 ms for a batch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import Figures, measure
from benchmarks.record import Section, make_parser
from benchmarks.tables import markdown, median, spread
from benchmarks.targets import Running, ours
from benchmarks.texts import Item, uniform
from harness.process import cpu_s
from harness.server import ROOT, running_server
from qa_service.data.squad import read_squad
from qa_service.machine import num_cpus

WORKER = Path(__file__).parent / "sleeping_worker"
FIXED_US = 1000.0
BATCH = 64
WARMUP_S, DURATION_S = 4.0, 6.0
CLIENTS_AN_INSTANCE = 3 * BATCH
FULL = 0.9
"""A process or a machine that is busy for this share of the time is full."""

ROW_GFLOP = {"built-in": 3.6, "bert-base": 28.0, "bert-large": 98.0}
"""Of a row of 160 tokens: twice the weights of the layers a token, and attention."""
TFLOPS = {"H100": 395.0, "T4": 26.0}
"""40 % of the peak in half precision: 989 and 65."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An engine that sleeps.

    Attributes:
        row_us: What a row adds to a batch, in microseconds.
    """

    name: str
    row_us: float

    @property
    def pace_per_s(self) -> float:
        """Answers a second in full batches."""
        return BATCH / (FIXED_US + BATCH * self.row_us) * 1e6


def accelerators() -> list[Accelerator]:
    """Each device with each model, and one of 10,000 answers a second."""
    found = [
        Accelerator(f"{device}, {model}", gflop / tflops * 1e3)
        for device, tflops in TFLOPS.items()
        for model, gflop in ROW_GFLOP.items()
    ]
    return [*found, Accelerator("10,000 a second", 100.0 - FIXED_US / BATCH)]


def sleeping(root: Path = ROOT, **figures: float) -> tuple[str, ...]:
    """What makes a server's engines sleep: for a batch (FIXED_US), its rows and its tokens.

    Args:
        root: The checkout that the server runs in.
    """
    variables = (f"FEED_{name}={value}" for name, value in figures.items())
    return "env", f"PYTHONPATH={WORKER}{os.pathsep}{root}", *variables


def feed(
    accelerator: Accelerator, instances: int, flags: argparse.Namespace, items: Sequence[Item]
) -> Figures:
    """Loads a server of some instances; the figures of its load and of its processes."""
    target = ours(accelerator.name, "--num_inference_sessions", str(instances), *SERVER_FLAGS)
    wrapper = sleeping(FIXED_US=FIXED_US, ROW_US=accelerator.row_us)
    share = 0.3 if flags.quick else 1.0
    with running_server(flags.model, *target.flags, wrapper=wrapper) as server:
        running = Running(target, server.port, server.process.pid)
        clients = CLIENTS_AN_INSTANCE * instances
        measure(running, items, clients, 0.0, WARMUP_S * share)  # new words are tokenized
        before_s, idle_before_s = sum(map(cpu_s, server.worker_pids())), _idle_s()
        found = measure(running, items, clients, 0.0, DURATION_S * share)
        used_s = sum(map(cpu_s, server.worker_pids())) - before_s
        idle_s = _idle_s() - idle_before_s
    rate = found["throughput"]
    took_s = DURATION_S * share
    instance_us = used_s * 1e6 / max(1.0, rate * took_s)
    return found | {
        "reached": rate / (accelerator.pace_per_s * instances),
        "instance_us": instance_us,
        "loop_share": rate * found["loop_us"] / 1e6,
        "instance_share": rate * instance_us / 1e6 / instances,
        "machine_share": 1.0 - idle_s / num_cpus() / took_s,
    }


def _idle_s() -> float:
    """Seconds in which the cores that this process may use did nothing: others may use them too."""
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    ticks = {name: int(times[3]) for name, *times in lines if name.startswith("cpu")}
    own = sum(ticks[f"cpu{number}"] for number in os.sched_getaffinity(0))
    return own / os.sysconf("SC_CLK_TCK")


SERVER_FLAGS = (
    *("--devices", "cpu", "--cost_table", "off", "--max_batch_size", str(BATCH)),
    *("--static_shapes_bytes", "0", "--max_queue_size", "20000", "--max_connections", "4000"),
    *("--request_timeout_ms", "0"),
)


def held_by(found: Figures) -> str:
    """What holds the pace, by what is full; the machine first, since it slows all else."""
    if found["reached"] >= FULL:
        return "the accelerator"
    shares = {
        "machine_share": "the machine's cores",
        "loop_share": "the loop",
        "instance_share": "the instance's tokenizer and reader",
        "cpu_share": "the load generator",
    }
    return next((name for share, name in shares.items() if found[share] >= FULL), "waiting")


def report(section: Section, found: dict[tuple[Accelerator, int], list[Figures]]) -> None:
    """Says what was reached, and what an answer takes."""
    rows = []
    for (accelerator, instances), repeats in found.items():
        figures = {name: [one[name] for one in repeats] for name in repeats[0]}
        middle = {name: median(values) for name, values in figures.items()}
        rows.append(
            [
                accelerator.name,
                str(instances),
                f"{accelerator.pace_per_s * instances:,.0f}",
                spread(figures["throughput"], 0),
                spread(figures["reached"], 2),
                held_by(middle),
                spread(figures["instance_us"], 0),
                spread(figures["loop_us"], 0),
            ]
        )
    head = ["simulated accelerator, one an instance", "instances", "its pace, answers/s"]
    head += ["answers/s", "share", "held by", "instance, us an answer", "loop, us an answer"]
    section.say(markdown(head, rows))
    section.raw["cells"] = {f"{a.name}, {n}": repeats for (a, n), repeats in found.items()}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--only", action="append", help="only accelerators with this in their name")
    parser.add_argument("--instances", nargs="+", type=int, default=[1, 2], help="how many")
    flags = parser.parse_args()
    section = Section("feed", "Feeding an accelerator, simulated", flags)
    items = uniform(read_squad(flags.questions_file))
    words = flags.only or [""]
    chosen = [one for one in accelerators() if any(word in one.name for word in words)]
    found: dict[tuple[Accelerator, int], list[Figures]] = {}
    for _ in range(1 if flags.quick else flags.repeats):
        for accelerator in chosen:
            for instances in flags.instances:
                figures = feed(accelerator, instances, flags, items)
                found.setdefault((accelerator, instances), []).append(figures)
    report(section, found)
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
