"""Draws a gateway's bounds, the calls that are made of it, and what befalls it."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.simulation.gateway import GatewayPlan
from tests.simulation.grpc_calls import CallPlan
from tests.simulation.questions import ABSENT, FAULT, PLAIN, POISON, Subject

SHARE = 0.1
"""Of the seeds that have a gateway: such a run takes about twice as long as another."""
FIRST_SUBJECT = 10**8
"""No other client asks these."""
_Event = tuple[float, str, dict[str, Any]]
"""When something happens, what, and its values."""
_SOON_S = (0.0005, 0.002, 0.01)
"""Meanwhile calls are under way."""
_FAULT: dict[str, Sequence[Any]] = {
    "how": ["kill", "pause", "cut", "cut"],
    "seconds": [0.05, 0.5],
    "number": range(4),
}


def has_gateway(seed: int) -> bool:
    """Whether a seed has a gRPC gateway; all else of its scenario is the same without."""
    return random.Random(f"gateway {seed}").random() < SHARE


class CallDrawer:
    """Draws the calls of a seed, and what befalls the gateway.

    Args:
        tokens: Those that the server takes; none if it takes any.
        has_table: Whether there may be several models.
    """

    def __init__(self, seed: int, tokens: Sequence[str], *, has_table: bool) -> None:
        self._draws = random.Random(f"calls {seed}")
        self._tokens, self._has_table = tokens, has_table
        self._next_subject = FIRST_SUBJECT + seed * 1000
        self._pool = [self._new_subject() for _ in range(3)]

    def plan(self) -> GatewayPlan:
        """The gateway's bounds, most of them small."""
        pick = self._draws.choice
        return GatewayPlan(
            max_connections=pick([2, 4, 1000]),
            max_links=pick([1, 2, 3, 64]),
            max_calls=pick([2, 4, 1024]),
            idle_s=pick([0.2, 2]),
        )

    def events(self, first_s: float, last_s: float, stops_s: Sequence[float]) -> Iterator[_Event]:
        """What happens between two times; much of it where the server is stopped."""
        draws = self._draws
        for _ in range(draws.randint(2, 6)):
            at_s = round(draws.uniform(first_s, last_s), 4)
            yield from self._calls(at_s)
        for _ in range(draws.choice([0, 0, 1, 3])):
            at_s = round(draws.uniform(first_s, last_s), 4)
            yield from self._calls(at_s)
            values = {name: draws.choice(of) for name, of in _FAULT.items()}
            yield at_s + draws.choice(_SOON_S), "bad_gateway", values
        for stop_s in stops_s:
            yield from self._calls(stop_s - draws.choice(_SOON_S))

    def _calls(self, at_s: float) -> Iterator[_Event]:
        count = self._draws.choice([1, 1, 2, 6, 12])
        yield at_s, "call", {"calls": tuple(self._call() for _ in range(count))}

    def _call(self) -> CallPlan:
        draws = self._draws
        is_known = not self._tokens or draws.random() < 0.8
        token = draws.choice(self._tokens or ["", "any"])
        is_stream = draws.random() < 0.25
        num_requests = draws.choice([1, 3, 8]) if is_stream else 1
        sizes = [draws.choice([1, 1, 3]) for _ in range(num_requests)]
        return CallPlan(
            peer=f"ipv4:10.0.0.{draws.randint(1, 3)}:1",
            token=token if is_known else f"made-up-{draws.randint(1, 5)}",
            is_known=is_known,
            requests=tuple(self._subjects(size, is_stream=is_stream) for size in sizes),
            options=self._options(),
            is_stream=is_stream,
            deadline_s=draws.choice([None] * 8 + [1e-6, 0.003, 0.05, 0.5]),
            cancel_s=draws.choice([None] * 8 + [0.0, 0.002, 0.02]),
        )

    def _options(self) -> dict[str, Any]:
        draws = self._draws
        options: dict[str, Any] = {}
        if draws.random() < 0.1:
            options["timeout_ms"] = draws.choice([5, 50, 500])
        if self._has_table and draws.random() < 0.4:
            options["model"] = draws.choice(["a", "a", "b", "both"])
            if options["model"] == "a" and draws.random() < 0.4:
                options["version"] = draws.choice([1, 2, 7])
        return options

    def _subjects(self, count: int, *, is_stream: bool) -> tuple[Subject, ...]:
        """What one request asks; errors in a stream have no code, so that few kinds may come."""
        draws = self._draws
        if count == 1 and not is_stream and draws.random() < 0.2:
            return (self._new_subject(draws.choice([ABSENT, FAULT, POISON])),)
        if draws.random() < 0.2:
            return (draws.choice(self._pool),) * count
        return tuple(self._new_subject() for _ in range(count))

    def _new_subject(self, kind: str = PLAIN) -> Subject:
        self._next_subject += 1
        return Subject(self._next_subject, self._draws.choice([3, 8, 20]), kind)
