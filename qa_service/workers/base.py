"""A worker as the loop sees it: its channel, its state, and what it holds. Nothing here waits.

STARTING ──Ready──▶ READY ──batch──▶ READY ...
    └────Failed───────┴──end-of-file──▶ DEAD

A session that is ready holds at most one long text and two batches of others: one that it runs
and one that lies in its channel, so that it need not wait for the loop. The second is given to
it when half of what the first is expected to take is over: late enough that company may still
come, early enough that the session never runs dry.
"""

from __future__ import annotations

import itertools
import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Protocol

from qa_service.batching import BatchRule
from qa_service.event_loop import EventLoop
from qa_service.metrics import SMOOTHING
from qa_service.protocol import FrameReader
from qa_service.scheduler import Ticket
from qa_service.stream import Stream
from qa_service.workers.channel import (
    MAX_MESSAGE_BYTES,
    Batch,
    Failed,
    Ready,
    Results,
    Setup,
    encode,
    to_loop_decoder,
)


class WorkerState(Enum):
    """Where a worker is in its life."""

    STARTING = auto()
    READY = auto()
    DEAD = auto()


@dataclass(slots=True)
class InFlight:
    """A batch that a worker holds.

    Attributes:
        tickets: Its requests.
        is_long: Whether it is a long text, run step by step between the others.
        is_retry: Whether a session has died with it before.
        cost_s: What it is expected to take.
        since_s: When it began to run, as far as the loop can know; infinity if it has not.
    """

    tickets: Sequence[Ticket]
    is_long: bool
    is_retry: bool
    cost_s: float
    since_s: float = math.inf


class Worker(ABC):
    """One inference session, from the loop's side of its channel.

    Attributes:
        number: Which session of the pool it is, from 0.
        state: Where it is in its life.
        since_s: When it started, was given work while idle, or gave results, whichever was last.
        was_ready: Whether it has ever been ready.
        model: The name of the model that it found; empty until it is ready.
        rule: What it can run together; with what the model was measured to cost, once ready.
        in_flight: The batches that it holds, by number, in their order.
        failure: Why it could not start or had to end, if that is known.
    """

    def __init__(
        self, number: int, loop: EventLoop, listener: WorkerListener, rule: BatchRule
    ) -> None:
        self.number = number
        self.state = WorkerState.STARTING
        self.since_s = loop.now_s()
        self.was_ready = False
        self.model = ""
        self._loop = loop
        self.rule = rule
        self.in_flight: dict[int, InFlight] = {}
        self._numbers = itertools.count()
        self._pace = 1.0
        self.failure = ""
        self._listener = listener
        self._frames = FrameReader(MAX_MESSAGE_BYTES)
        ours, theirs = socket.socketpair()
        self._stream = Stream(loop, ours, self._on_data, self._on_end)
        try:
            self._launch(theirs)
        except OSError:
            self._stream.close()
            raise

    @abstractmethod
    def _launch(self, channel: socket.socket) -> None:
        """Starts what runs the session and gives it its end of the channel."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once, if its kind can be; else it ends after its present batch."""

    @abstractmethod
    def exit_status(self) -> str | None:
        """How it ended, once nothing is left of it; lets the system forget it."""

    def set_up(self, setup: Setup) -> None:
        """Tells it what to be."""
        self._stream.write(encode(setup))

    @property
    def is_idle(self) -> bool:
        """Whether it is ready and holds nothing."""
        return self.state is WorkerState.READY and not self.in_flight

    @property
    def takes_long(self) -> bool:
        """Whether it has no long text yet."""
        return not any(batch.is_long for batch in self.in_flight.values())

    def takes_from_s(self) -> float:
        """From when it may be given another batch; infinity if not before it gives results."""
        if self.state is not WorkerState.READY:
            return math.inf
        if not self.in_flight:
            return -math.inf
        if any(batch.is_retry for batch in self.in_flight.values()):
            return math.inf
        short = [batch for batch in self.in_flight.values() if not batch.is_long]
        if not short:
            return 0.0
        return short[0].since_s + short[0].cost_s / 2 if len(short) == 1 else math.inf

    def run(self, tickets: Sequence[Ticket]) -> None:
        """Gives it a batch."""
        if not self.in_flight:
            self.since_s = self._loop.now_s()
        number = next(self._numbers)
        is_long, is_retry = tickets[0].is_long, tickets[0].attempts > 0
        cost_s = self.rule.cost_s(len(tickets), max(ticket.tokens for ticket in tickets))
        self.in_flight[number] = InFlight(tickets, is_long, is_retry, cost_s * self._pace)
        self._mark_running()
        questions = [ticket.request.as_question() for ticket in tickets]
        self._stream.write(encode(Batch(number, questions, is_long)))

    def _mark_running(self) -> None:
        """Notes what the session can be running by now: the long text, and the first other."""
        short = (batch for batch in self.in_flight.values() if not batch.is_long)
        long = (batch for batch in self.in_flight.values() if batch.is_long)
        for batch in (*itertools.islice(short, 1), *long):
            if batch.since_s == math.inf:
                batch.since_s = self._loop.now_s()

    def hang_up(self) -> None:
        """Closes its channel: it ends when it next looks there. Nothing more is heard of it."""
        self.state = WorkerState.DEAD
        self._stream.close()

    def _on_data(self, data: bytes) -> None:
        self._frames.feed(data)
        while (frame := self._frames.next_frame()) is not None:
            message = to_loop_decoder.decode(frame)
            if isinstance(message, Failed):
                self.failure = message.message
                continue
            self.since_s = self._loop.now_s()
            if isinstance(message, Ready):
                self.state = WorkerState.READY
                self.was_ready = True
                self.model = message.model
                self.rule = replace(self.rule, costs=message.costs)
                self._listener.on_worker_ready(self)
            else:
                batch = self.in_flight.pop(message.number)
                self._keep_pace(batch, message.inference_ms / 1e3)
                self._mark_running()
                self._listener.on_worker_results(self, batch.tickets, message)

    def _keep_pace(self, batch: InFlight, took_s: float) -> None:
        """Follows how much longer batches take than was measured: other work slows a machine."""
        if batch.cost_s and self.takes_long and not batch.is_long:
            self._pace += SMOOTHING * self._pace * (took_s / batch.cost_s - 1)

    def _on_end(self) -> None:
        self.state = WorkerState.DEAD
        self._listener.on_worker_death(self)


class WorkerListener(Protocol):
    """Who hears from a worker: the pool."""

    def on_worker_ready(self, worker: Worker) -> None:
        """It can take batches."""

    def on_worker_results(
        self, worker: Worker, tickets: Sequence[Ticket], results: Results
    ) -> None:
        """It has finished a batch."""

    def on_worker_death(self, worker: Worker) -> None:
        """Its channel has ended."""
