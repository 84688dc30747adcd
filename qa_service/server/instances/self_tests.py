"""When the instances of a pool prove themselves while they serve.

Each is due again when its last proof is `self_test_interval_s` old. One at a time is tested, so
that the others answer meanwhile: an idle one if one that is due is idle, else the one that is due
longest, behind the batch that it holds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qa_service.logs import plural
from qa_service.net.timers import Clock, LazyTimer
from qa_service.server.instances.base import Worker
from qa_service.server.telemetry.metrics import FAILED, PASSED, ModelMetrics

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class SelfTests:
    """Tests the instances in turn, and counts the results.

    Args:
        interval_s: 0 for no tests.
    """

    clock: Clock
    interval_s: float
    workers: Callable[[], Iterable[Worker]]
    metrics: ModelMetrics
    prefix: str

    def __post_init__(self) -> None:
        self.interval_s = self.interval_s or math.inf
        self._has_due = False
        self._timer = LazyTimer(self.clock, self.look)

    def look(self) -> None:
        """Tests an instance that is due; if none is, looks again when the next will be."""
        workers = [one for one in self.workers() if one.ready and one.ready.can_test]
        now_s = self.clock.now_s()
        due = [worker for worker in workers if worker.tested_s + self.interval_s <= now_s]
        self._has_due = bool(due)
        if not due:
            due_s = min((worker.tested_s for worker in workers), default=math.inf)
            self._timer.arm(due_s + self.interval_s)
        elif not any(worker.is_in_test for worker in workers):
            able = [worker for worker in due if worker.can_be_tested]
            if able:
                min(able, key=lambda worker: (not worker.is_idle, worker.tested_s)).test()

    def on_results(self) -> None:
        """An instance may be able to take a test that it could not take before."""
        if self._has_due:
            self.look()

    def on_passed(self) -> None:
        """Counts a test that an instance has passed; another may be due."""
        self.metrics.self_tests_total[PASSED] += 1
        self.look()

    def on_wrong(self, worker: Worker) -> None:
        """Counts a test that has failed, and says which answers are in doubt."""
        self.metrics.self_tests_total[FAILED] += 1
        if worker.ready:
            logger.error(
                "%sinstance %d has failed its self-test: %s that it gave since the last one that "
                "it passed, %.0f s ago, are in doubt",
                self.prefix,
                worker.number,
                plural(worker.num_answers, "answer"),
                self.clock.now_s() - worker.tested_s,
            )
