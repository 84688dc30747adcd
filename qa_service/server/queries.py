"""What each type of query is answered: a report on the server, or what a command has done."""

from __future__ import annotations

from collections.abc import Callable

from qa_service.server.front.open_connections import OpenConnections
from qa_service.server.models.catalog import Catalog
from qa_service.server.status import Status
from qa_service.server.telemetry.metrics import Metrics
from qa_service.wire.messages import Query


class Queries:
    """Answers queries, and counts them.

    Args:
        phase: The name of the server's phase.
    """

    def __init__(
        self,
        status: Status,
        catalog: Catalog,
        connections: OpenConnections,
        metrics: Metrics,
        *,
        phase: Callable[[], str],
    ) -> None:
        self._connections = connections
        self._metrics = metrics
        self._answers: dict[str, Callable[[Query, str], object]] = {
            "health": lambda _, client: status.health(phase(), client),
            "stats": lambda _, client: status.stats(self._in_flight(), client),
            "metrics": lambda _, client: status.metrics_text(self._in_flight(), client),
            "models": lambda *_: status.models(phase()),
            "load": lambda query, _: catalog.load(query.model),
            "unload": lambda query, _: catalog.unload(query.model),
            "document": lambda *_: None,
        }

    def answer(self, query: Query, client: str) -> object:
        """The answer to a query of a client, which sees the collections that it may ask.

        Raises:
            QaError: A command names an unknown model.
        """
        self._metrics.queries_total[query.type] += 1
        return self._answers[query.type](query, client)

    def _in_flight(self) -> list[int]:
        """The number of requests in flight of each open connection."""
        return [len(connection.calls.in_flight) for connection in self._connections]
