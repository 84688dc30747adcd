"""This server compared with mosec, LitServe and the prototype's design.

    python -m benchmarks.peers --questions_file dev.json

Every target serves the same model through the same reading code in two instances of one thread,
over its own protocol. Each repeat starts each of them again, one after another, and puts
all rows to it; the order of targets moves on by one from repeat to repeat. Before the first
of its rows its answers are held against those of the reading code called directly. With
`--engine onnx:int8` all of them compute with that engine and precision; with `--ours onnx:int8`
this server alone, measured with theirs (ONNX Runtime in float32) too.
`--mixes paragraphs --clients 20 50 --only "mosec, no batching" --only LitServe` measures a part.
The extra `peers` installs the peers; one that is missing is reported, the others go on.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import Cells, Item, measure, mixed, uniform
from benchmarks.record import Section, make_parser, markdown
from benchmarks.servers.reading import ENGINE_VARIABLE, PRECISION_VARIABLE, answers, warm_reader
from benchmarks.targets import LITSERVE, MOSEC, NotStartedError, Running, Target, ours, peer
from harness.server import engine_flags
from qa_service.data.squad import read_squad
from qa_service.programs.load.wire import QaWire
from qa_service.wire.messages import Question

OURS = "this server"
USUAL = "as documented: batches of 8, 10 ms for batch members"
GOALS = {"work": ("throughput", 0.97), "p99": ("p99", 1.2)}
"""Figures of this server over each other's: 3 % behind in throughput at most, 20 % in p99."""

WARMUP_BURSTS, BURST_S, PAUSE_S, WARMUP_CLIENTS = 30, 1.0, 0.5, 20
"""Before a target's first row: in each pause an OpenVINO instance compiles the model for the length
that has become frequent. At full load that takes half a minute, and longer in a peer, whose
instances have the priority of all else."""

COLD, WARM, COLD_S = "cold", "warm", 10.0
"""The same load in a target's first seconds, and after the warmup."""

CHECKED = 6
"""Answers of each mix that are compared with direct ones: enough to notice another model."""

QUESTIONS_APART = 97
"""How many questions later each repeat begins, so that no two ask the same first."""

PEERS = [
    peer("mosec, batches of 8", "mosec_server", MOSEC, "--batch", "8", settings=USUAL),
    peer("mosec, no batching", "mosec_server", MOSEC, settings="at its best here"),
    peer(
        "LitServe, batches of 8", "litserve_server", LITSERVE,
        "--batch", "8", "--wait_ms", "10", settings=USUAL,
    ),
    peer("LitServe, no batching", "litserve_server", LITSERVE, settings="at its best here"),
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
    def column(self) -> str:
        return f"{self.clients} client{'s' * (self.clients > 1)}"

    @property
    def name(self) -> str:
        return f"{self.mix}, {self.column}"


MIXES = {"paragraphs": uniform, "mixed": mixed}
ROWS = [
    Row("paragraphs", 1, 0.3, 4.0),
    Row("paragraphs", 5, 0.5, 6.0),
    Row("paragraphs", 20, 1.0, 9.0),
    Row("paragraphs", 50, 1.5, 9.0),
    Row("mixed", 1, 0.3, 4.0),
    Row("mixed", 5, 0.5, 6.0),
    Row("mixed", 20, 1.0, 9.0),
    Row("mixed", 50, 1.5, 12.0),
]
"""A p99 needs some 1,000 answers: 9 s of paragraphs on two cores."""

TABLES = [
    ("work", "answers/s, each counted by its length over the mean", 1),
    ("p50", "p50, ms", 0),
    ("p99", "p99, ms", 0),
    ("cpu_ms", "processor time an answer, all processes of a server, ms", 1),
]


class Comparison:
    def __init__(
        self,
        model: Path,
        questions_file: Path,
        rows: Sequence[Row],
        longer: float,
        unchecked: Sequence[str] = (),
    ) -> None:
        questions = read_squad(questions_file)
        self._model = model
        self.rows = rows
        self._longer = longer
        self._unchecked = unchecked
        self._items = {row.mix: MIXES[row.mix](questions) for row in rows}
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
        """Puts the rows to a target; before the first, checks that it gives the same answers."""
        if not repeat and server.target.name not in self._unchecked:
            self._check(server)
        first = self._items[self.rows[0].mix]
        self._load(COLD, server, first)
        for burst in range(WARMUP_BURSTS):
            begins = burst * QUESTIONS_APART
            measure(server, first, WARMUP_CLIENTS, 0.0, BURST_S * self._longer, first=begins)
            time.sleep(PAUSE_S)
        self._load(WARM, server, first)
        for row in self.rows:
            kept = measure(
                server,
                self._items[row.mix],
                row.clients,
                row.warmup_s * self._longer,
                row.duration_s * self._longer,
                first=repeat * QUESTIONS_APART,
            )
            self.cells.add(server.target.name, row.name, kept)

    def _load(self, name: str, server: Running, items: Sequence[Item]) -> None:
        kept = measure(server, items, WARMUP_CLIENTS, 0.0, COLD_S * self._longer)
        self.cells.add(server.target.name, name, kept)

    def _check(self, server: Running) -> None:
        """Compares a target's answers with those of the reading code.

        Raises:
            NotStartedError: One differs.
        """
        for item, expected in zip(self._sample(), self._expected, strict=True):
            reply = server.ask(item.asked)
            if reply.code or (reply.answer, reply.start, reply.end) != expected:
                raise NotStartedError(f"answers {reply!r}, not {expected!r}")


def report(section: Section, comparison: Comparison, targets: Sequence[Target]) -> None:
    cells, rows = comparison.cells, comparison.rows
    section.say(markdown(["target", "settings"], [[c.name, c.settings] for c in targets]))
    cells.say_absent(section)
    for mix in dict.fromkeys(row.mix for row in rows):
        extra = [("sentence_p99", "p99 of the single sentences, ms", 0)] * (mix == "mixed")
        for name, label, digits in [*TABLES, *extra]:
            columns = {row.column: (row.name, name) for row in rows if row.mix == mix}
            table = cells.table_by("", columns, digits)
            section.say(f"**{mix}: {label}**\n\n{table}")
    speeds = {name: (name, "throughput") for name in (COLD, WARM)}
    section.say(
        f"**answers/s of {rows[0].mix} by {WARMUP_CLIENTS} clients, in the first {COLD_S:.0f} s "
        f"and after the warmup**\n\n{cells.table_by('', speeds)}"
    )
    for figure in GOALS:
        section.say(against_goal(cells, rows, figure))
    section.say(
        "A text of 2,000 words is most of the work of its ten, and a measurement of seconds holds "
        "few of them: counted by length, an answer more or less of one weighs what it should. "
        f"Medians of the repeats, with the minimum and the maximum. Failed requests: at most "
        f"{cells.worst('failed'):.0f} in a cell. The load generator used at most "
        f"{cells.worst('cpu_share'):.1%} of one core."
    )


def against_goal(cells: Cells, rows: Sequence[Row], figure: str) -> str:
    """A figure of this server over each other's; bold where it misses its goal."""
    if OURS not in cells.raw:
        return "This server did not take part."
    label, goal = GOALS[figure]

    def ratio(target: str, row: str) -> str:
        theirs = cells.median(target, row, figure)
        if not theirs > 0:  # nothing was answered, or the target was absent
            return "-"
        value = cells.median(OURS, row, figure) / theirs
        is_met = value <= goal if figure == "p99" else value >= goal
        return f"{value:.2f}" if is_met else f"**{value:.2f}**"

    names = [row.name for row in rows]
    others = [target for target in cells.raw if target != OURS]
    lines = [[target, *[ratio(target, row) for row in names]] for target in others]
    bound = "most" if figure == "p99" else "least"
    return (
        f"**This server's {label} over each one's** (goal: at {bound} {goal:g}; bold where it is "
        f"missed)\n\n{markdown(['', *names], lines)}"
    )


def make_flags() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    clients = sorted({row.clients for row in ROWS})
    add = parser.add_argument
    add("--only", action="append", help="only peers with this in their name; may be repeated")
    add("--mixes", nargs="+", choices=tuple(MIXES), default=tuple(MIXES), help="what is asked")
    add("--clients", nargs="+", type=int, choices=clients, default=clients, help="how many ask")
    add("--engine", default="onnx:fp32", help="of every target, and its precision")
    add("--ours", default="", help="this server's, if another")
    add("--longer", type=float, default=1.0, help="times the usual durations")
    return parser


def _ours_on(name: str, engine_and_precision: str) -> Target:
    settings = f"its defaults, {engine_and_precision.replace(':', ' ')}"
    return ours(name, *engine_flags(engine_and_precision), settings=settings)


def main() -> None:
    flags = make_flags().parse_args()
    engine, precision = flags.engine.split(":")
    os.environ |= {ENGINE_VARIABLE: engine, PRECISION_VARIABLE: precision}
    own = flags.ours or flags.engine
    own_engine, own_precision = own.split(":")
    words = flags.only or [""]
    targets = [
        _ours_on(OURS, own),
        *([] if own == flags.engine else [_ours_on(f"{OURS} on {flags.engine}", flags.engine)]),
        *(other for other in PEERS if any(word in other.name for word in words)),
    ]
    name = f"peers_{engine}_{precision}"
    title = f"The peers on {engine} {precision}"
    if own != flags.engine:
        name += f"_ours_{own_engine}_{own_precision}"
        title += f", this server on {own_engine} {own_precision}"
    if len(flags.mixes) < len(MIXES):
        name += f"_{'_'.join(flags.mixes)}"
    section = Section(name, title, flags, ("mosec", "litserve", "uvicorn", "starlette"))
    comparison = Comparison(
        flags.model,
        flags.questions_file,
        [row for row in ROWS if row.mix in flags.mixes and row.clients in flags.clients],
        0.2 if flags.quick else flags.longer,
        unchecked=[OURS] if own != flags.engine else [],
    )
    repeats = 1 if flags.quick else flags.repeats
    comparison.cells.measure(targets, flags.model, repeats, comparison.measure)
    report(section, comparison, targets)
    section.close()


if __name__ == "__main__":
    main()
