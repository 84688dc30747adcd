"""What bounds a server: where its time went between two `stats` reports, in one sentence.

The rule, in this order; shares are of the time between the reports:

1. the loop, if it waited for events for less than 0.1 of the time;
2. the instances of the busiest version, if they were without a batch for less than 0.2: by the
   model, or by their own work (tokenizing, reading, the rest), whichever took more of their time;
3. the clients: nothing is full, so that a server would answer more of them. If the load generator
   had 0.9 of its one core, it is not the number of clients, but this program.

With an accelerator an instance tokenizes and reads while the model runs, so that its shares may add
up to more than 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

LOOP, INSTANCES, MODEL, CLIENTS = "the loop", "the instances' own work", "the model", "the clients"

_LOOP_WAITS, _INSTANCES_WAIT, _GENERATOR_FULL = 0.1, 0.2, 0.9
_LACKS_A_CORE = 0.8
"""A loop that is busy, and on a core for less than this share of that, waits for one."""

_Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InstanceShares:
    """The mean shares of the time of a version's instances.

    Attributes:
        waiting: Without a batch.
        rest: Of the time with a batch, what no stage has: messages, hooks, other work.
        lock: Of their own work, waiting for the interpreter's lock or a core; a part of the others.
    """

    number: int
    waiting: float
    tokenize: float
    model: float
    read: float
    rest: float
    lock: float

    @classmethod
    def of(cls, spent: list[dict[str, float]]) -> Self:
        """The shares, by each instance's seconds."""
        ready_s = sum(one["ready"] for one in spent)
        names = "waiting", "tokenize", "model", "read", "lock"
        shares = {name: sum(one[name] for one in spent) / ready_s for name in names}
        known = sum(shares.values()) - shares["lock"]
        return cls(len(spent), rest=max(0.0, 1.0 - known), **shares)

    def __str__(self) -> str:
        lock = f" (waiting for a lock or a core {self.lock:.2f})" if self.lock >= 0.005 else ""
        return (
            f"waiting {self.waiting:.2f}, tokenizing {self.tokenize:.2f}, model {self.model:.2f}, "
            f"reading {self.read:.2f}, the rest {self.rest:.2f}{lock}"
        )


@dataclass(frozen=True, slots=True)
class Spent:
    """Where a server's time went.

    Attributes:
        loop_cpu: The share of the time that the loop had a core.
        loop_waiting: And waited for events.
        instances: Of the version whose instances waited least; None if none was ready.
        batch_size: The mean number of requests in a batch; NaN without a batch.
        batch_fill: The same as a share of the largest batch.
        queue_ms: The mean time in the queue; NaN without a request.
        gpu_busy: The mean share in which the GPUs computed; None if that is not known.
        gpu_memory: The share of their memory in use.
    """

    loop_cpu: float
    loop_waiting: float
    instances: InstanceShares | None
    batch_size: float = math.nan
    batch_fill: float = math.nan
    queue_ms: float = math.nan
    gpu_busy: float | None = None
    gpu_memory: float | None = None

    @classmethod
    def between(cls, before: _Report, after: _Report) -> Self | None:
        """By two reports, the first of which may be empty; None if they do not say."""
        if not after.get("loop") or not after.get("gauges", {}).get("uptime_s"):
            return None
        past_s = _change(before, after, "gauges", "uptime_s")
        if past_s <= 0.0:
            return None
        batches = _change(before, after, "histograms", "batch_size", "count")
        requests = _change(before, after, "histograms", "batch_size", "sum")
        queued = _change(before, after, "histograms", "queue_ms", "count")
        queue_ms = _change(before, after, "histograms", "queue_ms", "sum")
        size = requests / batches if batches else math.nan
        most = max((one["max_batch_size"] for one in after["sessions"]), default=math.nan)
        return cls(
            _change(before, after, "loop", "cpu") / past_s,
            _change(before, after, "loop", "waiting") / past_s,
            _busiest(before, after),
            size,
            size / most,
            queue_ms / queued if queued else math.nan,
            *_gpus(before, after, past_s),
        )

    def bound(self) -> str:
        """What bounds the server: `LOOP`, `INSTANCES`, `MODEL` or `CLIENTS`."""
        if self.loop_waiting < _LOOP_WAITS:
            return LOOP
        its = self.instances
        if its and its.waiting < _INSTANCES_WAIT:
            own_work = its.tokenize + its.read + its.rest
            return MODEL if its.model >= own_work else INSTANCES
        return CLIENTS

    def sentence(self, generator_cores: float = 0.0) -> str:
        """The same with its figures; `generator_cores` is what the load generator had of a core."""
        bound, its, why = self.bound(), self.instances, ""
        if bound == LOOP:
            busy, why = 1.0 - self.loop_waiting, f" ({self.loop_cpu:.2f} of a core)"
            if self.loop_cpu < _LACKS_A_CORE * busy:
                why = f", which lacks a core (busy {busy:.2f}, on a core {self.loop_cpu:.2f})"
        elif bound == MODEL and its:
            of = "an instance's time" if its.number == 1 else f"{its.number} instances' time"
            gpu = f"; the GPU computes {self.gpu_busy:.2f} of it" if self.gpu_busy else ""
            why = f" ({its.model:.2f} of {of}{gpu})"
        elif bound == INSTANCES and its:
            parts = {"tokenizing": its.tokenize, "reading": its.read, "the rest": its.rest}
            own = ", ".join(f"{name} {part:.2f}" for name, part in parts.items() if part >= 0.005)
            lock = f"; of it waiting for a lock or a core {its.lock:.2f}" if its.lock > 0.1 else ""
            why = f" ({own}{lock})"
        elif generator_cores >= _GENERATOR_FULL:
            why = f" (the load generator has {generator_cores:.2f} of its one core)"
        else:
            waiting = f", the instances {its.waiting:.2f}" if its else ""
            why = f" (the loop waits {self.loop_waiting:.2f} of the time{waiting})"
        return f"bounded by {bound}{why}"

    def __str__(self) -> str:
        parts = [f"loop {self.loop_cpu:.2f} of a core"]
        if self.instances:
            parts.append(f"instances {self.instances}")
        if not math.isnan(self.batch_size):
            full = f" ({self.batch_fill:.0%} full)" if not math.isnan(self.batch_fill) else ""
            parts.append(f"batches of {self.batch_size:.1f}{full}")
        if not math.isnan(self.queue_ms):
            parts.append(f"queue {self.queue_ms:.2f} ms")
        if self.gpu_busy is not None:
            memory = f", {self.gpu_memory:.2f} of its memory" if self.gpu_memory else ""
            parts.append(f"GPU {self.gpu_busy:.2f}{memory}")
        return "; ".join(parts)


def _change(before: _Report, after: _Report, *path: str) -> float:
    values: list[Any] = [before, after]
    for name in path:
        values = [value.get(name, {}) for value in values]
    earlier, later = (float(value or 0.0) for value in values)
    return later - earlier


def _busiest(before: _Report, after: _Report) -> InstanceShares | None:
    """The shares of the version whose instances waited least."""

    def key(one: _Report) -> tuple[str, int, int]:
        return one["model"], one["version"], one["session"]

    earlier = {key(one): one["seconds"] for one in before.get("sessions", [])}
    versions: dict[tuple[str, int], list[dict[str, float]]] = {}
    for one in after["sessions"]:
        start = earlier.get(key(one), {})
        spent = {name: value - start.get(name, 0.0) for name, value in one["seconds"].items()}
        if spent["ready"] > 0.0:
            versions.setdefault((one["model"], one["version"]), []).append(spent)
    shares = map(InstanceShares.of, versions.values())
    return min(shares, key=lambda its: its.waiting, default=None)


def _gpus(before: _Report, after: _Report, past_s: float) -> tuple[float | None, float | None]:
    """The share of the time that the GPUs computed, and of their memory that is in use."""
    earlier = {gpu["uuid"]: gpu.get("busy_s") for gpu in before.get("gpus", [])}
    busy_s, used, total = [], 0, 0
    for gpu in after.get("gpus", []):
        if gpu.get("busy_s") is not None:
            busy_s.append(gpu["busy_s"] - (earlier.get(gpu["uuid"]) or 0.0))
        if gpu.get("memory_total_bytes"):
            used += gpu["memory_used_bytes"] or 0
            total += gpu["memory_total_bytes"]
    busy = sum(busy_s) / len(busy_s) / past_s if busy_s else None
    return busy, used / total if total else None
