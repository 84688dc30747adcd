"""What requests cost an instance: estimated before they run, corrected by what batches take."""

from __future__ import annotations

from qa_service.scheduling.batch_cost import BatchRule

SMOOTHING = 1 / 8
MS_PER_TOKEN = 0.1
"""Where nothing was measured yet; the pace corrects it."""


class RequestCosts:
    """Estimates costs, in milliseconds of an instance that has nothing else to do.

    Attributes:
        pace: How much longer batches take than their requests' estimates add up to: an
            exponentially weighted mean, as TCP smooths its round-trip time (RFC 6298). Below 1
            where batches are cheaper than their requests apart.
    """

    def __init__(self) -> None:
        self.pace = 1.0

    @staticmethod
    def of(tokens: int, rule: BatchRule | None) -> float:
        """The cost of a request of so many tokens; a long text's is in proportion to them."""
        if rule is None or rule.costs is None:
            return tokens * MS_PER_TOKEN
        return rule.costs.cost_ms(1, tokens)

    def observe(self, cost: float, took_ms: float) -> None:
        """Follows what a batch took whose requests were estimated to cost so much."""
        if cost > 0.0:
            self.pace += SMOOTHING * (took_ms / cost - self.pace)
