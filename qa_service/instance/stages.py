"""The stages of a batch in an instance, and their times."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

Stage = Literal["tokenize", "model", "read"]


class StagesMs(msgspec.Struct, frozen=True, array_like=True):
    """Milliseconds by stage.

    Attributes:
        tokenize: Questions and texts to windows of tokens.
        model: Padding the windows and running the model.
        read: Answers from the model's logits.
    """

    tokenize: float = 0.0
    model: float = 0.0
    read: float = 0.0


class Stopwatch:
    """Adds up the time of stages that follow each other, until it is taken."""

    def __init__(self) -> None:
        self._stages_s: dict[Stage, float] = {}
        self._lap_s = 0.0

    def start(self) -> None:
        """Starts the first stage."""
        self._lap_s = time.monotonic()

    def lap(self, stage: Stage) -> None:
        """Ends a stage and starts the next."""
        now_s = time.monotonic()
        self._stages_s[stage] = self._stages_s.get(stage, 0.0) + now_s - self._lap_s
        self._lap_s = now_s

    def take(self) -> StagesMs:
        """Returns the times and resets them to zero."""
        stages_s, self._stages_s = self._stages_s, {}
        return StagesMs(**{stage: round(s * 1e3, 3) for stage, s in stages_s.items()})
