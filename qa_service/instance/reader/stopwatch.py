"""Measures a batch's time in an instance by stage."""

from __future__ import annotations

import time

from qa_service.instance.stages import Stage, StagesMs


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
