"""Computes the quality and cost of a cascade for a range of `min_score`.

Every model answers every question once, alone; a cascade then only chooses among the answers. A
model's cost is its processor time for a question, relative to the last model, the best.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qa_service.data.squad import SquadQuestion
from qa_service.evaluation.evaluation import PreparedModel
from qa_service.evaluation.measures import abstained_percent, best_answers, squad_metrics
from qa_service.wire.messages import Answer

MIN_SCORES = tuple(step / 20 for step in range(21))
"""The whole range of scores, in steps that a plot can label."""
_INCHES = (7.0, 5.0)
_COLOURS = ("#0072b2", "#d55e00")


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One model's answers to all questions; `seconds` is the processor time of `answers`."""

    answers: Sequence[Answer]
    to_unanswerable: Sequence[Answer]
    seconds: float


@dataclass(frozen=True, slots=True)
class CascadePoint:
    """A cascade with one `min_score`.

    Attributes:
        passed_on: Percent of the answerable questions that the first model passed on.
        f1: On the answerable questions, in percent.
        caught: Percent of the unanswerable questions that got no answer.
        cost: Of the answerable questions, relative to the last model alone.
        gain: The share, 0 to 1, of the last model's gain in F1 over the first.
    """

    min_score: float
    passed_on: float
    f1: float
    caught: float
    cost: float
    gain: float


def run_model(
    model: PreparedModel, answerable: Sequence[SquadQuestion], unanswerable: Sequence[SquadQuestion]
) -> ModelRun:
    """Answers all questions with a model, read as it is served."""
    reader = model.reader(model.manifest.reading)
    best_answers(reader, answerable[:8])  # the first run allocates
    began = time.process_time()
    answers = best_answers(reader, answerable)
    seconds = time.process_time() - began
    return ModelRun(answers, best_answers(reader, unanswerable), seconds)


def sweep(
    runs: Sequence[ModelRun],
    questions: Sequence[SquadQuestion],
    min_scores: Iterable[float],
    *,
    ask_next_if_unknown: bool = False,
) -> Iterator[CascadePoint]:
    """Yields the point of each `min_score`; both options are a route's."""

    def stop(answers: Sequence[Answer], min_score: float) -> int:
        """The index of the model whose answer counts."""
        sure = (one.is_sure(min_score, if_unknown=not ask_next_if_unknown) for one in answers)
        return next((i for i, ends in enumerate(sure) if ends), len(answers) - 1)

    first_f1, last_f1 = (squad_metrics(r.answers, questions)["f1"] for r in (runs[0], runs[-1]))
    rows = list(zip(*(run.answers for run in runs), strict=True))
    unanswerable = list(zip(*(run.to_unanswerable for run in runs), strict=True))
    for min_score in min_scores:
        stops = [stop(row, min_score) for row in rows]
        f1 = squad_metrics([row[i] for row, i in zip(rows, stops, strict=True)], questions)["f1"]
        shares = [sum(i >= number for i in stops) / len(stops) for number in range(len(runs))]
        seconds = sum(share * run.seconds for share, run in zip(shares, runs, strict=True))
        yield CascadePoint(
            min_score=min_score,
            passed_on=100 * shares[1],
            f1=f1,
            caught=abstained_percent([row[stop(row, min_score)] for row in unanswerable]),
            cost=seconds / runs[-1].seconds,
            gain=(f1 - first_f1) / (last_f1 - first_f1) if last_f1 != first_f1 else math.nan,
        )


def draw(points: Sequence[CascadePoint], path: Path) -> None:
    """Draws F1 against cost, and for comparison random choices of the questions passed on."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only --plot needs it

    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    costs, f1s = [point.cost for point in points], [point.f1 for point in points]
    axes.plot(costs, f1s, "o-", color=_COLOURS[0], markersize=4, label="cascade, by min_score")
    for point in points[:: max(1, len(points) // 10)]:
        axes.annotate(
            f"{point.min_score:g}", (point.cost, point.f1), (4, -10), fontsize=8,
            textcoords="offset points",
        )  # fmt: skip
    ends = ([costs[0], costs[-1]], [f1s[0], f1s[-1]])
    axes.plot(*ends, "--", color=_COLOURS[1], label="as many passed on at random")
    axes.set_xlabel("cost of a question (1: the last model alone)")
    axes.set_ylabel("F1")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
