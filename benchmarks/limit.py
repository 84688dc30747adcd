"""The server against the limit: what its instances do with no server around them.

    python -m benchmarks.limit --questions_file dev.json
    python -m benchmarks.limit --questions_file dev.json --engine openvino:bf16

The limit is the throughput of two processes that each run the reading code over batches of
questions sorted by length, at the best of the batch sizes 1, 4 and 8; the sum of their rates.
Against it, the server with as many instances, asked the same questions in shuffled order by 16
closed-loop clients from this process; its rate is that of the answers in the middle of the load.
Both stay loaded throughout and take turns, repeat by repeat.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.load import counted
from benchmarks.record import Section, make_parser
from benchmarks.servers.reading import warm_reader
from benchmarks.tables import markdown, median, spread
from benchmarks.targets import Running, ours, running
from benchmarks.texts import Item, uniform
from qa_service.data.squad import read_squad
from qa_service.repository.manifest import TOKENIZER_FILE
from qa_service.wire.messages import Question

SESSIONS = 2
BATCH_SIZES = (1, 4, 8)
CLIENTS = 16
WARMUP_REQUESTS = 2 * CLIENTS
REQUESTS_TO_SPARE = 4
"""Of each client, so that all are still asking when the last one that counts is answered."""
NUM_QUESTIONS = 280
GOAL = 0.98

Batches = list[list[Question]]


def run_session(pipe: Connection, model: Path, settings: dict[str, str]) -> None:
    """What runs in a process of the limit: batches in, seconds out."""
    reader = warm_reader(model, max_batch_size=max(BATCH_SIZES), **settings)
    pipe.send(0.0)
    while batches := pipe.recv():
        started_s = time.perf_counter()
        for batch in batches:
            reader.read(batch)
        pipe.send(time.perf_counter() - started_s)


class Limit:
    """The instances with no server around them."""

    def __init__(self, model: Path, settings: dict[str, str]) -> None:
        os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for _ in range(SESSIONS):
            pipe, theirs = context.Pipe()
            arguments = (theirs, model, settings)
            context.Process(target=run_session, args=arguments, daemon=True).start()
            self._pipes.append(pipe)
        for pipe in self._pipes:
            pipe.recv()

    def throughput_per_s(self, questions: Sequence[Question], batch_size: int) -> float:
        """Answers a second of all instances, over batches of questions in the order given."""
        firsts = range(0, len(questions), batch_size)
        batches = [list(questions[first : first + batch_size]) for first in firsts]
        shares = [batches[number::SESSIONS] for number in range(SESSIONS)]
        for pipe, share in zip(self._pipes, shares, strict=True):
            pipe.send(share)
        return sum(
            sum(map(len, share)) / pipe.recv()
            for pipe, share in zip(self._pipes, shares, strict=True)
        )

    def close(self) -> None:
        """Ends the instances."""
        for pipe in self._pipes:
            pipe.send(None)


def server_throughput_per_s(server: Running, items: Sequence[Item]) -> tuple[float, float]:
    """Answers a second while every question is answered once, and the generator's CPU share."""
    requests_each = math.ceil((WARMUP_REQUESTS + len(items)) / CLIENTS) + REQUESTS_TO_SPARE
    cpu_s, started_s = time.process_time(), time.perf_counter()
    samples = counted(server, items, CLIENTS, requests_each)
    cpu_share = (time.process_time() - cpu_s) / (time.perf_counter() - started_s)
    ended_s = [sample.ended_s for sample in samples]
    took_s = ended_s[WARMUP_REQUESTS + len(items) - 1] - ended_s[WARMUP_REQUESTS - 1]
    return len(items) / took_s, cpu_share


def by_length(items: Sequence[Item], model: Path) -> list[Question]:
    """The questions, the fewest tokens first."""
    tokenizer = Tokenizer.from_file(str(model / TOKENIZER_FILE))

    def tokens(item: Item) -> int:
        return len(tokenizer.encode(item.question, item.text))

    return [Question(item.question, item.text) for item in sorted(items, key=tokens)]


def compare(
    model: Path, items: Sequence[Item], repeats: int, settings: dict[str, str]
) -> dict[str, list[float]]:
    """Both in turn; after the first repeat the limit runs at its best batch size alone."""
    questions = by_length(items, model)
    found: dict[str, list[float]] = {f"limit {size}": [] for size in BATCH_SIZES}
    found |= {"server": [], "cpu_share": []}
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    limit = Limit(model, settings)
    sizes: Sequence[int] = BATCH_SIZES
    with running(
        ours("server", "--num_inference_sessions", str(SESSIONS), *flags), model
    ) as server:
        for _ in range(repeats):
            for size in sizes:
                found[f"limit {size}"].append(limit.throughput_per_s(questions, size))
            rate_per_s, cpu_share = server_throughput_per_s(server, items)
            found["server"].append(rate_per_s)
            found["cpu_share"].append(cpu_share)
            sizes = [max(sizes, key=lambda size: found[f"limit {size}"][0])]
    limit.close()
    return found


def report(section: Section, engine: str, found: dict[str, list[float]]) -> None:
    """Says what was found, and how near the server comes."""
    best = max(BATCH_SIZES, key=lambda size: found[f"limit {size}"][0])
    limits = found[f"limit {best}"]
    ratios = [server / limit for server, limit in zip(found["server"], limits, strict=True)]
    rows = [
        [f"limit, batches of {size}", spread(found[f"limit {size}"], 2)] for size in BATCH_SIZES
    ]
    rows += [["the server", spread(found["server"], 2)]]
    rows += [[f"**server / limit** (goal {GOAL})", f"**{spread(ratios, 3)}**"]]
    section.say(f"**{engine}**\n\n" + markdown(["", "answers/s"], rows))
    section.raw[engine] = found | {"ratio": ratios, "median_ratio": median(ratios)}


def main() -> int:
    parser = make_parser(__doc__)
    parser.set_defaults(repeats=7)
    parser.add_argument("--engine", default="onnx:fp32", help="engine and precision of both")
    flags: argparse.Namespace = parser.parse_args()
    engine, precision = flags.engine.split(":")
    settings = {"inference_engine_type": engine, "precision": precision}
    section = Section(f"limit_{engine}_{precision}", "Against the limit", flags)
    items = uniform(read_squad(flags.questions_file))[: 24 if flags.quick else NUM_QUESTIONS]
    found = compare(flags.model, items, 1 if flags.quick else flags.repeats, settings)
    report(section, f"{engine} {precision}", found)
    section.say(f"The load generator used {max(found['cpu_share']):.1%} of one core at most.")
    section.say(
        f"{len(items)} questions each time, {SESSIONS} instances of one thread, {CLIENTS} clients. "
        "Medians of the repeats, with the minimum and the maximum; the ratio is taken in each "
        "repeat. The limit's batch sizes but the best ran in the first repeat alone."
    )
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
