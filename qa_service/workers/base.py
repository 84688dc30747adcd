"""A worker as the loop sees it: its channel, its state, and what it holds. Nothing here waits.

STARTING ──Ready──▶ IDLE ──batch──▶ BUSY ──Results──▶ IDLE
    └────Failed────────┴──end-of-file──┴──▶ DEAD
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from qa_service.event_loop import EventLoop
from qa_service.placement import Placement
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
    IDLE = auto()
    BUSY = auto()
    DEAD = auto()


class Worker(ABC):
    """One inference session, from the loop's side of its channel.

    Attributes:
        number: Which session of the pool it is, from 0.
        state: Where it is in its life.
        since_s: When it came to this state, on the loop's clock.
        was_ready: Whether it has ever been ready.
        model: The name of the model that it found; empty until it is ready.
        device: Where it runs; empty until it is ready.
        placement: Where it was told to run.
        tickets: What it is running.
        failure: Why it could not start or had to end, if that is known.
    """

    def __init__(
        self, number: int, loop: EventLoop, listener: WorkerListener, placement: Placement
    ) -> None:
        self.number = number
        self.placement = placement
        self.state = WorkerState.STARTING
        self.since_s = loop.now_s()
        self.was_ready = False
        self.model = ""
        self.device = ""
        self._loop = loop
        self.tickets: Sequence[Ticket] = ()
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

    def run(self, tickets: Sequence[Ticket]) -> None:
        """Gives it a batch."""
        self._enter(WorkerState.BUSY)
        self.tickets = tickets
        self._stream.write(encode(Batch([ticket.request.as_question() for ticket in tickets])))

    def hang_up(self) -> None:
        """Closes its channel: it ends when it next looks there. Nothing more is heard of it."""
        self._enter(WorkerState.DEAD)
        self._stream.close()

    def _enter(self, state: WorkerState) -> None:
        self.state = state
        self.since_s = self._loop.now_s()

    def _on_data(self, data: bytes) -> None:
        self._frames.feed(data)
        while (frame := self._frames.next_frame()) is not None:
            message = to_loop_decoder.decode(frame)
            if isinstance(message, Failed):
                self.failure = message.message
                continue
            self._enter(WorkerState.IDLE)
            if isinstance(message, Ready):
                self.was_ready = True
                self.model = message.model
                self.device = message.device
                self._listener.on_worker_ready(self)
            else:
                tickets, self.tickets = self.tickets, ()
                self._listener.on_worker_results(self, tickets, message)

    def _on_end(self) -> None:
        self._enter(WorkerState.DEAD)
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
