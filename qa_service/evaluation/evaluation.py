"""Measures prepared models with the server's engines.

The model runs once over the dev file; its logits are kept, so that each further setting of the
reading (temperature, threshold, longest answer) only decodes them again.

A model's reading settings are chosen on dev questions (`calibrate`): length penalty, temperature,
threshold. Each is nearly independent of the next, so they are chosen in turn: the penalty on long
answers by F1, the temperature by calibration error (temperature scaling; Guo et al. 2017), and the
threshold by the cost of abstention.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.errors import SetupError
from qa_service.evaluation.measures import (
    Metrics,
    abstained_percent,
    best_answers,
    calibration_error,
    right_near,
    squad_metrics,
    unanswerable_questions,
)
from qa_service.instance.arrays import Int64Array, Logits, LogitsFunction
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.model_folder.manifest import Manifest, ReadingConfig, load_manifest
from qa_service.instance.reader.reader import Reader

_LIMITS = BatchRule(max_batch_size=16, max_batch_tokens=4096)
"""Bounds a batch's memory; its size changes no answer."""
_MAX_ANSWER_TOKENS = 20
"""Most of SQuAD's answers are shorter, but people want longer ones too."""

_LENGTH_PENALTIES = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
_TEMPERATURES = tuple(step / 10 for step in range(3, 25))
_THRESHOLDS = tuple(step / 4 for step in range(-40, 61))
"""In logits. Their steps bound how often the dev questions are read again."""


def remembered(logits: LogitsFunction) -> LogitsFunction:
    """The same logits; the model runs once for each different batch."""
    seen: dict[tuple[tuple[int, ...], bytes], Logits] = {}

    def look_up(ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        key = ids.shape, np.stack((ids, mask, types)).tobytes()
        if key not in seen:
            seen[key] = logits(ids, mask, types)
        return seen[key]

    return look_up


@dataclass(frozen=True, slots=True)
class DevSet:
    """Questions to measure on; the texts of the `unanswerable` ones do not answer them."""

    answerable: Sequence[SquadQuestion]
    unanswerable: Sequence[SquadQuestion]

    @classmethod
    def read(cls, paths: Sequence[Path]) -> DevSet:
        """Reads SQuAD files; each answerable question with another text of them is unanswerable.

        Raises:
            SetupError: A file cannot be read, or no question in them has an answer.
        """
        try:
            questions = [question for path in paths for question in read_squad(path)]
        except (OSError, ValueError) as error:
            raise SetupError(f"a file of questions cannot be read: {error}") from None
        answerable = [q for q in questions if q.answers and not q.is_impossible]
        if not answerable:
            raise SetupError(f"no question with an answer in {', '.join(map(str, paths))}")
        impossible = [question for question in questions if question.is_impossible]
        return cls(answerable, [*impossible, *unanswerable_questions(answerable)])

    def sample(self, most: int) -> DevSet:
        """At most this many questions of each kind, always the same ones."""
        rng = random.Random(0)
        kinds = (self.answerable, self.unanswerable)
        return DevSet(*(rng.sample(kind, min(most, len(kind))) for kind in kinds))

    def __str__(self) -> str:
        marked = sum(question.is_impossible for question in self.unanswerable)
        return (
            f"{len(self.answerable)} answerable questions, {len(self.unanswerable)} unanswerable: "
            f"{marked} marked is_impossible, {len(self.unanswerable) - marked} put to another text"
        )


class PreparedModel:
    """A prepared model in an engine, which can be read with any settings.

    Raises:
        SetupError: There is no prepared model, or the engine cannot load it.
    """

    def __init__(
        self, model_dir: Path, engine_type: str, num_threads: int, precision: str = "fp32"
    ) -> None:
        self.manifest: Manifest = load_manifest(model_dir)
        self._model_dir = model_dir
        config = EngineConfig(intra_op_num_threads=num_threads, precision=precision)
        engine = make_engine(engine_type, model_dir, self.manifest, config)
        self._logits = remembered(engine.logits)

    def reader(self, reading: ReadingConfig) -> Reader:
        manifest = msgspec.structs.replace(self.manifest, reading=reading)
        return Reader(self._model_dir, manifest, self._logits, _LIMITS)


def measure(model: PreparedModel, dev: DevSet, reading: ReadingConfig) -> Metrics:
    """Measures a model with reading settings.

    `exact_match`, `f1`, `calibration_error` and `right_near_0.8` are of answerable questions with
    abstention off; with it, if the model abstains, are `f1_abstaining` and the percentage of "no
    answer" on answerable (`given_up`) and on unanswerable questions (`caught`).
    """
    answers = best_answers(model.reader(never_abstaining(reading)), dev.answerable)
    metrics = squad_metrics(answers, dev.answerable)
    metrics["calibration_error"] = calibration_error(answers, dev.answerable)
    metrics["right_near_0.8"] = right_near(0.8, answers, dev.answerable)
    if reading.null_threshold is not None:
        reader = model.reader(reading)
        answers = best_answers(reader, dev.answerable)
        metrics["f1_abstaining"] = squad_metrics(answers, dev.answerable)["f1"]
        metrics["given_up"] = abstained_percent(answers)
        metrics["caught"] = abstained_percent(best_answers(reader, dev.unanswerable))
    return metrics


def never_abstaining(reading: ReadingConfig) -> ReadingConfig:
    """The same reading, the null answer in the sum, but always with the best span."""
    if reading.null_threshold is None:
        return reading
    return msgspec.structs.replace(reading, null_threshold=-math.inf)


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


def highest_threshold(
    reading: ReadingConfig, f1: Callable[[ReadingConfig], float], least_f1: float
) -> ReadingConfig:
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
