"""One client: the median latency through the server against a call in this process.

    python -m benchmarks.one_client --questions_file dev.json

The same questions in blocks, by turns: the reading code called here, then one connection to a
server with one instance. Nothing is pinned to a core. Then the same with the engine that answers
at once: what is left is what the server adds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.load import counted
from benchmarks.record import Section, make_parser
from benchmarks.servers.reading import instant_answer, warm_reader
from benchmarks.tables import markdown, percentile, spread
from benchmarks.targets import Running, ours, running
from benchmarks.texts import Item, uniform
from qa_service.data.squad import read_squad
from qa_service.wire.messages import Question

BLOCK, INSTANT_BLOCK = 30, 1000
REAL_REPEATS, INSTANT_REPEATS = 20, 20
GOAL_RATIO, GOAL_ADDED_MS = 1.05, 0.3
INSTANT = ("--inference_engine_type", "instant")

Call = Callable[[Question], object]


def direct_ms(call: Call, items: Sequence[Item]) -> list[float]:
    """How long each call takes in this process."""
    took_ms = []
    for item in items:
        question = Question(item.question, item.text)
        started_s = time.perf_counter()
        call(question)
        took_ms.append((time.perf_counter() - started_s) * 1e3)
    return took_ms


def served_ms(server: Running, items: Sequence[Item]) -> list[float]:
    """How long each takes through the server, on one connection."""
    return [sample.latency_ms for sample in counted(server, items, 1, len(items))]


def compare(
    model: Path, call: Call, items: Sequence[Item], block: int, repeats: int, *flags: str
) -> tuple[list[list[float]], list[list[float]]]:
    """Latencies of each block, called here and served."""
    here, served = [], []
    server_flags = ("--num_inference_sessions", "1", *flags)
    with running(ours("server", *server_flags), model) as server:
        for repeat in range(repeats):
            asked = [items[(repeat * block + i) % len(items)] for i in range(block)]
            here.append(direct_ms(call, asked))
            served.append(served_ms(server, asked))
    return here, served


def medians(blocks: Sequence[Sequence[float]]) -> list[float]:
    return [percentile(block, 50) for block in blocks]


def report(section: Section, name: str, here: list[list[float]], served: list[list[float]]) -> None:
    """Says the medians, their ratio and their difference."""
    pairs = list(zip(medians(here), medians(served), strict=True))
    ratios = [there / own for own, there in pairs]
    added_ms = [there - own for own, there in pairs]
    p99 = [percentile([ms for block in blocks for ms in block], 99) for blocks in (here, served)]
    rows = [
        ["called here", spread(medians(here), 3), f"{p99[0]:.3f}"],
        ["through the server", spread(medians(served), 3), f"{p99[1]:.3f}"],
        ["added, ms", spread(added_ms, 3), ""],
        ["ratio", spread(ratios, 3), ""],
    ]
    section.say(f"**{name}**\n\n" + markdown(["", "p50, ms", "p99, ms"], rows))
    section.raw[name] = {
        "p50_here_ms": medians(here),
        "p50_served_ms": medians(served),
        "ratios": ratios,
        "added_ms": added_ms,
    }


def main() -> int:
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    flags = make_parser(__doc__).parse_args()
    section = Section("one_client", "One client", flags)
    items = uniform(read_squad(flags.questions_file))
    reader = warm_reader(flags.model)
    rounds = (2, 2) if flags.quick else (REAL_REPEATS, INSTANT_REPEATS)
    here, served = compare(flags.model, lambda q: reader.read([q]), items, BLOCK, rounds[0])
    report(section, f"The built-in model (goal: ratio at most {GOAL_RATIO})", here, served)
    here, served = compare(flags.model, instant_answer, items, INSTANT_BLOCK, rounds[1], *INSTANT)
    report(
        section, f"The engine that answers at once (goal: {GOAL_ADDED_MS} ms added)", here, served
    )
    section.say(
        f"{rounds[0]} blocks of {BLOCK} questions and {rounds[1]} of {INSTANT_BLOCK}, by turns; "
        "medians of the blocks' p50, with the minimum and the maximum. Nothing is pinned."
    )
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
