"""Where the time of an instance goes, in seconds that only grow.

The instance measures, and each message with results brings what it has spent since the one before.
"""

from __future__ import annotations

import math

from qa_service.instance.worker_messages import Results


class InstanceTimes:
    """The times of one instance, of all the processes that it has had.

    Attributes:
        seconds: By activity: `waiting` while it held no batch, then the stages, which overlap with
            an accelerator; `lock` is a part of them. The rest is messages, hooks and self-tests.
    """

    def __init__(self) -> None:
        self.seconds = {"waiting": 0.0, "tokenize": 0.0, "model": 0.0, "read": 0.0, "lock": 0.0}
        self.num_batches = self.num_requests = 0
        self._ready_s = 0.0
        self._since_s = math.inf

    def begin(self, now_s: float) -> None:
        self._since_s = now_s

    def end(self, now_s: float) -> None:
        self._ready_s, self._since_s = self.ready_s(now_s), math.inf

    def add(self, results: Results) -> None:
        stages, seconds = results.stages_ms, self.seconds
        seconds["waiting"] += results.waited_ms / 1e3
        seconds["tokenize"] += stages.tokenize / 1e3
        seconds["model"] += stages.model / 1e3
        seconds["read"] += stages.read / 1e3
        seconds["lock"] += stages.lock / 1e3
        self.num_batches += 1
        self.num_requests += len(results.outcomes)

    def ready_s(self, now_s: float) -> float:
        """How long it has been ready, in all."""
        return self._ready_s + max(0.0, now_s - self._since_s)

    def report(self, now_s: float, idle_since_s: float) -> dict[str, object]:
        """Its part of the reply to a `stats` query.

        Args:
            idle_since_s: Since when it has held no batch; infinity if it holds one.
        """
        waiting_s = self.seconds["waiting"] + max(0.0, now_s - idle_since_s)
        seconds = {"ready": self.ready_s(now_s), **self.seconds, "waiting": waiting_s}
        return {
            "seconds": {name: round(spent_s, 6) for name, spent_s in seconds.items()},
            "batches": self.num_batches,
            "requests": self.num_requests,
        }
