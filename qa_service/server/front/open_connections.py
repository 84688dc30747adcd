"""A server's open connections, and which of them makes room for a new one.

    under --max_connections   a new connection is served
    at it                     the connection that has been silent longest is closed; the new one is
                              served
    none is silent            the new one is served its queries, such as a health probe; a question
                              is refused with `queue_full`, and the connection is closed

So neither silent connections nor busy ones keep a probe from its answer. A connection is silent if
no call of it is in flight and the client has read all answers; one that has just been opened has
`GRACE_S` to send its first bytes.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass

from qa_service.errors import QueueFullError
from qa_service.net.timers import Clock
from qa_service.server.front.connection import Connection
from qa_service.server.scheduling.call import Call
from qa_service.server.services.service import Service
from qa_service.server.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

RESERVE = 16
"""Connections beyond `--max_connections`, for probes."""
GRACE_S = 1.0
"""A few round trips."""
RETRY_AFTER_MS = 1000
"""A connection may close at any moment; clients add a random part."""
_CANDIDATES = 32
"""How many are looked for at a time: a search takes longer than a close."""


@dataclass(eq=False)
class OpenConnections:
    """The connections of a server, at most `max_connections` and `RESERVE`.

    Args:
        service: What answers the questions of those that are served.
    """

    clock: Clock
    max_connections: int
    service: Service
    metrics: Metrics

    def __post_init__(self) -> None:
        self._open: dict[Connection, None] = {}  # a set in the order of opening
        # The silent ones with the time since which they are, the longest silent last.
        self._candidates: list[tuple[float, Connection]] = []

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        """The connections as they are now: the caller may close them."""
        return iter(list(self._open))

    def add(self, connection: Connection) -> None:
        """Takes a new connection, for which `make_room` was called."""
        self._open[connection] = None

    def discard(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def make_room(self) -> Service | None:
        """Closes silent connections if there are too many; returns what answers a new one.

        None if not even a probe has room: all connections are busy, those for probes too.
        """
        while len(self._open) >= self.max_connections and self._evict(GRACE_S):
            pass
        while len(self._open) >= self.max_connections + RESERVE and self._evict(0.0):
            pass
        if len(self._open) < self.max_connections:
            return self.service
        return self if len(self._open) < self.max_connections + RESERVE else None

    def submit(self, call: Call) -> None:
        """Passes a call of a connection beyond the bound on if there is room now."""
        if len(self._open) <= self.max_connections:
            self.service.submit(call)
        else:
            message = "the server has as many connections as --max_connections"
            call.fail(QueueFullError(message, retry_after_ms=RETRY_AFTER_MS))

    def _evict(self, grace_s: float) -> bool:
        connection = self._next_candidate()
        if connection is None:
            latest_s = self.clock.now_s() - grace_s
            silent = (
                (its.silent_since_s, its)
                for its in self._open
                if its.has_spoken or its.silent_since_s <= latest_s
            )
            found = heapq.nsmallest(_CANDIDATES, silent, key=lambda item: item[0])
            self._candidates = [item for item in reversed(found) if item[0] < math.inf]
            connection = self._next_candidate()
        if connection is None:
            return False
        if not self.metrics.connections_evicted_total:
            logger.warning(
                "%d connections, as many as may be open: from now on the one that has been "
                "silent longest is closed to make room",
                self.max_connections,
            )
        self.metrics.connections_evicted_total += 1
        logger.debug("%s makes room", connection.name)
        self.discard(connection)
        connection.close()
        return True

    def _next_candidate(self) -> Connection | None:
        """The next one that was found and has been silent since."""
        while self._candidates:
            silent_since_s, connection = self._candidates.pop()
            if connection in self._open and connection.silent_since_s == silent_since_s:
                return connection
        return None
