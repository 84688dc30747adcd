"""What requests cost an instance: estimated before they run, corrected by measured batches."""

from __future__ import annotations

import string

from qa_service.instance.batch_cost import BatchRule
from qa_service.wire.messages import Request

SMOOTHING = 1 / 8
"""The weight of a new measurement, as in TCP's round-trip time (RFC 6298)."""
MS_PER_TOKEN = 0.1
"""The cost without a table: an order of magnitude, which `pace` corrects."""

SAMPLES = 64
SAMPLE_CHARS = 64
"""The number and the length of the samples that estimate a long text: they are read in
microseconds, and a passage of signs anywhere in a text is weighted correctly."""
NO_SIGNS = bytes(set(range(256)).difference(string.punctuation.encode()))


class RequestCosts:
    """Estimates costs, in milliseconds of an instance that runs nothing else.

    Attributes:
        pace: A batch's time over the sum of its requests' estimates, an exponentially weighted
            mean. Below 1 where batches are cheaper than their requests apart.
    """

    def __init__(self) -> None:
        self.pace = 1.0

    @staticmethod
    def of(tokens: int, rule: BatchRule | None) -> float:
        """The cost of a request; a long text's is in proportion to its tokens."""
        if rule is None or rule.costs is None:
            return tokens * MS_PER_TOKEN
        return rule.costs.cost_ms(1, tokens)

    def observe(self, cost: float, took_ms: float) -> None:
        """Updates the pace with a batch's time and the sum of its requests' estimates."""
        if cost > 0.0:
            self.pace += SMOOTHING * (took_ms / cost - self.pace)


def estimate_tokens(request: Request) -> int:
    """Estimates a request's tokens.

    With BERT's vocabularies, a token has about four bytes of UTF-8 in English, and three, one
    character, in Chinese and Japanese. Each punctuation mark is a token.
    """
    return 3 + int(tokens_of(request.question + request.text))


def tokens_of(text: str) -> float:
    """Estimates a text's tokens; a long text's from samples."""
    if len(text) <= SAMPLES * SAMPLE_CHARS:
        return _tokens_in(text.encode())
    starts = range(0, len(text), len(text) // SAMPLES)
    sample = "".join([text[start : start + SAMPLE_CHARS] for start in starts])
    return _tokens_in(sample.encode()) * len(text) / len(sample)


def _tokens_in(data: bytes) -> float:
    num_signs = len(data.translate(None, NO_SIGNS))
    return max(len(data) / 4, num_signs + (len(data) - num_signs) / 5)
