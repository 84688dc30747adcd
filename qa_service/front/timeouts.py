"""When a client is late, and with what."""

from __future__ import annotations

import math
import random
from collections.abc import Collection

from qa_service.front.options import ConnectionOptions
from qa_service.front.states import State, Timeout


class Timeouts:
    """The times of one connection that its timeouts are reckoned from.

    Args:
        now_s: When the client connected.

    Attributes:
        active_s: When the client last sent something, or was answered.
        message_since_s: When the incomplete message began; None without one.
        leaves: Whether the connection closes after its next answer.
    """

    def __init__(self, limits: ConnectionOptions, auth_timeout_s: float, now_s: float) -> None:
        self.active_s = now_s
        self.message_since_s: float | None = None
        # Give or take a tenth, so that clients that came together do not all leave together.
        max_age_s = limits.max_connection_age_s or math.inf
        self.ages_at_s = now_s + max_age_s * random.uniform(0.9, 1.1)
        self.leaves = False
        self._auth_deadline_s = now_s + auth_timeout_s
        self._limits = limits

    def leave(self, when_idle_s: float) -> None:
        """Ends behind the next answer; from a time on also while there is nothing to do."""
        self.leaves = True
        self.ages_at_s = min(self.ages_at_s, when_idle_s)

    def deadline(
        self, state: State, calls: Collection[object], unread_since_s: float | None
    ) -> tuple[float, Timeout]:
        """When the client is late if nothing changes, and with what.

        Args:
            unread_since_s: When the client last read, while answers wait to be read; None if none
                do.
        """
        limits = self._limits
        if state is State.UNAUTHENTICATED:
            return self._auth_deadline_s, Timeout.AUTHENTICATING
        if unread_since_s is not None:
            return unread_since_s + limits.stall_timeout_s, Timeout.READING
        if self.message_since_s is not None:
            return self.message_since_s + limits.frame_timeout_s, Timeout.SENDING
        if calls:
            return math.inf, Timeout.ASKING
        idle_deadline_s = self.active_s + limits.idle_timeout_s
        if state is not State.CLOSING and self.ages_at_s < idle_deadline_s:
            return self.ages_at_s, Timeout.LEAVING
        return idle_deadline_s, Timeout.ASKING
