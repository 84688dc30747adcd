"""Loads on a target over `qa_service.programs.load`, and the figures of a timed one.

A timed load is measured in a window. It starts before the window and is drained after it:
throughput counts the answers that end within the window, latency all requests that start in it,
the slowest too. The CPU time of the load generator itself is part of what is reported.

The clients ask paragraphs, or a mix of lengths. Both are drawn from a SQuAD file with a seed, so
that every target is asked the same in the same order. The mix comes in blocks of ten: five single
sentences, four paragraphs, one text of 2,000 words. So any stretch of it holds the same work, and a
measurement of some seconds is not at the mercy of how many long texts fell into it.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import Section, markdown, median, percentile, spread
from benchmarks.targets import NotStartedError, Running, Target, running
from harness.process import cpu_s
from qa_service.data.squad import SquadQuestion
from qa_service.programs.load.generator import run_load
from qa_service.programs.load.plan import Sample

LONG_TEXT_WORDS = 2000
SENTENCES, PARAGRAPHS = 5, 4
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Item:
    """A question and its text; `kind` is `sentence`, `paragraph` or `long`."""

    kind: str
    question: str
    text: str

    @property
    def asked(self) -> SquadQuestion:
        return SquadQuestion("", self.question, self.text, (), ())


def uniform(questions: Sequence[SquadQuestion], seed: int = 0) -> list[Item]:
    order = random.Random(seed).sample(questions, len(questions))
    return [_paragraph(question) for question in order]


def mixed(questions: Sequence[SquadQuestion], seed: int = 0) -> list[Item]:
    """Every question once: half with one sentence, a tenth with 2,000 words, else its paragraph."""
    rng = random.Random(seed)
    order = rng.sample(questions, len(questions))
    contexts = list(dict.fromkeys(question.context for question in order))
    items: list[Item] = []
    for first in range(0, len(order), 10):
        block = order[first : first + 10]
        made = [_sentence(question) for question in block[:SENTENCES]]
        made += [_paragraph(question) for question in block[SENTENCES : SENTENCES + PARAGRAPHS]]
        made += [_long(question, contexts, rng) for question in block[SENTENCES + PARAGRAPHS :]]
        items += rng.sample(made, len(made))
    return items


def _paragraph(question: SquadQuestion) -> Item:
    return Item("paragraph", question.question, question.context)


def _sentence(question: SquadQuestion) -> Item:
    """The sentence in which the answer starts; the first where there is no answer."""
    start = question.answer_starts[0] if question.answer_starts else 0
    ends = [match.start() for match in _SENTENCE_END.finditer(question.context)]
    before = max((end for end in ends if end <= start), default=0)
    after = min((end for end in ends if end > start), default=len(question.context))
    return Item("sentence", question.question, question.context[before:after].strip())


def _long(question: SquadQuestion, contexts: Sequence[str], rng: random.Random) -> Item:
    words = question.context.split()
    while len(words) < LONG_TEXT_WORDS:
        other = rng.choice(contexts).split()
        words = words + other if rng.random() < 0.5 else other + words
    first = (len(words) - LONG_TEXT_WORDS) // 2
    return Item("long", question.question, " ".join(words[first : first + LONG_TEXT_WORDS]))


def load(server: Running, items: Sequence[Item], **fields: Any) -> list[Sample]:
    """Makes a load; its requests in the order of their ends. `fields` are those of `LoadPlan`."""
    batches = run_load(server.plan([item.asked for item in items], **fields))
    return sorted((sample for batch in batches for sample in batch), key=lambda s: s.ended_s)


def counted(
    server: Running, items: Sequence[Item], clients: int, requests_each: int
) -> list[Sample]:
    """Has each client ask a number of questions.

    Raises:
        RuntimeError: A request failed.
    """
    counts = {"num_total_clients": clients, "num_request_per_client": requests_each}
    samples = load(server, items, num_simultaneous_clients=clients, **counts)
    if failed := sum(bool(sample.error_code) for sample in samples):
        raise RuntimeError(f"{failed} requests failed")
    return samples


def measure(
    server: Running,
    items: Sequence[Item],
    clients: int,
    warmup_s: float,
    duration_s: float,
    *,
    first: int = 0,
) -> Figures:
    """Loads a server for a while and keeps the figures of the window after the warmup.

    `cpu_share` is the generator's, of one core; `cpu_ms` that of all processes of the server and
    `loop_us` that of its first one, for one request.

    Args:
        first: Which of the items to start with.
    """
    first %= len(items)
    items = [*items[first:], *items[:first]]
    before_s, loop_before_s, own_s = server.cpu_s(), cpu_s(server.pid), time.process_time()
    began_s = time.perf_counter()
    fields = {"num_simultaneous_clients": clients, "duration_s": warmup_s + duration_s}
    samples = load(server, items, **fields)
    answered = max(1, len(samples))
    start_s = began_s + warmup_s
    kept = figures(samples, (start_s, start_s + duration_s), items) | {
        "cpu_share": (time.process_time() - own_s) / (time.perf_counter() - began_s),
        "cpu_ms": (server.cpu_s() - before_s) * 1e3 / answered,
        "loop_us": (cpu_s(server.pid) - loop_before_s) * 1e6 / answered,
    }
    return {name: round(value, 4) for name, value in kept.items()}


def figures(
    samples: Sequence[Sample], window_s: tuple[float, float], items: Sequence[Item]
) -> Figures:
    """The figures of a window; each kind's latencies apart too, if there are several kinds."""
    start_s, end_s = window_s
    answered = [sample for sample in samples if not sample.error_code]
    ended = [sample for sample in answered if start_s <= sample.ended_s < end_s]
    started = [sample for sample in answered if start_s <= sample.started_s < end_s]
    weight = weights(items)
    kept = {
        "throughput": len(ended) / (end_s - start_s),
        "work": sum(weight[sample.question_index] for sample in ended) / (end_s - start_s),
        "requests": float(len(started)),
        "failed": float(len(samples) - len(answered)),
    }
    kinds = sorted({item.kind for item in items})
    for kind in ("", *kinds) if len(kinds) > 1 else ("",):
        of_kind = [s.latency_ms for s in started if kind in {"", items[s.question_index].kind}]
        name = kind and f"{kind}_"
        kept |= {f"{name}p{percent}": percentile(of_kind, percent) for percent in (50, 99)}
    return kept


def weights(items: Sequence[Item]) -> list[float]:
    """Each item's length over the mean length: about what share of the work it is."""
    lengths = [len(item.question) + len(item.text) for item in items]
    return [length * len(items) / sum(lengths) for length in lengths]


class Cells:
    """All figures, and tables of them.

    Attributes:
        raw: The figures of each repeat, by target and row.
        absent: Why a target took no part, or no longer; by its name.
    """

    def __init__(self) -> None:
        self.raw: dict[str, dict[str, list[Figures]]] = {}
        self.absent: dict[str, str] = {}

    def measure(
        self,
        targets: Sequence[Target],
        model: Path,
        repeats: int,
        rows: Callable[[Running, int], None],
    ) -> None:
        """Starts every target in every repeat; each repeat begins with the next one.

        Args:
            rows: Puts all rows to a running target, in the repeat of this number.
        """
        for repeat in range(repeats):
            first = repeat % len(targets)
            for target in [*targets[first:], *targets[:first]]:
                if target.name not in self.absent:
                    self._measure_one(target, model, repeat, rows)

    def _measure_one(
        self, target: Target, model: Path, repeat: int, rows: Callable[[Running, int], None]
    ) -> None:
        started_s = time.perf_counter()
        try:
            with running(target, model) as server:
                rows(server, repeat)
        except (NotStartedError, RuntimeError, OSError) as error:
            self.absent[target.name] = f"{type(error).__name__}: {error}"
        said = self.absent.get(target.name, "measured")
        seconds = time.perf_counter() - started_s
        print(f"repeat {repeat}, {target.name}: {said}, {seconds:.0f} s", flush=True)

    def say(
        self, section: Section, rows: Sequence[str], figures: Sequence[tuple[str, str, int]]
    ) -> None:
        """Says who is absent, and a table of each figure: its name, its label, its digits."""
        self.say_absent(section)
        for name, label, digits in figures:
            section.say(f"**{label}**\n\n" + self.table("", rows, name, digits))
        section.say(f"Failed requests: at most {self.worst('failed'):.0f} in a cell.")

    def say_absent(self, section: Section) -> None:
        """Keeps the figures in the section, and says who is absent."""
        section.raw |= {"cells": self.raw, "absent": self.absent}
        for name, error in self.absent.items():
            section.say(f"{name} did not take part: {error}")

    def add(self, target: str, row: str, figures: Figures) -> None:
        self.raw.setdefault(target, {}).setdefault(row, []).append(figures)

    def values(self, target: str, row: str, name: str) -> list[float]:
        return [cell[name] for cell in self.raw[target].get(row, []) if name in cell]

    def median(self, target: str, row: str, name: str) -> float:
        """One figure's median; NaN if there is none."""
        return median(self.values(target, row, name))

    def table(self, corner: str, rows: Sequence[str], name: str, digits: int = 1) -> str:
        """Targets down, rows across: one figure's medians and their spread."""
        return self.table_of(corner, rows, lambda c, r: spread(self.values(c, r, name), digits))

    def table_of(self, corner: str, rows: Sequence[str], text: Callable[[str, str], str]) -> str:
        lines = [[name, *[text(name, row) for row in rows]] for name in self.raw]
        return markdown([corner, *rows], lines)

    def table_by(self, corner: str, columns: dict[str, tuple[str, str]], digits: int = 1) -> str:
        def text(target: str, label: str) -> str:
            return spread(self.values(target, *columns[label]), digits)

        return self.table_of(corner, list(columns), text)

    def worst(self, name: str) -> float:
        every = [c for rows in self.raw.values() for cells in rows.values() for c in cells]
        return max((cell[name] for cell in every), default=0.0)
