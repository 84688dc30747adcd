"""This server beside mosec, LitServe, Ray Serve and the prototype's design: the same model.

    python -m benchmarks.peers --questions_file dev.json

Every target serves the same model through the same reading code in two instances of one thread,
over its own protocol. Each repeat starts each of them again, one after another, and puts
all rows to it; the order of targets moves on by one from repeat to repeat. Before the first
of its rows its answers are held against those of the reading code called directly. With
`--engine onnx:int8` all of them compute with that engine and precision; with `--ours onnx:int8`
this server alone, while the others have ONNX Runtime in float32.
The extra `peers` installs the peers; one that is missing is reported, the others go on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cells import Cells
from benchmarks.load import measure
from benchmarks.record import Section, make_parser
from benchmarks.servers.reading import ENGINE_VARIABLE, PRECISION_VARIABLE, answers, warm_reader
from benchmarks.tables import markdown
from benchmarks.targets import LITSERVE, MOSEC, RAY, NotStartedError, Running, Target, ours, peer
from benchmarks.texts import Item, mixed, uniform
from qa_service.data.squad import read_squad
from qa_service.load.wire import QaWire
from qa_service.wire.messages import Question

OURS = "this server"
USUAL = "as documented: batches of 8, 10 ms for batch members"
GOAL_USUAL, GOAL_BEST = 1.4, 1.0
CHECKED = 6
QUESTIONS_APART = 97
PEERS = [
    peer("mosec, batches of 8", "mosec_server", MOSEC, "--batch", "8", settings=USUAL),
    peer("mosec, no batching", "mosec_server", MOSEC, settings="at its best here"),
    peer(
        "LitServe, batches of 8", "litserve_server", LITSERVE,
        "--batch", "8", "--wait_ms", "10", settings=USUAL,
    ),
    peer("LitServe, no batching", "litserve_server", LITSERVE, settings="at its best here"),
    peer(
        "Ray Serve, batches of 8", "ray_server", RAY,
        "--batch", "8", "--max_ongoing_requests", "16", settings=USUAL,
    ),
    peer(
        "Ray Serve, no batching", "ray_server", RAY,
        "--max_ongoing_requests", "2", settings="at its best here: two requests a replica",
    ),
    peer("prototype's design", "prototype_server", QaWire, settings="no batching"),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One load: which texts, how many clients, for how long."""

    mix: str
    clients: int
    warmup_s: float
    duration_s: float

    @property
    def name(self) -> str:
        return f"{self.clients} client{'s' * (self.clients > 1)}"


ROWS = [
    Row("paragraphs", 1, 0.2, 2.0),
    Row("paragraphs", 5, 0.3, 2.5),
    Row("paragraphs", 20, 0.6, 3.0),
    Row("paragraphs", 50, 1.2, 3.5),
    Row("mixed lengths", 1, 0.2, 3.0),
    Row("mixed lengths", 5, 0.3, 3.0),
    Row("mixed lengths", 20, 0.8, 4.5),
    Row("mixed lengths", 50, 1.5, 5.5),
]
MIXES = list(dict.fromkeys(row.mix for row in ROWS))
TABLES = [
    ("work", "answers/s, each counted by its length over the mean", 1),
    ("p50", "p50, ms", 0),
    ("p99", "p99, ms", 0),
    ("cpu_ms", "processor time an answer, all processes of a server, ms", 1),
]


class Comparison:
    """The comparison: all targets, all rows, so many repeats."""

    def __init__(
        self, model: Path, questions_file: Path, longer: float, unchecked: Sequence[str] = ()
    ) -> None:
        questions = read_squad(questions_file)
        self._model = model
        self._longer = longer
        self._unchecked = unchecked
        self._items = dict(zip(MIXES, (uniform(questions), mixed(questions)), strict=True))
        self._expected = self._direct_answers()
        self.cells = Cells()

    def _sample(self) -> list[Item]:
        return [item for items in self._items.values() for item in items[:CHECKED]]

    def _direct_answers(self) -> list[tuple[object, ...]]:
        reader = warm_reader(self._model)
        asked = [Question(item.question, item.text) for item in self._sample()]
        return [
            (answer["answer"], answer["start"], answer["end"])
            for question in asked
            for answer in answers(reader, [question])
        ]

    def measure(self, server: Running, repeat: int) -> None:
        """Puts all rows to a target; before the first, sees that it gives the same answers."""
        if not repeat and server.target.name not in self._unchecked:
            self._check(server)
        for row in ROWS:
            kept = measure(
                server,
                self._items[row.mix],
                row.clients,
                row.warmup_s * self._longer,
                row.duration_s * self._longer,
                first=repeat * QUESTIONS_APART,
            )
            self.cells.add(server.target.name, f"{row.mix}, {row.name}", kept)

    def _check(self, server: Running) -> None:
        """Sees that it gives the same answers.

        Raises:
            NotStartedError: It does not.
        """
        for item, expected in zip(self._sample(), self._expected, strict=True):
            reply = server.ask(item.asked)
            if reply.code or (reply.answer, reply.start, reply.end) != expected:
                raise NotStartedError(f"answers {reply!r}, not {expected!r}")


def report(section: Section, comparison: Comparison, targets: Sequence[Target]) -> None:
    """Says it all in tables."""
    section.say(markdown(["target", "settings"], [[c.name, c.settings] for c in targets]))
    for name, error in comparison.cells.absent.items():
        section.say(f"{name} did not take part: {error}")
    for mix in MIXES:
        rows = [row for row in ROWS if row.mix == mix]
        extra = [("sentence_p99", "p99 of the single sentences, ms", 0)] * (mix == MIXES[1])
        for name, label, digits in [*TABLES, *extra]:
            columns = {row.name: (f"{mix}, {row.name}", name) for row in rows}
            table = comparison.cells.table_by("", columns, digits)
            section.say(f"**{mix}: {label}**\n\n{table}")
    section.say(_against_goals(comparison.cells))
    section.say(
        "A text of 2,000 words is most of the work of its ten, and a measurement of seconds holds "
        "few of them: counted by length, an answer more or less of one weighs what it should. "
        f"Medians of the repeats, with the minimum and the maximum. Failed requests: at most "
        f"{comparison.cells.worst('failed'):.0f} in a cell. The load generator used at most "
        f"{comparison.cells.worst('cpu_share'):.1%} of one core."
    )


def _against_goals(cells: Cells) -> str:
    """This server's throughput over each other's, and whether that meets its goal."""
    rows = [f"{row.mix}, {row.name}" for row in ROWS]
    if OURS not in cells.targets:
        return "This server did not take part."

    def ratio(target: str, row: str) -> str:
        goal = GOAL_USUAL if "batches" in target else GOAL_BEST
        value = cells.median(OURS, row, "work") / cells.median(target, row, "work")
        return f"{value:.2f}" if value >= goal else f"**{value:.2f}**"

    return (
        f"**This server's throughput over each one's** (bold where the goal is missed: "
        f"{GOAL_USUAL} with batches of 8, {GOAL_BEST:g} without)\n\n"
        + cells.table_of("", rows, ratio)
    )


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", help="words, with commas between, that names have")
    parser.add_argument("--engine", default="onnx:fp32", help="of every target, and its precision")
    parser.add_argument("--ours", default="", help="this server's, if another")
    parser.add_argument("--longer", type=float, default=1.0, help="times the usual durations")
    flags = parser.parse_args()
    engine, precision = flags.engine.split(":")
    os.environ |= {ENGINE_VARIABLE: engine, PRECISION_VARIABLE: precision}
    own = flags.ours or flags.engine
    own_engine, own_precision = own.split(":")
    own_flags = ("--inference_engine_type", own_engine, "--precision", own_precision)
    us = ours(OURS, *own_flags, settings=f"its defaults, {own_engine} {own_precision}")
    words = flags.only.split(",")
    targets = [us, *(other for other in PEERS if any(word in other.name for word in words))]
    name = f"peers_{engine}_{precision}"
    title = f"The peers on {engine} {precision}"
    if own != flags.engine:
        name += f"_ours_{own_engine}_{own_precision}"
        title += f", this server on {own_engine} {own_precision}"
    section = Section(name, title, flags, ("mosec", "litserve", "ray", "uvicorn", "starlette"))
    comparison = Comparison(
        flags.model,
        flags.questions_file,
        0.2 if flags.quick else flags.longer,
        unchecked=[OURS] if own != flags.engine else [],
    )
    repeats = 1 if flags.quick else flags.repeats
    comparison.cells.measure(targets, flags.model, repeats, comparison.measure)
    section.raw |= {"cells": comparison.cells.raw(), "absent": comparison.cells.absent}
    report(section, comparison, targets)
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
