"""What load is to be made, and what became of each of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qa_service.cli.access import Access
from qa_service.load.wire import QaWire, Wire
from qa_service.squad import SquadQuestion

WRONG_SPAN = "wrong_span"
"""Error code of an answer that does not stand in the text where it is said to."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Who asks how much of whom.

    A closed loop by default: each client waits for its answer before it asks again, so a slow
    server is asked less. With `rate_per_s` an open loop: requests come at random moments (a
    Poisson process) whatever the server does.

    Attributes:
        host: The server's name or address.
        port: The server's TCP port.
        questions: What is asked, in turn, and from the beginning again; at least one.
        num_simultaneous_clients: Clients at a time; of an open loop, the connections that its
            requests take in turn.
        num_total_clients: Clients altogether, each with a connection of its own.
        num_request_per_client: Requests of each client, one after another; an open loop sends
            `num_requests` whoever sends them.
        duration_s: For how long requests are sent, in place of both counts.
        rate_per_s: Requests per second that an open loop sends on average.
        seed: Decides the moments of an open loop.
        timeout_s: Longest wait for a reply, and for a connection.
        access: How each client is let in.
        wire: Makes what a connection speaks; another server's protocol may stand here.
    """

    host: str
    port: int
    questions: Sequence[SquadQuestion]
    num_simultaneous_clients: int = 5
    num_total_clients: int = 100
    num_request_per_client: int = 10
    duration_s: float | None = None
    rate_per_s: float | None = None
    seed: int = 0
    timeout_s: float = 60.0
    access: Access = field(default_factory=Access)
    wire: Callable[[], Wire] = QaWire

    @property
    def num_requests(self) -> int | None:
        """Requests of all clients together; None if the time decides."""
        if self.duration_s is not None:
            return None
        return self.num_total_clients * self.num_request_per_client


class Sample(NamedTuple):
    """What became of one request.

    Attributes:
        started_s: When it was about to be sent, or, in an open loop, when it was due; by
            `time.perf_counter`.
        latency_ms: From then to the arrival of the reply or the failure.
        error_code: Why it failed; empty if it was answered.
    """

    started_s: float
    latency_ms: float
    error_code: str = ""
