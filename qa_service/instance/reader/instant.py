"""Answers at once with the text's first word, to measure the server without a model.

It is chosen by `--inference_engine_type instant`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.stages import Stopwatch
from qa_service.instance.worker_messages import Answers, ModelFacts
from qa_service.wire.messages import Answer, Task
from qa_service.wire.spans import NO_ANSWER, ScoredSpan, SegmentResult


class InstantReader:
    """Replaces a `Reader`, without tokenizer and model; no text is too long for it."""

    def __init__(self, rule: BatchRule) -> None:
        self.model = ModelFacts("instant", window_tokens=1 << 30)
        self.rule = rule

    def encode(self, tasks: Sequence[Task], stopwatch: Stopwatch) -> Sequence[Task]:
        return tasks

    def score(self, encoded: Sequence[Task], stopwatch: Stopwatch) -> Sequence[Task]:
        return encoded

    def find(self, scored: Sequence[Task], stopwatch: Stopwatch) -> list[Answers | SegmentResult]:
        stopwatch.start()
        outcomes: list[Answers | SegmentResult] = []
        for task in scored:
            start, end = task.core or (0, len(task.text))
            found = first_word(task.text[start:end])
            if task.core is None:
                outcomes.append(Answers([found]))
            elif found.start is None or found.end is None:
                outcomes.append(SegmentResult([], -math.inf, 0))
            else:
                span = ScoredSpan(0.0, start + found.start, start + found.end)
                outcomes.append(SegmentResult([span], 0.0, 0))
        stopwatch.lap("read")
        return outcomes


def first_word(text: str) -> Answer:
    """The text's first word, or no answer if it has none."""
    words = text.split(maxsplit=1)
    if not words:
        return NO_ANSWER
    start = text.index(words[0])
    return Answer(words[0], 1.0, start, start + len(words[0]))
