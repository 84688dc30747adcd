"""How many remote instances there should be: more as the queue's cost grows, fewer when idle.

    waiting work takes over GROW_AT_S, nothing starts   as many more as would do it in GROW_AT_S
    an instance was idle at each look of a whole while   one less; what it runs, it finishes
    else                                                 as many as there are

Sans-IO. A remote instance takes seconds or minutes to start, so nothing more is asked for until
those that start are there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LOOK_INTERVAL_S = 1.0
GROW_AT_S = 1.0
"""How long all instances together may need for what waits."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a look at a pool finds.

    Attributes:
        remote: Remote instances that there are to be now.
        alive: Instances that can take batches, local ones among them.
        starting: Remote instances that start, or wait to start again.
        idle: Remote instances that have nothing to do.
        waiting_s: How long one instance would need for what waits, in seconds.
    """

    remote: int
    alive: int
    starting: int
    idle: int
    waiting_s: float


class Autoscaler:
    """The rule.

    Args:
        fewest: Remote instances that are kept however little there is to do.
        most: Remote instances at most.
        idle_timeout_s: How long one must have been idle before there is one less.
        now_s: The time.
    """

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
