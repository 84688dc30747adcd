"""What the server tells of itself: whether it can be sent questions, and what it has counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qa_service import __version__
from qa_service.config import ServerConfig
from qa_service.event_loop import EventLoop
from qa_service.metrics import Metrics
from qa_service.scheduler import Scheduler
from qa_service.workers.sessions import Sessions

SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Health:
    """How the server is, field by field as on the wire.

    Attributes:
        live: True: the loop turns, or there would be no answer.
        ready: Whether a question sent now can be expected to be answered.
        reason: Why it is not ready; None if it is.
        phase: `starting`, `serving`, `draining` or `stopping`.
        sessions_alive: Sessions that have answered their warmup question and not died since.
        sessions_answering: Those of them that have answered lately.
        sessions_wanted: Sessions there should be.
        queue_length: Requests waiting for a session.
        model: Its name.
        uptime_s: Since the server's start.
        version: The server's.
    """

    live: bool
    ready: bool
    reason: str | None
    phase: str
    sessions_alive: int
    sessions_answering: int
    sessions_wanted: int
    queue_length: int
    model: str
    uptime_s: float
    version: str


def why_not_ready(
    phase: str, sessions_alive: int, sessions_answering: int, ready_timeout_ms: int
) -> str | None:
    """Why no question should be sent now; None if all is well.

    A session answers lately if it waits for work, having answered its last batch or its warmup
    question, or has had its present batch for no longer than `ready_timeout_ms`. One that does
    is enough; so an idle server is ready, and one whose every session hangs is not.
    """
    if phase != SERVING:
        return f"the server is {phase}"
    if not sessions_alive:
        return "no session is alive"
    if not sessions_answering:
        return f"no session has answered for {ready_timeout_ms} ms"
    return None


class Status:
    """Looks at the server's parts and says how they are.

    Args:
        config: The server's.
        loop: Whose clock is used.
        scheduler: Where requests wait.
        sessions: Who answers them.
        metrics: What has been counted.
    """

    def __init__(
        self,
        config: ServerConfig,
        loop: EventLoop,
        scheduler: Scheduler,
        sessions: Sessions,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._loop = loop
        self._scheduler = scheduler
        self._sessions = sessions
        self._metrics = metrics
        self._started_s = loop.now_s()

    def health(self, phase: str) -> Health:
        """How the server is, in that phase of its life."""
        timeout_ms = self._config.ready_timeout_ms
        alive = self._sessions.alive
        answering = self._sessions.answering(self._loop.now_s() - timeout_ms / 1e3)
        reason = why_not_ready(phase, alive, answering, timeout_ms)
        return Health(
            live=True,
            ready=reason is None,
            reason=reason,
            phase=phase,
            sessions_alive=alive,
            sessions_answering=answering,
            sessions_wanted=self._config.num_inference_sessions,
            queue_length=len(self._scheduler),
            model=self._sessions.model,
            uptime_s=self._uptime_s(),
            version=__version__,
        )

    def stats(self, in_flight: Sequence[int]) -> dict[str, object]:
        """What has been counted, beside how things stand.

        Args:
            in_flight: The requests in flight of each open connection.
        """
        report = self._metrics.report(
            {
                "uptime_s": self._uptime_s(),
                "connections_open": len(in_flight),
                "requests_in_flight": sum(in_flight),
                "queue_length": len(self._scheduler),
                "sessions_alive": self._sessions.alive,
                "sessions_wanted": self._config.num_inference_sessions,
            }
        )
        return {**report, "sessions": self._sessions.places}

    def retry_after_ms(self) -> int:
        """When a request that the full queue refuses may be sent again."""
        queue_length = len(self._scheduler)
        return self._metrics.service_time.retry_after_ms(queue_length, self._sessions.alive)

    def _uptime_s(self) -> float:
        return round(self._loop.now_s() - self._started_s, 3)
