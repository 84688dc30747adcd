"""Measures a table of loads: each number of instances with each number of clients or rate."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qa_service.client import QaClient, QaClientError
from qa_service.programs.bounds import Spent
from qa_service.programs.load.generator import measure
from qa_service.programs.load.own_server import OwnServer
from qa_service.programs.load.plan import LoadPlan
from qa_service.programs.load.report import Report

Progress = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Cell:
    """One load and its report; `spent` is where the server's time went, None if it does not say."""

    num_instances: int | None
    plan: LoadPlan
    report: Report
    engine: str = ""
    spent: Spent | None = None

    @property
    def bound(self) -> str:
        """What bounds the server at this load, in a sentence; empty if it does not say."""
        return self.spent.sentence(self.report.generator_cores) if self.spent else ""

    @property
    def load(self) -> float:
        """The varied quantity: requests offered per second, or clients at a time."""
        return self.plan.rate_per_s or self.plan.num_simultaneous_clients


@dataclass(frozen=True, slots=True)
class Sweep:
    """The loads to make.

    Attributes:
        rates_per_s: Rate of each open loop; if any, there is no closed loop.
        instances: Numbers of instances; one server is started for each. Empty to ask the plan's
            server.
    """

    plan: LoadPlan
    clients: Sequence[int]
    rates_per_s: Sequence[float] = ()
    instances: Sequence[int] = ()
    server_flags: Sequence[str] = ()
    engine: str = ""

    def plans(self) -> list[LoadPlan]:
        """The loads for each server."""
        if self.rates_per_s:
            return [dataclasses.replace(self.plan, rate_per_s=rate) for rate in self.rates_per_s]
        return [dataclasses.replace(self.plan, num_simultaneous_clients=n) for n in self.clients]

    def run(
        self, show: Callable[[int | None, LoadPlan], contextlib.AbstractContextManager[Progress]]
    ) -> Iterator[Cell]:
        """Makes one load after another; ends after one that was interrupted.

        Args:
            show: Called before each load; the context yields the `progress` of `measure`.

        Raises:
            ServerStartError: A server did not start.
            OSError: As in `measure`.
            QaClientError: As in `measure`.
        """
        numbers: Sequence[int | None] = self.instances or [None]
        for num_instances in numbers:
            with self._server(num_instances) as port:
                engine = self.engine
                if num_instances is not None:
                    engine = find_engine(dataclasses.replace(self.plan, port=port))
                for plan in self.plans():
                    here = dataclasses.replace(plan, port=port)
                    before = read_stats(here)
                    with show(num_instances, here) as progress:
                        report = measure(here, progress)
                    spent = Spent.between(before, read_stats(here))
                    cell = Cell(num_instances, here, report, engine, spent)
                    yield cell
                    if cell.report.interrupted:
                        return

    @contextlib.contextmanager
    def _server(self, num_instances: int | None) -> Iterator[int]:
        """The port of the server to use."""
        if num_instances is None:
            yield self.plan.port
            return
        flags = ["--num_inference_sessions", str(num_instances), *self.server_flags]
        with OwnServer(self.plan.host, flags) as server:
            yield server.port


def read_stats(plan: LoadPlan) -> dict[str, Any]:
    """The report of the plan's server; empty if it does not say, or if there are several."""
    if "," in plan.host:
        return {}
    try:
        with _client(plan) as client:
            return client.stats()
    except QaClientError:
        return {}


def _client(plan: LoadPlan) -> QaClient:
    tls, token = plan.access.tls_context(), plan.access.token
    return QaClient(plan.host, plan.port, plan.timeout_s, tls=tls, token=token)


def find_engine(plan: LoadPlan) -> str:
    """The engines of the plan's server, for example `openvino int8`; empty if it does not say.

    Raises:
        QaClientError: The server cannot be reached, or does not accept the token.
    """
    with _client(plan) as client:
        client.connect()
        try:
            models = client.models()
        except QaClientError:
            return ""
    names = [
        f"{model.get('engine_type', '')} {model.get('precision', '')}".strip()
        for model in models
        if model.get("state") == "READY" and not model.get("cascade")
    ]
    return ", ".join(dict.fromkeys(names))
