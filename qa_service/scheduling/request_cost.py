"""What requests cost an instance: estimated before they run, corrected by what batches take."""

from __future__ import annotations

import string

from qa_service.scheduling.batch_cost import BatchRule
from qa_service.wire.messages import Request

SMOOTHING = 1 / 8
"""The weight of a new measurement, as in TCP's round-trip time (RFC 6298)."""
MS_PER_TOKEN = 0.1
"""Where nothing was measured yet; the pace corrects it."""

SAMPLES = 64
SAMPLE_CHARS = 64
SIGNS = string.punctuation.encode()


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


def estimate_tokens(request: Request) -> int:
    """Estimates how many tokens a request will be.

    English has about four bytes of UTF-8 to a token of BERT's vocabularies, Chinese and Japanese
    three, which is one character. Of a text of signs, each is a token.
    """
    return 3 + int(tokens_of(request.question) + tokens_of(request.text))


def tokens_of(text: str) -> float:
    """About how many tokens a text has; of a long one, by samples of it."""
    sample = text
    if len(text) > SAMPLES * SAMPLE_CHARS:
        starts = range(0, len(text), len(text) // SAMPLES)
        sample = "".join([text[start : start + SAMPLE_CHARS] for start in starts])
    data = sample.encode()
    num_signs = len(data) - len(data.translate(None, SIGNS))
    num_tokens = max(len(data) / 4, num_signs + (len(data) - num_signs) / 5)
    return num_tokens * len(text) / max(1, len(sample))
