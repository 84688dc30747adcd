"""How near real instances come to the pace of an accelerator that is simulated.

    python -m benchmarks.feed --questions_file dev.json
    python -m benchmarks.feed --questions_file dev.json --only T4 --instances 1
    python -m benchmarks.feed --questions_file dev.json --only 10,000 --alone

A real server answers real questions; its instances have a tokenizer, a channel and a reader, and an
engine that sleeps as long as an accelerator would compute. Its clients are this process. Where the
cores of the machine are too few for loop, instances and clients together, it is they that hold
the pace, and the figures that count are the processor's time for an answer: what one loop and one
instance would reach on cores of their own. With `--alone` there is no loop and there are no
clients: this process gives one instance batches that were made before, as many at once as the loop
would.

The accelerators are computed, not measured: the floating-point operations of a row of 160 tokens
over 40 % of the peak in half precision that the manufacturer names, and 1 ms for a batch.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import Figures, Item, measure, uniform
from benchmarks.record import Section, make_parser, markdown, median, spread
from benchmarks.targets import Running, ours
from harness.process import cpu_s
from harness.server import ROOT, running_server
from qa_service.data.squad import read_squad
from qa_service.instance.channel import WORKER_PROGRAM, launch
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.instance.worker_messages import (
    MAX_MESSAGE_BYTES,
    Batch,
    Ready,
    Results,
    Setup,
    encode,
    to_loop_decoder,
)
from qa_service.logs import LogOptions
from qa_service.machine import num_cpus
from qa_service.server.instances.base import MAX_HELD_OVERLAPPED
from qa_service.server.scheduling.request_cost import tokens_of
from qa_service.wire.frames import FrameReader, receive_frame
from qa_service.wire.messages import Task

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
    return "env", *(f"{name}={value}" for name, value in _variables(root, **figures).items())


def _variables(root: Path, **figures: float) -> dict[str, str]:
    return {
        "PYTHONPATH": f"{WORKER}{os.pathsep}{root}",
        **{f"FEED_{name}": str(value) for name, value in figures.items()},
    }


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


@contextlib.contextmanager
def instance_alone(
    accelerator: Accelerator, model: Path
) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """The loop's end of the channel of an instance that starts, and its process."""
    os.environ.update(_variables(ROOT, FIXED_US=FIXED_US, ROW_US=accelerator.row_us))
    options = InstanceOptions(
        inference_engine_type="onnx",
        precision="fp32",
        cost_table="off",
        max_batch_size=BATCH,
        max_batch_tokens=MAX_BATCH_TOKENS,
    )
    setup = Setup(str(model), options)
    process, sock = launch(WORKER_PROGRAM, setup, LogOptions())
    try:
        sock.sendall(encode(setup))
        yield sock, process
    finally:
        sock.close()
        process.wait()


def feed_alone(
    accelerator: Accelerator, _: int, flags: argparse.Namespace, items: Sequence[Item]
) -> Figures:
    """Gives one instance batches without a loop; the figures of its answers."""
    tasks = [Task(item.question, item.text) for item in items]
    full = len(tasks) // BATCH * BATCH
    batches = [tasks[first : first + BATCH] for first in range(0, full, BATCH)]
    share = 0.3 if flags.quick else 1.0
    with instance_alone(accelerator, flags.model) as (sock, process):
        frames = FrameReader(MAX_MESSAGE_BYTES)

        def received() -> object:
            body = receive_frame(frames, sock.recv)
            return to_loop_decoder.decode(body) if body else None

        if not isinstance(ready := received(), Ready):
            raise RuntimeError(f"the instance is not ready: {ready}")
        made = [encode(Batch(number, batch)) for number, batch in enumerate(batches)]
        turns = itertools.cycle(made)
        for _ in range(MAX_HELD_OVERLAPPED):
            sock.sendall(next(turns))

        def answered(duration_s: float) -> tuple[int, float]:
            began_s, count = time.perf_counter(), 0
            while time.perf_counter() - began_s < duration_s:
                if not isinstance(results := received(), Results):
                    raise RuntimeError(f"the instance has ended: {results}")
                sock.sendall(next(turns))
                count += len(results.outcomes)
            return count, time.perf_counter() - began_s

        answered(WARMUP_S * share)
        before_s, own_s = cpu_s(process.pid), time.process_time()
        count, took_s = answered(DURATION_S * share)
        used_s, own_s = cpu_s(process.pid) - before_s, time.process_time() - own_s
    return {
        "throughput": count / took_s,
        "reached": count / took_s / accelerator.pace_per_s,
        "instance_us": used_s * 1e6 / count,
        "own_us": own_s * 1e6 / count,
    }


def _idle_s() -> float:
    """Seconds in which the cores that this process may use did nothing: others may use them too."""
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    ticks = {name: int(times[3]) for name, *times in lines if name.startswith("cpu")}
    own = sum(ticks[f"cpu{number}"] for number in os.sched_getaffinity(0))
    return own / os.sysconf("SC_CLK_TCK")


MAX_BATCH_TOKENS = BATCH * 512
"""So that a batch is run at once, as the pace of an accelerator has it."""
SERVER_FLAGS = (
    *("--devices", "cpu", "--cost_table", "off", "--max_batch_size", str(BATCH)),
    *("--max_batch_tokens", str(MAX_BATCH_TOKENS)),
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
    """A table of the servers, or of the instances that had none."""
    is_alone = not any(instances for _, instances in found)
    own, process = ("own_us", "this process") if is_alone else ("loop_us", "the loop")
    rows = []
    for (accelerator, instances), repeats in found.items():
        figures = {name: [one[name] for one in repeats] for name in repeats[0]}
        middle = {name: median(values) for name, values in figures.items()}
        rows.append(
            [
                f"{accelerator.name}, {instances or 'no loop'}",
                f"{accelerator.pace_per_s * max(1, instances):,.0f}",
                spread(figures["throughput"], 0),
                spread(figures["reached"], 2),
                "-" if is_alone else held_by(middle),
                spread(figures["instance_us"], 0),
                spread(figures[own], 0),
            ]
        )
    head = ["simulated accelerator, instances with one each", "its pace, answers/s", "answers/s"]
    head += ["share", "held by", "instance, us an answer", f"{process}, us an answer"]
    section.say(markdown(head, rows))
    section.raw["cells"] = {f"{a.name}, {n}": repeats for (a, n), repeats in found.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--only", action="append", help="only accelerators with this in their name")
    parser.add_argument("--instances", nargs="+", type=int, default=[1, 2], help="how many")
    parser.add_argument("--alone", action="store_true", help="one instance, without a server")
    flags = parser.parse_args()
    section = Section("feed", "Feeding an accelerator, simulated", flags)
    window_tokens = load_manifest(flags.model).window_tokens
    asked = uniform(read_squad(flags.questions_file))
    # The loop gives questions that do not fit a window batches with their like.
    items = [one for one in asked if tokens_of(one.question + one.text) < window_tokens]
    words = flags.only or [""]
    chosen = [one for one in accelerators() if any(word in one.name for word in words)]
    found: dict[tuple[Accelerator, int], list[Figures]] = {}
    for _ in range(1 if flags.quick else flags.repeats):
        for accelerator in chosen:
            for instances in (0,) if flags.alone else flags.instances:
                take = feed if instances else feed_alone
                found.setdefault((accelerator, instances), []).append(
                    take(accelerator, instances, flags, items)
                )
    report(section, found)
    section.close()


if __name__ == "__main__":
    main()
