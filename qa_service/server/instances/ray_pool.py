"""The pool of a version that has instances on a Ray cluster, with or without local ones.

Remote instances are numbered after the local ones, and come and go with their machines: a pool with
local instances boots without the remote ones, and no pool fails because of them. If their number
has a range, it follows the queue; an instance too many is drained before it ends.

    the queue needs more than GROW_AT_S, none starts     as many more as bring it to GROW_AT_S
    an instance was idle at each look in IDLE_TIMEOUT_S  one less, which finishes its batches first
    else                                                 as many as there are

A remote instance takes seconds or minutes to start, so none is added while one starts.
"""

from __future__ import annotations

import itertools
import logging
import math

from qa_service.server.instances.base import Worker, WorkerState
from qa_service.server.instances.pool import WorkerPool

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
"""Seconds pass before an instance has started, so that looking more often would show no more."""
GROW_AT_S = 1.0
"""How long all instances together may need for the queue; an instance takes longer to start, and
would come too late for a shorter one."""
IDLE_TIMEOUT_S = 60.0
"""After this time without work an instance is removed: several times what one takes to start."""


class Autoscaler:
    """The rule, within bounds from `fewest` to `most`. Sans-IO."""

    def __init__(self, fewest: int, most: int, now_s: float) -> None:
        self._fewest, self._most = fewest, most
        self._needed_s = now_s

    def wanted(
        self, now_s: float, *, remote: int, alive: int, starting: int, idle: int, waiting_s: float
    ) -> int:
        """How many remote instances there should be from now on.

        Args:
            alive: Instances that can take batches, local ones included.
            starting: Remote instances that start, or wait to start again.
        """
        if waiting_s > 0 or not idle:
            self._needed_s = now_s
        missing = math.ceil(waiting_s / GROW_AT_S) - alive
        if missing > 0 and not starting:
            return min(self._most, remote + missing)
        if now_s - self._needed_s >= IDLE_TIMEOUT_S:
            self._needed_s = now_s
            return max(self._fewest, remote - 1)
        return remote


class RayPool(WorkerPool):
    """Keeps local instances alive, and as many remote ones as there is work for."""

    _autoscaler: Autoscaler | None = None

    def resize(self, size: int) -> None:
        super().resize(size)
        fewest, most = self.options.ray_range
        if fewest < most and not self._autoscaler:
            self._autoscaler = Autoscaler(fewest, most, self.loop.now_s())
            self.loop.call_at(self.loop.now_s() + LOOK_INTERVAL_S, self._scale)

    @property
    def _local(self) -> range:
        return range(min(self.size, self.options.num_inference_sessions))

    def _is_needed(self, worker: Worker) -> bool:
        return super()._is_needed(worker) and (worker.number in self._local or not self._local)

    def _scale(self) -> None:
        if self._is_closed or not self._autoscaler:
            return
        remote = [worker for worker in self.workers if worker.number not in self._local]
        there = [w for w in remote if w.state is WorkerState.READY and not w.is_leaving]
        wanted = len(self._wanted) - len(self._local)
        change = -wanted + self._autoscaler.wanted(
            self.loop.now_s(),
            remote=wanted,
            alive=self.alive,
            starting=wanted - len(there),
            idle=sum(worker.is_idle for worker in there),
            waiting_s=self.batches.waiting_s,
        )
        if self.size < self.options.num_instances:
            change = 0  # the pool still grows, or another version is replacing this one
        if change:
            logger.info(
                "%sinstances on Ray: %+d; %.1f s of work wait",
                self._prefix,
                change,
                self.batches.waiting_s,
            )
        for _ in range(change):
            taken = {*self._wanted, *(worker.number for worker in self.workers)}
            number = next(n for n in itertools.count(len(self._local)) if n not in taken)
            self._wanted.add(number)
            self._child(number).try_start()
        for _ in range(-change):
            self._drop(max(self._wanted))
        self.loop.call_at(self.loop.now_s() + LOOK_INTERVAL_S, self._scale)
