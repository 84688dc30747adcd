"""The response cache: throughput and latency with it, its costs, its memory.

    python -m benchmarks.cache --questions_file dev.json

Four parts: the loop's time for a hit and for a miss; memory over a million different requests;
10,000 questions asked as often as Zipf's law has it (s = 1), with and without a cache, from cold;
and questions that never come again, with a full cache and without one.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from benchmarks.cells import Cells
from benchmarks.load import measure
from benchmarks.record import Section, make_parser
from benchmarks.tables import markdown
from benchmarks.targets import Running, Target, ours
from benchmarks.texts import Item
from harness.frames import frame, receive
from harness.process import rss_bytes
from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.net.timers import Clock
from qa_service.server.scheduling.call import Call, Outcome, Scope
from qa_service.server.services.cache import Cached
from qa_service.server.services.cache_store import CacheStore
from qa_service.server.telemetry.metrics import ModelMetrics
from qa_service.wire.messages import Answer, Answered, Request, Timings

ANSWER = [Answer("word", 0.9, 4, 8)]
TIMINGS = Timings(0.1, 20.0)
TEXT_CHARS = (100, 1000, 10_000)
COST_REQUESTS = 5000
MEMORY_REQUESTS = 1_000_000
MIB = 1 << 20
MEMORY_BYTES = 64 * MIB
QUESTIONS, DRAWS, CLIENTS = 10_000, 40_000, 8
ZIPF_WARMUP_S, WARMUP_S, DURATION_S = 30.0, 2.0, 12.0
OFF = ours("no cache", "--num_inference_sessions", "2")
ON = ours("cache of 64 MiB", "--num_inference_sessions", "2", "--cache_bytes", str(64 << 20))
FULL = ours("full cache", "--num_inference_sessions", "2", "--cache_bytes", "4096")
INSTANT = ("--inference_engine_type", "instant", "--num_inference_sessions", "1")
INSTANT_OFF = ours("no cache, no model", *INSTANT)
INSTANT_FULL = ours("full cache, no model", *INSTANT, "--cache_bytes", str(1 << 20))


class AnsweringService:
    """Answers at once: what is left is the cache's own time."""

    def submit(self, call: Call) -> None:
        call.resolve(ANSWER, TIMINGS)


class StandingClock:
    """A clock that stands: there are no deadlines to wait for."""

    def now_s(self) -> float:
        return 0.0


def make_cached(max_bytes: int) -> tuple[Cached, CacheStore]:
    """A cache before a service that answers at once."""
    store = CacheStore(max_bytes)
    metrics = ModelMetrics([])
    service, clock = AnsweringService(), cast(Clock, StandingClock())
    return Cached(service, store, lambda _: "f" * 64, clock, metrics, max_joined=0), store


def requests(text: str, prefix: str = "") -> Iterator[Call]:
    """Different questions of one text."""
    for number in itertools.count():
        yield Call(Request(f"{prefix} what is {number}?", text), Scope(0.0, math.inf))


def median_us(submit: Callable[[Call], None], calls: Sequence[Call]) -> float:
    """The median time of a submission, in microseconds."""
    times = []
    for call in calls:
        began = time.perf_counter_ns()
        submit(call)
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1e3


def costs() -> dict[str, dict[str, float]]:
    """The loop's time for a hit and a miss, by the length of the text.

    A miss is what a submission takes beyond the same one without a cache, its answer kept, and an
    older one dropped for it.
    """
    found = {}
    for chars in TEXT_CHARS:
        text = ("a word of a text that is read " * chars)[:chars]
        cached, store = make_cached(1 << 20)
        fill = itertools.islice(requests(text, "fill"), COST_REQUESTS)
        for call in fill:
            cached.submit(call)
        fresh = list(itertools.islice(requests(text), COST_REQUESTS))
        bare_us = median_us(AnsweringService().submit, list(itertools.islice(requests(text), 1000)))
        miss_us = median_us(cached.submit, fresh) - bare_us
        again = list(itertools.islice(requests(text), COST_REQUESTS))[-len(store) // 2 :]
        outcomes: list[Outcome] = []
        for call in again:
            call.then(outcomes.append)
        hit_us = median_us(cached.submit, again)
        assert all(isinstance(one, Answered) and one.source.is_cached for one in outcomes)
        found[str(chars)] = {"hit_us": round(hit_us, 2), "miss_us": round(miss_us, 2)}
    return found


def memory() -> list[tuple[int, float, float, int]]:
    """Requests, growth of resident memory and what the cache counts, in MiB, and entries."""
    cached, store = make_cached(MEMORY_BYTES)
    gc.collect()
    before, rows = rss_bytes(os.getpid()), []
    for number, call in enumerate(requests("a text"), 1):
        cached.submit(call)
        if number % (MEMORY_REQUESTS // 10) == 0:
            grown = (rss_bytes(os.getpid()) - before) / (1 << 20)
            rows.append(
                (number, round(grown, 1), round(store.num_bytes / (1 << 20), 1), len(store))
            )
        if number == MEMORY_REQUESTS:
            return rows
    raise AssertionError


def pairs(questions: Sequence[SquadQuestion], count: int) -> list[Item]:
    """Different pairs of a question and a paragraph, its own ones first."""
    contexts = list(dict.fromkeys(question.context for question in questions))
    found: dict[tuple[str, str], None] = {}
    for shift in range(len(contexts)):
        for question in questions:
            at = contexts.index(question.context)
            found[question.question, contexts[(at + shift) % len(contexts)]] = None
            if len(found) == count:
                rng = random.Random(0)
                return [Item("paragraph", *pair) for pair in rng.sample(list(found), count)]
    raise SystemExit(f"the file has fewer than {count} pairs of a question and a text")


def zipf(items: Sequence[Item]) -> list[Item]:
    """Items drawn so that the n-th is asked in proportion to 1/n."""
    weights = [1 / number for number in range(1, len(items) + 1)]
    return random.Random(1).choices(items, weights, k=DRAWS)


def never_again(items: Sequence[Item]) -> list[Item]:
    """Every item under a question of its own: none has been asked before."""
    return [Item(i.kind, f"{i.question} ({n})", i.text) for n, i in enumerate(items)]


def load(
    server: Running, items: Sequence[Item], warmup_s: float, duration_s: float
) -> dict[str, float]:
    """Loads a server, and says what share of all requests the cache answered."""
    before = cache_counters(server)
    figures = measure(server, items, CLIENTS, warmup_s, duration_s)
    counted = [now - then for now, then in zip(cache_counters(server), before, strict=True)]
    total = max(1, sum(counted))
    figures |= {"hits": 100 * counted[0] / total, "joined": 100 * counted[1] / total}
    return figures


def cache_counters(server: Running) -> list[int]:
    """Hits, requests that joined another, and misses, as the server counts them."""
    with server.connect() as sock:
        sock.sendall(frame({"type": "stats"}))
        counters = receive(sock)["stats"]["counters"]
    return [counters[f"cache_{what}_total"] for what in ("hits", "joined", "misses")]


def say_costs(section: Section) -> None:
    section.raw["costs"] = found = costs()
    rows = [[chars, row["hit_us"], row["miss_us"]] for chars, row in found.items()]
    table = markdown(["characters in the text", "hit", "miss, kept, an older one dropped"], rows)
    section.say(f"**The loop's own time, median, in microseconds**\n\n{table}")


def say_memory(section: Section) -> None:
    section.raw["memory"] = rows = memory()
    table = markdown(["requests", "resident, MiB more", "counted, MiB", "entries"], rows)
    section.say(f"**A million different requests into {MEMORY_BYTES // MIB} MiB**\n\n{table}")


@dataclass(frozen=True, slots=True)
class Part:
    """A comparison of a server without a cache and one with it; `ask` makes the questions."""

    title: str
    targets: Sequence[Target]
    ask: Callable[[Sequence[Item]], list[Item]]
    warmup_s: float


PARTS = {
    "zipf": Part("Zipf (s = 1) over 10,000 questions, from cold", [OFF, ON], zipf, ZIPF_WARMUP_S),
    "fresh": Part("Questions that never come again", [OFF, FULL], never_again, WARMUP_S),
    "loop": Part(
        "The same, with no model behind", [INSTANT_OFF, INSTANT_FULL], never_again, WARMUP_S
    ),
}
COLUMNS = {
    "answers/s": "throughput", "p50 ms": "p50", "p99 ms": "p99", "CPU ms an answer": "cpu_ms",
    "hits %": "hits", "joined %": "joined",
}  # fmt: skip


def say_part(section: Section, flags: argparse.Namespace, part: Part, items: list[Item]) -> Cells:
    """Measures a part and says what it came to."""
    times_s = (1.0, 2.0) if flags.quick else (part.warmup_s, DURATION_S)
    asked, cells = part.ask(items), Cells()

    def measure_one(server: Running, repeat: int) -> None:
        cells.add(server.target.name, "load", load(server, asked, *times_s))

    cells.measure(part.targets, flags.model, flags.repeats, measure_one)
    columns = {label: ("load", figure) for label, figure in COLUMNS.items()}
    section.say(f"**{part.title}, {CLIENTS} clients**\n\n{cells.table_by('', columns, 2)}")
    return cells


def main() -> int:
    parser = make_parser(__doc__)
    parts = ("costs", "memory", *PARTS)
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="what to measure")
    flags = parser.parse_args()
    if flags.quick:
        flags.repeats = 1
    name = "cache" if set(flags.parts) == set(parts) else f"cache_{'_'.join(flags.parts)}"
    section = Section(name, "The response cache", flags)
    if "costs" in flags.parts:
        say_costs(section)
    if "memory" in flags.parts:
        say_memory(section)
    items = pairs(read_squad(flags.questions_file), QUESTIONS)
    section.raw["cells"] = {
        name: say_part(section, flags, part, items).raw
        for name, part in PARTS.items()
        if name in flags.parts
    }
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
