"""Whether the server can be sent questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STARTING = "starting"
SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Health:
    """How the server is, field by field as on the wire.

    Attributes:
        live: True: the loop turns, or there would be no answer.
        ready: Whether a question sent now can be expected to be answered.
        reason: Why it is not ready; None if it is.
        phase: `starting`, `serving`, `draining` or `stopping`.
        sessions_alive: Instances that have answered their warmup question and not died since.
        sessions_answering: Those of them that have answered lately.
        sessions_wanted: Instances there should be.
        queue_length: Requests waiting for an instance.
        model: The name of the model that is asked by default.
        uptime_s: Since the server's start.
        version: The server's.
        models: The state of each version, by `model/version`, in the words of Triton's index.
        failures: Why a version could not be loaded, by the same.
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
    models: Mapping[str, str]
    failures: Mapping[str, str]


def why_not_ready(
    phase: str, sessions_alive: int, sessions_answering: int, ready_timeout_ms: int
) -> str | None:
    """Why no question should be sent now; None if all is well.

    An instance answers lately if it waits for work, having answered its last batch or its warmup
    question, or has had its present batch for no longer than `ready_timeout_ms`. One that does
    is enough; so an idle server is ready, and one whose every instance hangs is not.
    """
    if phase != SERVING:
        return f"the server is {phase}"
    if not sessions_alive:
        return "no instance is alive"
    if not sessions_answering:
        return f"no instance has answered for {ready_timeout_ms} ms"
    return None
