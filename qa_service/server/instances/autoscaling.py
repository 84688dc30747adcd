"""How many remote instances there should be: more as the queue's cost grows, fewer when idle.

    the queue needs more than GROW_AT_S, none starts     as many more as bring it to GROW_AT_S
    an instance was idle at each look in idle_timeout_s  one less, which finishes its batches first
    else                                                 as many as there are

Sans-IO. A remote instance takes seconds or minutes to start, so the number does not grow while one
is starting.
"""

from __future__ import annotations

import math

LOOK_INTERVAL_S = 1.0
"""Seconds pass before an instance has started, so that looking more often would show no more."""
GROW_AT_S = 1.0
"""How long all instances together may need for the queue; an instance takes longer to start, and
would come too late for a shorter one."""


class Autoscaler:
    """The rule, within bounds from `fewest` to `most`."""

    def __init__(self, fewest: int, most: int, idle_timeout_s: float, now_s: float) -> None:
        self._fewest, self._most = fewest, most
        self._idle_timeout_s = idle_timeout_s
        self._needed_s = now_s

    def wanted(
        self, now_s: float, *, remote: int, alive: int, starting: int, idle: int, waiting_s: float
    ) -> int:
        """How many remote instances there should be from now on.

        Args:
            alive: Instances that can take batches, local ones included.
            starting: Remote instances that start, or wait to start again.
            idle: Remote instances without a batch.
            waiting_s: How long one instance would need for the queue.
        """
        if waiting_s > 0 or not idle:
            self._needed_s = now_s
        missing = math.ceil(waiting_s / GROW_AT_S) - alive
        if missing > 0 and not starting:
            return min(self._most, remote + missing)
        if now_s - self._needed_s >= self._idle_timeout_s:
            self._needed_s = now_s
            return max(self._fewest, remote - 1)
        return remote
