"""Chooses a model's reading settings on dev questions: length penalty, temperature, threshold.

Each is nearly independent of the next, so they are chosen in turn: the penalty on long answers by
F1, the temperature by calibration error (temperature scaling; Guo et al. 2017), and the threshold
by the cost of abstention.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

import msgspec

from qa_service.evaluation.evaluation import DevSet, PreparedModel
from qa_service.evaluation.measures import best_answers, calibration_error, squad_metrics
from qa_service.instance.model_folder.manifest import ReadingConfig

_MAX_ANSWER_TOKENS = 20
"""Most of SQuAD's answers are shorter, but people want longer ones too."""

_LENGTH_PENALTIES = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
_TEMPERATURES = tuple(step / 10 for step in range(3, 25))
_THRESHOLDS = tuple(step / 4 for step in range(-40, 61))
"""In logits. Their steps bound how often the dev questions are read again."""

Measure = Callable[[ReadingConfig], float]


def calibrate(
    model: PreparedModel, dev: DevSet, reading: ReadingConfig, max_cost_f1: float | None
) -> ReadingConfig:
    """Chooses the settings that depend on the model, on the answerable questions of `dev`.

    `max_cost_f1` is how many points of F1 abstention may cost; the highest threshold within that is
    taken. None for a model that cannot abstain.
    """

    def f1(tried: ReadingConfig) -> float:
        answers = best_answers(model.reader(tried), dev.answerable)
        return squad_metrics(answers, dev.answerable)["f1"]

    def error(tried: ReadingConfig) -> float:
        answers = best_answers(model.reader(tried), dev.answerable)
        return calibration_error(answers, dev.answerable)

    threshold = None if max_cost_f1 is None else -math.inf
    reading = msgspec.structs.replace(
        reading, max_answer_tokens=_MAX_ANSWER_TOKENS, null_threshold=threshold, temperature=1.0
    )
    reading = max(_with_each(reading, "length_penalty", _LENGTH_PENALTIES), key=f1)
    reading = min(_with_each(reading, "temperature", _TEMPERATURES), key=error)
    if max_cost_f1 is None:
        return reading
    return highest_threshold(reading, f1, f1(reading) - max_cost_f1)


def highest_threshold(reading: ReadingConfig, f1: Measure, least_f1: float) -> ReadingConfig:
    """Finds the highest threshold that keeps enough F1, by bisection: F1 falls as it rises.

    Raises:
        ValueError: Even the lowest threshold costs too much.
    """
    tried = _with_each(reading, "null_threshold", _THRESHOLDS)
    too_high = bisect.bisect_left(tried, True, key=lambda setting: f1(setting) < least_f1)
    if too_high == 0:
        raise ValueError(f"the model abstains too often even at {_THRESHOLDS[0]}")
    return tried[too_high - 1]


def _with_each(reading: ReadingConfig, field: str, values: Sequence[float]) -> list[ReadingConfig]:
    return [msgspec.structs.replace(reading, **{field: value}) for value in values]
