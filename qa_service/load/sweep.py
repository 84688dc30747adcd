"""A table's worth of loads: each number of sessions against each number of clients or rate."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from qa_service.load.generator import measure
from qa_service.load.own_server import OwnServer
from qa_service.load.plan import LoadPlan
from qa_service.load.report import Report

Progress = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Cell:
    """One load, and how it went.

    Attributes:
        num_sessions: The server's inference sessions; None if the server is not ours.
        plan: The load.
        report: How it went.
    """

    num_sessions: int | None
    plan: LoadPlan
    report: Report

    @property
    def load(self) -> float:
        """What is varied: requests offered per second, or clients at a time."""
        return self.plan.rate_per_s or self.plan.num_simultaneous_clients


@dataclass(frozen=True, slots=True)
class Sweep:
    """Which loads there are.

    Attributes:
        plan: What they have in common.
        clients: Clients at a time, of each closed loop.
        rates_per_s: Rates, of each open loop; where there are any, no closed loop is run.
        sessions: Inference sessions, for each of which a server is started; empty for the
            server that the plan names.
        server_flags: Further flags of those servers.
    """

    plan: LoadPlan
    clients: Sequence[int]
    rates_per_s: Sequence[float] = ()
    sessions: Sequence[int] = ()
    server_flags: Sequence[str] = ()

    def plans(self) -> list[LoadPlan]:
        """The loads that each server is put under."""
        if self.rates_per_s:
            return [dataclasses.replace(self.plan, rate_per_s=rate) for rate in self.rates_per_s]
        return [dataclasses.replace(self.plan, num_simultaneous_clients=n) for n in self.clients]

    def run(
        self, show: Callable[[int | None, LoadPlan], contextlib.AbstractContextManager[Progress]]
    ) -> Iterator[Cell]:
        """Makes one load after another; ends after one that was interrupted.

        Args:
            show: Called before each; what it gives is told of progress, see `measure`.

        Raises:
            ServerStartError: A server of our own did not start.
            OSError: As of `measure`.
            QaClientError: As of `measure`.
        """
        numbers: Sequence[int | None] = self.sessions or [None]
        for num_sessions in numbers:
            with self._server(num_sessions) as port:
                for plan in self.plans():
                    here = dataclasses.replace(plan, port=port)
                    with show(num_sessions, here) as progress:
                        cell = Cell(num_sessions, here, measure(here, progress))
                    yield cell
                    if cell.report.interrupted:
                        return

    @contextlib.contextmanager
    def _server(self, num_sessions: int | None) -> Iterator[int]:
        """The port of the server to use."""
        if num_sessions is None:
            yield self.plan.port
            return
        flags = ["--num_inference_sessions", str(num_sessions), *self.server_flags]
        with OwnServer(self.plan.host, flags) as server:
            yield server.port
