"""What requests cost an instance: estimated before they run, corrected by measured batches."""

from __future__ import annotations

import math
import string

from qa_service.instance.batch_cost import BatchRule
from qa_service.wire.messages import Request

PACE_WINDOW_MS = 1000.0
"""The estimated work that the pace is measured over: enough that a short batch which the machine
held up for seconds does not make all that waits look too long."""
MAX_WEIGHT_MS = PACE_WINDOW_MS / 8
"""The weight of the longest piece of work, and of the estimates themselves at the start."""
MS_PER_TOKEN = 0.1
"""The cost without a table: an order of magnitude, which the pace corrects."""

SAMPLES = 64
SAMPLE_CHARS = 64
"""The number and the length of the samples that estimate a long text: they are read in
microseconds, and a passage of signs anywhere in a text is weighted correctly."""
NO_SIGNS = bytes(set(range(256)).difference(string.punctuation.encode()))


class Pace:
    """How much longer work takes than estimated, by the last second of it.

    Attributes:
        value: The time that work took over its estimate, each summed up with weights that fall
            exponentially with the estimated work done since. Below 1 where it takes less.
    """

    def __init__(self) -> None:
        self.value = 1.0
        self._took_ms = self._estimated_ms = MAX_WEIGHT_MS

    def observe(self, estimated_ms: float, took_ms: float) -> None:
        if estimated_ms > 0.0:
            weight_ms = min(estimated_ms, MAX_WEIGHT_MS)
            kept = math.exp(-weight_ms / PACE_WINDOW_MS)
            self._took_ms = kept * self._took_ms + weight_ms * took_ms / estimated_ms
            self._estimated_ms = kept * self._estimated_ms + weight_ms
            self.value = self._took_ms / self._estimated_ms


def estimate_cost(tokens: int, rule: BatchRule | None) -> float:
    """What a request costs, in milliseconds of an instance that runs nothing else.

    A long text's cost is in proportion to its tokens.
    """
    if rule is None or rule.costs is None:
        return tokens * MS_PER_TOKEN
    return rule.costs.cost_ms(1, tokens)


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
