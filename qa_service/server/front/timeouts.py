"""A connection's states, and when its client is late, and with what."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from enum import Enum, auto

from qa_service.net.timers import Clock, overdue_s
from qa_service.server.front.connection_options import ConnectionOptions


class State(Enum):
    """A connection's state; a probing one has sent only queries that need no token."""

    UNAUTHENTICATED = auto()
    PROBING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()

    __hash__ = object.__hash__  # a state is looked up for each message, and Enum's own is slow


class Timeout(Enum):
    """What a client is late with; LEAVING closes an old connection."""

    AUTHENTICATING = auto()
    SENDING = auto()
    READING = auto()
    ASKING = auto()
    LEAVING = auto()


# Looked up for each message; as an attribute of the enum each takes 0.1 µs in Python 3.11.
_UNAUTHENTICATED, _CLOSING, _ASKING = State.UNAUTHENTICATED, State.CLOSING, Timeout.ASKING


CLOSING_GRACE_S = 1.0
"""How long requests may still arrive after a frame has asked the client to send no more: several of
the longest round trips. A client that knows the word closes sooner."""


class Timeouts:
    """The times from which a connection's timeouts count.

    Attributes:
        active_s: When the client last sent something, or was answered.
        request_timeout_s: How long a request may wait for an instance; infinity for any time.
        message_since_s: When the incomplete message began; None without one.
    """

    def __init__(self, limits: ConnectionOptions, clock: Clock) -> None:
        self._clock = clock
        self.active_s = self._opened_s = now_s = clock.now_s()
        self.message_since_s: float | None = None
        # Within a tenth, so that connections opened together do not close together.
        max_age_s = limits.max_connection_age_s or math.inf
        self.ages_at_s = now_s + max_age_s * random.uniform(0.9, 1.1)
        self._leaves = self._is_announced = False
        self._limits = limits
        self._idle_timeout_s = limits.idle_timeout_s
        self.request_timeout_s = limits.request_timeout_s

    def close_when_idle(self, when_idle_s: float) -> None:
        """Has the next answer say that it closes; at `when_idle_s` it closes if it is idle then."""
        self._leaves = True
        self.ages_at_s = min(self.ages_at_s, when_idle_s)

    def says_close(self, now_s: float) -> bool:
        """Whether the client is to go, so that an answer that is sent now says so.

        `CLOSING_GRACE_S` after the first of these answers, the connection closes when it is idle.
        """
        if not (self._leaves or now_s >= self.ages_at_s):
            return False
        if not self._is_announced:
            self._is_announced = self._leaves = True
            self.ages_at_s = now_s + CLOSING_GRACE_S
        return True

    def deadline(
        self, state: State, calls: Collection[object], unread_since_s: float | None
    ) -> tuple[float, Timeout]:
        """The next deadline if nothing changes, and what the client is then late with.

        What came in a pause is read after it, in several rounds, so its time is given back.

        Args:
            calls: Those in flight: whoever waits for an answer is not idle.
            unread_since_s: When the client last read; None if no answer waits to be read.
        """
        limits, clock = self._limits, self._clock
        if state is _UNAUTHENTICATED:
            overdue_at_s = overdue_s(clock, self._opened_s, limits.handshake_timeout_s)
            return overdue_at_s, Timeout.AUTHENTICATING
        if unread_since_s is not None:
            return overdue_s(clock, unread_since_s, limits.client_timeout_s), Timeout.READING
        if self.message_since_s is not None:
            overdue_at_s = overdue_s(clock, self.message_since_s, limits.client_timeout_s)
            return overdue_at_s, Timeout.SENDING
        idle_since_s = clock.now_s() if calls else self.active_s
        idle_deadline_s = overdue_s(clock, idle_since_s, self._idle_timeout_s)
        if state is not _CLOSING and self.ages_at_s < idle_deadline_s:
            return self.ages_at_s, Timeout.LEAVING
        return idle_deadline_s, _ASKING
