"""An instance as the loop sees it: its channel, its state, and the batches that it holds.

STARTING ──Ready──▶ READY ──batch──▶ READY ...
    └────Failed───────┴──end-of-file──▶ DEAD

A ready instance holds at most two batches: one that it runs and one in its channel, so that it does
not wait for the loop. It gets the second after half of the first's expected time: late enough that
more calls can join the batch, early enough that the instance is never idle. With an accelerator it
reads one while it runs the next, and gets a third when it should have run the first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from qa_service.instance.channel import WORKER_PROGRAM, launch
from qa_service.instance.devices import CPU, DeviceAssignment, devices_of, need_ray
from qa_service.instance.worker_messages import (
    Batch,
    Check,
    Checked,
    Failed,
    Ready,
    Results,
    Setup,
    encode,
    to_loop_decoder,
)
from qa_service.logs import LogOptions
from qa_service.net.timers import Clock
from qa_service.server.children.child import Child, Launch
from qa_service.server.scheduling.request_cost import Pace
from qa_service.server.scheduling.ticket import Ticket

if TYPE_CHECKING:
    from qa_service.server.instances.pool import WorkerPool

MAX_HELD, MAX_HELD_OVERLAPPED = 2, 3
"""Batches that an instance holds; the latter with an accelerator (`runs.answer_overlapped`)."""
RAY_PROGRAM = "qa_service.instance.ray_main"
START = "start"
"""What the child is at before it is ready; afterwards, it is at batches, by their numbers."""


class WorkerState(Enum):
    STARTING = auto()
    READY = auto()
    DEAD = auto()


class InFlight(msgspec.Struct):
    """A batch that an instance holds; a self-test is one without members.

    Attributes:
        cost_s: How long it is expected to run, by the costs that the instance has measured.
        since_s: When it began to run, as far as the loop can know; infinity if it has not.
    """

    members: Sequence[Ticket]
    is_retry: bool
    cost_s: float
    since_s: float = math.inf


class InstanceProgram(msgspec.Struct, frozen=True):
    """How an instance is started.

    Attributes:
        is_remote: Whether it is a bridge to an actor on a Ray cluster, whose death no request can
            have caused unless the bridge says so.
    """

    setup: Setup
    launch: Launch
    is_remote: bool = False


ProgramFactory = Callable[[int], InstanceProgram]
"""Says how the instance of a number is started."""


def make_factory(logs: LogOptions, setup: Setup) -> ProgramFactory:
    """The function that says how a version's instances are started, each with its device.

        loop ──channel── bridge process ──Ray── actor process on a node ──channel── local worker

    To the loop a bridge is a worker process like any other. The loop's process never imports Ray,
    which ends its process when it loses the cluster's head.

    Raises:
        DeviceError: A GPU is named that CUDA does not see.
        SetupError: The options ask for instances on Ray, which is not installed.
    """
    options = setup.options
    need_ray(options)
    devices = devices_of(options.num_inference_sessions, options.devices)
    remote = DeviceAssignment("cuda:0" if options.ray_num_gpus else CPU)

    def make(number: int) -> InstanceProgram:
        is_remote = number >= len(devices)
        own = msgspec.structs.replace(setup, device=remote if is_remote else devices[number])
        program = RAY_PROGRAM if is_remote else WORKER_PROGRAM
        return InstanceProgram(own, partial(launch, program, own, logs), is_remote)

    return make


class InstanceTimes:
    """Where the time of an instance, of all its processes, goes: in seconds that only grow.

    The instance measures, and each message with results brings what it has spent since the one
    before.

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


class Worker:
    """One inference instance, from its start to its death, from the loop's side of its channel.

    Attributes:
        child: The program, which may be started again as another instance.
        since_s: When it started, got a batch while idle, or sent results, whichever was last.
        rule: The bounds on its batches; once ready, with its present cost table.
        failure: Why it could not start or had to end; empty if that is not known.
        is_blameless: Whether no request can have caused its death.
        is_wrong: Whether it has ended because it does not give its known answers.
        tested_s: When it last gave a known answer; before it is ready, when it started.
        num_answers: How many answers it has given since.
        times: Where its time goes; the pool may give it those of the process before.
    """

    def __init__(
        self,
        number: int,
        clock: Clock,
        pool: WorkerPool,
        program: InstanceProgram,
        child: Child,
    ) -> None:
        self.number = number
        self.child = child
        self.is_remote = self.is_blameless = program.is_remote
        self.state = WorkerState.STARTING
        self.since_s = clock.now_s()
        self.ready: Ready | None = None
        self.setup = program.setup
        self.rule = self.setup.options.batch_rule
        self.in_flight: dict[int, InFlight] = {}
        self.failure = ""
        self.is_leaving = self.is_wrong = False
        self.tested_s = self.since_s
        self.num_answers = 0
        self.times = InstanceTimes()
        self._clock = clock
        self._pool = pool
        self._numbers = itertools.count()
        self._pace = Pace()

    def begin(self) -> None:
        self.child.expect(START, self.setup.options.start_timeout_s)
        self.child.write(encode(self.setup))

    @property
    def device(self) -> str:
        """The device that the instance reported; until it is ready, the assigned one."""
        if self.ready:
            return self.ready.device
        return "ray" if self.is_remote else self.setup.device.device

    @property
    def _max_held(self) -> int:
        return MAX_HELD if self.device == CPU else MAX_HELD_OVERLAPPED

    @property
    def max_begun(self) -> int:
        """How many of its batches, the first ones, it may have begun: the last waits."""
        return self._max_held - 1

    @property
    def is_idle(self) -> bool:
        return self.state is WorkerState.READY and not self.in_flight

    def report(self) -> dict[str, object]:
        """Its part of the reply to a `stats` query."""
        idle_since_s = self.since_s if self.is_idle else math.inf
        return {
            "session": self.number,
            "device": self.device,
            "max_batch_size": self.rule.max_batch_size,
            **self.times.report(self._clock.now_s(), idle_since_s),
        }

    def takes_from_s(self) -> float:
        """From when it may get another batch; infinity if not before its next results."""
        if self.state is not WorkerState.READY or self.is_leaving:
            return math.inf
        if not self.in_flight:
            return -math.inf
        batches = self.in_flight.values()
        if len(batches) >= self._max_held or any(batch.is_retry for batch in batches):
            return math.inf
        first = next(iter(batches))
        return first.since_s + self._pace.value * first.cost_s * len(batches) / 2

    def run(self, members: Sequence[Ticket]) -> None:
        is_retry = members[0].attempts > 0
        cost_s = self.rule.cost_s(len(members), max([ticket.tokens for ticket in members]))
        number = self._hold(InFlight(members, is_retry, cost_s))
        tasks = [ticket.call.request.as_task(ticket.core) for ticket in members]
        self.child.write(encode(Batch(number, tasks)))

    @property
    def can_be_tested(self) -> bool:
        is_able = self.ready is not None and self.ready.can_test
        is_free = self.state is WorkerState.READY and not self.is_leaving
        return is_able and is_free and len(self.in_flight) < self._max_held

    @property
    def is_in_test(self) -> bool:
        return any(not batch.members for batch in self.in_flight.values())

    def test(self) -> None:
        """Has it run a known row, behind the batch that it may hold."""
        cost_s = self.rule.cost_s(1, self.ready.model.window_tokens if self.ready else 0)
        number = self._hold(InFlight((), is_retry=False, cost_s=cost_s))
        self.child.write(encode(Check(number)))

    def _hold(self, batch: InFlight) -> int:
        """Notes a batch that it is given; returns the batch's number."""
        if not self.in_flight:
            self.since_s = self._clock.now_s()
        number = next(self._numbers)
        self.in_flight[number] = batch
        self._mark_running()
        return number

    def _mark_running(self, ago_s: float = 0.0) -> None:
        """Notes the start of the first batch, the only one that can be running, as so long ago."""
        for number, batch in itertools.islice(self.in_flight.items(), 1):
            if batch.since_s == math.inf:
                batch.since_s = self._clock.now_s() - ago_s
                timeout_s = self.setup.options.execution_timeout_s
                self.child.expect(number, timeout_s, batch.since_s)

    def take(self, body: bytes) -> None:
        """Takes a message of the instance; raises `DecodeError` if it is none."""
        message = to_loop_decoder.decode(body)
        if isinstance(message, Failed):
            self.failure = message.message
            self.is_blameless = message.is_blameless
            self.is_wrong = message.is_wrong
            self.is_leaving = True  # it takes no more, and is about to end
            return
        self.since_s = self._clock.now_s()
        if isinstance(message, Ready):
            self.child.done(START)
            self.state = WorkerState.READY
            self.ready = message
            self.rule = replace(self.rule, costs=message.costs)
            self.tested_s = self.since_s
            self.times.begin(self.since_s)
            self._pool.on_worker_ready(self)
        elif not self._fits(message):
            self.child.end("it sent results that fit no batch")
        else:
            self._finish(message)

    def _finish(self, message: Results | Checked) -> None:
        self.child.done(message.number)
        batch = self.in_flight.pop(message.number)
        if isinstance(message, Checked):
            self._mark_running()
            self.tested_s, self.num_answers = self.since_s, 0
            self._pool.on_worker_tested(self)
            return
        # An accelerator has run the next batch while this one was read.
        overlap_s = 0.0 if self.device == CPU else message.stages_ms.read / 1e3
        if batch.since_s >= self._clock.last_pause_s:  # other work may slow the machine
            self._pace.observe(batch.cost_s * 1e3, message.inference_ms - overlap_s * 1e3)
        if message.costs:
            self.rule = replace(self.rule, costs=message.costs)
        self._mark_running(overlap_s)
        self.num_answers += len(batch.members)
        self.times.add(message)
        self._pool.on_worker_results(self, batch.members, message)

    def _fits(self, results: Results | Checked) -> bool:
        """Whether results belong to a batch that it holds, or to a self-test."""
        batch = self.in_flight.get(results.number)
        if batch is None or isinstance(results, Checked):
            return batch is not None and not batch.members
        return bool(batch.members) and len(results.outcomes) == len(batch.members)
