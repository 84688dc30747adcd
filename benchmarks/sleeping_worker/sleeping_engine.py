"""An engine that sleeps as long as an accelerator would compute, by environment variables."""

import os
import time

import numpy as np

from qa_service.instance import engines, runs, self_test, worker_messages
from qa_service.instance.arrays import NUM_BEST
from qa_service.instance.engines.base import Engine

FIXED_S, ROW_S, TOKEN_S = (
    float(os.environ.get(name, "0")) / 1e6
    for name in ("FEED_FIXED_US", "FEED_ROW_US", "FEED_TOKEN_US")
)
FURTHER = 3
"""Tokens of an answer after its first."""


def _compute(ids):
    time.sleep(FIXED_S + ROW_S * len(ids) + TOKEN_S * ids.size)


class SleepingEngine(Engine):
    """Its answer to each row is a few tokens in the middle of the text.

    One token would often be a word that is no answer, which a model rarely gives: the reader then
    looks at all the row's spans.
    """

    device, chooses_spans, runtime = "cuda", True, "sleeping"

    def __init__(self, manifest):
        self._width = manifest.reading.max_answer_tokens

    def _run(self, ids, mask, types):
        _compute(ids)
        start, end = np.zeros(ids.shape, np.float32), np.zeros(ids.shape, np.float32)
        middle = mask.sum(axis=1) // 2
        rows = np.arange(len(ids))
        start[rows, middle] = end[rows, middle + FURTHER] = 12.0
        return start, end

    def best_spans(self, ids, mask, types, text_mask):
        logits = self._run(ids, mask, types)
        first = text_mask.argmax(axis=1) + text_mask.sum(axis=1) // 2
        found = np.full((len(ids), 1 + 2 * NUM_BEST), -np.inf, np.float32)
        found[:, 0], found[:, 1 : NUM_BEST + 1] = 0.1, first[:, None] * self._width + FURTHER
        found[:, NUM_BEST + 1] = 0.0
        return found, logits


def replace_engine():
    """Replaces the engine and its self-test; a CPU's instance works as a GPU's, and says so."""
    engines.make_engine = lambda engine_type, model_dir, manifest, config: SleepingEngine(manifest)
    for check in ("check", "check_next"):
        setattr(self_test.SelfTest, check, lambda _: None)
    runs.answer_in_turn = runs.answer_overlapped
    ready = worker_messages.Ready

    def ready_on_gpu(model, costs, _, *more):
        return ready(model, costs, "cuda:0", *more)

    worker_messages.Ready = ready_on_gpu  # type: ignore[misc, assignment]
