"""How long texts and greedy clients change what others wait, before and after in one run.

    python -m benchmarks.fairness --questions_file dev.json
    python -m benchmarks.fairness --questions_file dev.json --before PATH    # and a checkout

Latencies are medians of closed loops: each client waits for its answer before it asks again, but
for the greedy one, which has 64 requests in flight. `--before` runs each mix on another
checkout's server too, in turn.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.record import Section, checkouts_of, make_parser
from benchmarks.tables import markdown
from harness.load import report_of
from harness.server import EXACT_ENGINE, running_server
from qa_service.client import QaClient, QaServerError
from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.programs.load.plan import LoadPlan

FLAGS = ("--request_timeout_ms", "0", "--execution_timeout_ms", "600000")
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


def plan(port: int, pairs: Sequence[Pair], num_clients: int, duration_s: float) -> LoadPlan:
    """A number of clients, each of which asks one question after another."""
    questions = [SquadQuestion("", question, text, (), ()) for question, text in pairs]
    return LoadPlan(
        "127.0.0.1",
        port,
        questions,
        num_simultaneous_clients=num_clients,
        duration_s=duration_s,
        timeout_s=120.0,
    )


def p50_ms(load: LoadPlan) -> float:
    """The median latency of a load."""
    return report_of(load).percentiles_ms[50]


def mix(port: int, texts: Texts, num_short: int, num_long: int, duration_s: float) -> list[float]:
    """Median milliseconds of short and of long texts, asked by equally many clients."""
    kinds = [(texts.short, num_short), (texts.long, num_long)]
    plans = [plan(port, pairs, number, duration_s) for pairs, number in kinds]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(p50_ms, plans))


def greedy(port: int, texts: Texts, duration_s: float) -> list[float]:
    """Median milliseconds of three single clients, alone and with a greedy one."""
    single, is_over = plan(port, texts.short, 3, duration_s), threading.Event()

    def ask_all_the_time() -> None:
        with QaClient("localhost", port, timeout_s=120.0) as client:
            while not is_over.is_set():
                client.ask_many(texts.short[:GREEDY_IN_FLIGHT])

    quiet_ms = p50_ms(single)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_all_the_time)
        try:
            loaded_ms = p50_ms(single)
        finally:
            is_over.set()
        asking.result()
    return [quiet_ms, loaded_ms]


def whole_text(port: int, texts: Texts) -> float:
    """Seconds that one text of 200,000 characters takes."""
    started_s = time.monotonic()
    with QaClient("localhost", port, timeout_s=300.0) as client:
        client.ask("Who wrote the notes?", texts.whole)
    return time.monotonic() - started_s


def many_whole(port: int, texts: Texts) -> dict[str, list[float]]:
    """Seconds after which each of twenty such texts, sent at once, had its outcome."""
    outcomes: dict[str, list[float]] = {}

    def ask(_: int) -> None:
        started_s = time.monotonic()
        with QaClient("localhost", port, timeout_s=300.0) as client:
            try:
                client.ask("Who wrote the notes?", texts.whole, timeout_ms=TIMEOUT_MS)
                code = "answered"
            except QaServerError as error:
                code = error.code
        outcomes.setdefault(code, []).append(round(time.monotonic() - started_s, 2))

    with ThreadPoolExecutor(NUM_WHOLE) as pool:
        list(pool.map(ask, range(NUM_WHOLE)))
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
                p50_ms(plan(port, pairs, 1, seconds / 2)) for pairs in (texts.short, texts.long)
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
            p50_ms(plan(server.port, texts.short, 2, 1.5))
            quiet_ms, loaded_ms = greedy(server.port, texts, 2.0 if flags.quick else 8.0)
        ratio = loaded_ms / quiet_ms
        print(f"{name}: {quiet_ms:.0f} ms alone, {loaded_ms:.0f} ms with it, {ratio:.2f}")


def report(section: Section, name: str, figures: dict[str, Any]) -> None:
    alone_short_ms, alone_long_ms = figures["alone"]
    rows = []
    for mixed in ("alone", "20 clients", "50 clients"):
        short_ms, long_ms = figures[mixed]
        ratio = long_ms / short_ms
        of_costs = ratio / (alone_long_ms / alone_short_ms)
        rows.append([mixed, f"{short_ms:.0f}", f"{long_ms:.0f}", f"{ratio:.1f}", f"{of_costs:.2f}"])
    head = ["mix", "short p50, ms", "long p50, ms", "long / short", "of costs"]
    section.say(f"**{name}**\n\n" + markdown(head, rows))
    quiet_ms, loaded_ms = figures["greedy"]
    whole = [
        f"{len(times_s)} {code} after {min(times_s):.1f} to {max(times_s):.1f} s"
        for code, times_s in figures["twenty whole texts"].items()
    ]
    section.say(
        f"Three single clients: {quiet_ms:.0f} ms alone, {loaded_ms:.0f} ms with one that has "
        f"{GREEDY_IN_FLIGHT} in flight ({loaded_ms / quiet_ms:.2f}; a fair share is 4/3). A text "
        f"of {WHOLE_CHARS:,} characters: {figures['one whole text on one']:.1f} s on one instance, "
        f"{figures['one whole text on two']:.1f} s on two. {NUM_WHOLE} of them at once: "
        f"{'; '.join(whole)}."
    )


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
