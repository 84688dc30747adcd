"""How many remote instances there should be: more as the queue's cost grows, fewer when idle.

    the queue needs more than GROW_AT_S, none starts     as many more as bring it to GROW_AT_S
    an instance was idle at each look in idle_timeout_s  one less, which finishes its batches first
    else                                                 as many as there are

Sans-IO. A remote instance takes seconds or minutes to start, so the number does not grow while one
is starting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LOOK_INTERVAL_S = 1.0
"""Seconds pass before an instance has started, so that looking more often would show no more."""
GROW_AT_S = 1.0
"""How long all instances together may need for the queue; an instance takes longer to start, and
would come too late for a shorter one."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A pool at one moment.

    Attributes:
        remote: Remote instances that are wanted now.
        alive: Instances that can take batches, local ones included.
        starting: Remote instances that start, or wait to start again.
        idle: Remote instances without a batch.
        waiting_s: How long one instance would need for the queue.
    """

    remote: int
    alive: int
    starting: int
    idle: int
    waiting_s: float


class Autoscaler:
    """The rule, within bounds from `fewest` to `most`."""

    def __init__(self, fewest: int, most: int, idle_timeout_s: float, now_s: float) -> None:
        self._fewest, self._most = fewest, most
        self._idle_timeout_s = idle_timeout_s
        self._needed_s = now_s

    def wanted(self, found: Situation, now_s: float) -> int:
        """How many remote instances there should be from now on."""
        if found.waiting_s > 0 or not found.idle:
            self._needed_s = now_s
        missing = math.ceil(found.waiting_s / GROW_AT_S) - found.alive
        if missing > 0 and not found.starting:
            return min(self._most, found.remote + missing)
        if now_s - self._needed_s >= self._idle_timeout_s:
            self._needed_s = now_s
            return max(self._fewest, found.remote - 1)
        return found.remote
