"""How long texts and greedy clients change what others wait, before and after in one run.

    python -m benchmarks.fairness --questions_file dev.json
    python -m benchmarks.fairness --questions_file dev.json --before PATH    # beside a checkout

Latencies are medians of closed loops: each client waits for its answer before it asks again, but
for the greedy one, which has 64 requests in flight. `--before` runs each mix on another
checkout's server too, in turn.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.record import Section, checkouts_of, make_parser
from harness.server import EXACT_ENGINE, running_server
from qa_service.client import QaClient, QaServerError
from qa_service.data.squad import read_squad

FLAGS = (
    *("--inference_engine_type", "onnx", "--precision", "fp32"),
    *("--request_timeout_ms", "0", "--execution_timeout_ms", "600000"),
)
SHORT_CHARS, LONG_CHARS = (150, 900), (1700, 2500)
GREEDY_IN_FLIGHT = 64
WHOLE_CHARS = 200_000
NUM_WHOLE = 20
TIMEOUT_MS = 30_000.0

Pair = tuple[str, str]


class Texts:
    """Questions with short texts, and with texts of two windows."""

    def __init__(self, path: Path) -> None:
        rng = random.Random(0)
        questions = [(item.question, item.context) for item in read_squad(path)]
        contexts = list(dict.fromkeys(context for _, context in questions))
        self.short = [pair for pair in questions if SHORT_CHARS[0] < len(pair[1]) < SHORT_CHARS[1]]
        self.long = [
            (
                question,
                f"{context}\n{rng.choice(contexts)}\n{rng.choice(contexts)}"[: LONG_CHARS[1]],
            )
            for question, context in questions
            if len(context) > SHORT_CHARS[1]
        ]
        self.whole = "\n".join(contexts * 9)[:WHOLE_CHARS]


def ask_for(
    port: int, pairs: Sequence[Pair], until_s: float, waited_ms: list[float], seed: int
) -> None:
    """One client: asks one question after another until a time."""
    rng = random.Random(seed)
    with QaClient("localhost", port, timeout_s=120.0) as client:
        while time.monotonic() < until_s:
            started_s = time.monotonic()
            client.ask(*rng.choice(pairs))
            waited_ms.append((time.monotonic() - started_s) * 1e3)


def ask_all_the_time(port: int, pairs: Sequence[Pair], until_s: float) -> None:
    """One client that always has many requests in flight."""
    with QaClient("localhost", port, timeout_s=120.0) as client:
        while time.monotonic() < until_s:
            client.ask_many(pairs[:GREEDY_IN_FLIGHT])


def run(clients: Sequence[Callable[[], None]]) -> None:
    """Runs clients side by side, to their ends."""
    threads = [threading.Thread(target=client) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def mix(port: int, texts: Texts, num_short: int, num_long: int, duration_s: float) -> list[float]:
    """Median milliseconds of short and of long texts, asked by so many clients each."""
    until_s = time.monotonic() + duration_s
    short_ms: list[float] = []
    long_ms: list[float] = []
    kinds = [(texts.short, short_ms)] * num_short + [(texts.long, long_ms)] * num_long
    run(
        [
            lambda pairs=pairs, waited_ms=waited_ms, seed=seed: ask_for(
                port, pairs, until_s, waited_ms, seed
            )
            for seed, (pairs, waited_ms) in enumerate(kinds)
        ]
    )
    return [statistics.median(ms) if ms else 0.0 for ms in (short_ms, long_ms)]


def greedy(port: int, texts: Texts, duration_s: float) -> list[float]:
    """Median milliseconds of three single clients, alone and beside a greedy one."""
    quiet_ms: list[float] = []
    beside_ms: list[float] = []
    for waited_ms in (quiet_ms, beside_ms):
        until_s = time.monotonic() + duration_s
        clients: list[Callable[[], None]] = [
            lambda seed=seed, waited_ms=waited_ms, until_s=until_s: ask_for(
                port, texts.short, until_s, waited_ms, seed
            )
            for seed in range(3)
        ]
        if waited_ms is beside_ms:
            clients.append(lambda until_s=until_s: ask_all_the_time(port, texts.short, until_s))
        run(clients)
    return [statistics.median(quiet_ms), statistics.median(beside_ms)]


def whole_text(port: int, texts: Texts) -> float:
    """Seconds that one text of 200,000 characters takes."""
    started_s = time.monotonic()
    with QaClient("localhost", port, timeout_s=300.0) as client:
        client.ask("Who wrote the notes?", texts.whole)
    return time.monotonic() - started_s


def many_whole(port: int, texts: Texts) -> dict[str, list[float]]:
    """Seconds after which each of twenty such texts, sent at once, had its outcome."""
    outcomes: dict[str, list[float]] = {}

    def ask() -> None:
        started_s = time.monotonic()
        with QaClient("localhost", port, timeout_s=300.0) as client:
            try:
                client.ask("Who wrote the notes?", texts.whole, timeout_ms=TIMEOUT_MS)
                code = "answered"
            except QaServerError as error:
                code = error.code
        outcomes.setdefault(code, []).append(round(time.monotonic() - started_s, 2))

    run([ask] * NUM_WHOLE)
    return outcomes


def measure(
    checkout: Path, model: Path, flags: argparse.Namespace, texts: Texts
) -> dict[str, object]:
    """Every figure of one checkout's server."""
    seconds = 4.0 if flags.quick else 15.0
    with running_server(model, *EXACT_ENGINE, *FLAGS, root=checkout) as server:
        port = server.port
        mix(port, texts, 2, 1, 2.0)
        figures: dict[str, object] = {
            "alone": [
                mix(port, texts, 1, 0, seconds / 2)[0],
                mix(port, texts, 0, 1, seconds / 2)[1],
            ],
            "20 clients": mix(port, texts, 10, 10, seconds),
            "50 clients": mix(port, texts, 25, 25, seconds),
            "greedy": greedy(port, texts, seconds),
            "one whole text on two": whole_text(port, texts),
            "twenty whole texts": many_whole(port, texts),
        }
    one = (*FLAGS, "--num_inference_sessions", "1")
    with running_server(model, *EXACT_ENGINE, *one, root=checkout) as server:
        figures["one whole text on one"] = whole_text(server.port, texts)
    return figures


def print_greedy(flags: argparse.Namespace, texts: Texts) -> None:
    """What a greedy client does to three others: the checkouts in turn, twice."""
    for name, (checkout, model) in [*checkouts_of(flags).items()] * 2:
        with running_server(model, *EXACT_ENGINE, *FLAGS, root=checkout) as server:
            mix(server.port, texts, 2, 0, 1.5)
            quiet_ms, beside_ms = greedy(server.port, texts, 2.0 if flags.quick else 8.0)
        ratio = beside_ms / quiet_ms
        print(f"{name}: {quiet_ms:.0f} ms alone, {beside_ms:.0f} ms beside it, {ratio:.2f}")


def report(section: Section, name: str, figures: dict[str, object]) -> None:
    alone_short, alone_long = figures["alone"]
    rows = [f"**{name}**\n", "| mix | short p50, ms | long p50, ms | long / short | of costs |"]
    rows.append("|---|---|---|---|---|")
    cost_ratio = alone_long / alone_short
    for mixed in ("alone", "20 clients", "50 clients"):
        short_ms, long_ms = figures[mixed]
        ratio = long_ms / short_ms
        rows.append(
            f"| {mixed} | {short_ms:.0f} | {long_ms:.0f} | {ratio:.1f} | {ratio / cost_ratio:.2f} |"
        )
    quiet_ms, beside_ms = figures["greedy"]
    rows.append(
        f"\nThree single clients: {quiet_ms:.0f} ms alone, {beside_ms:.0f} ms beside one with "
        f"{GREEDY_IN_FLIGHT} in flight ({beside_ms / quiet_ms:.2f}; a fair share is 4/3). A text "
        f"of {WHOLE_CHARS:,} characters: {figures['one whole text on one']:.1f} s on one instance, "
        f"{figures['one whole text on two']:.1f} s on two. {NUM_WHOLE} of them at once: "
        + "; ".join(
            f"{len(times_s)} {code} after {min(times_s):.1f} to {max(times_s):.1f} s"
            for code, times_s in figures["twenty whole texts"].items()
        )
        + "."
    )
    section.say("\n".join(rows))


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--before", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--only_greedy", action="store_true", help="measure nothing else")
    flags = parser.parse_args()
    texts = Texts(flags.questions_file)
    if flags.only_greedy:
        print_greedy(flags, texts)
        return 0
    section = Section("fairness", "Long texts and greedy clients", flags)
    for name, (checkout, model) in checkouts_of(flags).items():
        figures = measure(checkout, model, flags, texts)
        section.raw[name] = figures
        report(section, name, figures)
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
