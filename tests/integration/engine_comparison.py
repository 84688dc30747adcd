"""What an engine gives, compared with a reference: logits, and the spans that it chooses."""

import functools
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest

from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.instance.arrays import Int64Array, Logits
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines import EngineConfig
from qa_service.instance.engines.base import Engine
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.instance.reader.reader import Reader
from qa_service.wire.messages import Question
from tests.support import all_of

MAX_DIFFERENCE = {"fp32": 1e-3, "fp16": 0.1, "bf16": 0.5}
"""Logits of the built-in model go up to 10; bf16 keeps 8 bits of a number."""


SHAPES = ((1, 7), (3, 40), (2, 80), (1, 384), (4, 64))
"""Rows and tokens; the first three are enough where a CPU computes in 16 bits, which takes long."""


def batches() -> Iterator[tuple[Int64Array, Int64Array, Int64Array]]:
    """Ids, mask and types, int64 [rows, tokens] each; every row is shorter than the one before."""
    rng = np.random.default_rng(7)
    for rows, tokens in SHAPES:
        ids = rng.integers(1000, 20000, (rows, tokens))
        mask = np.ones_like(ids)
        for row in range(rows):
            mask[row, tokens - 3 * row :] = 0
        yield ids, mask, np.zeros_like(ids)


@functools.cache
def _logits_of(reference: Engine) -> list[Logits]:
    return [reference.logits(*batch) for batch in batches()]


def difference(engine: Engine, reference: Engine, num_batches: int = len(SHAPES)) -> float:
    worst = 0.0
    compared = islice(zip(batches(), _logits_of(reference), strict=True), num_batches)
    for (ids, mask, types), wanted in compared:
        logits = engine.logits(ids, mask, types)
        for got, right in zip(logits, wanted, strict=True):
            assert got.shape == ids.shape
            assert got.dtype == np.float32
            worst = max(worst, float(np.abs(got - right)[mask == 1].max()))
    return worst


def check_chosen_spans(
    engine: Engine, reference: Engine, model: Path, config: EngineConfig
) -> None:
    """Compares the answers from an engine's own spans with those from the reference's logits."""
    rule = BatchRule(config.max_batch_size, config.max_batch_tokens)
    manifest = load_manifest(model)
    plain = Reader(model, manifest, reference.logits, rule)
    choosing = Reader(model, manifest, engine.logits, rule, engine.best_spans)
    questions = [Question(item.question, item.context) for item in read_squad(OWN_QUESTIONS)]
    asked = [*questions[:24], msgspec.structs.replace(questions[24], top_k=3)]
    chosen = all_of(list, choosing.read(asked))
    assert {len(answers) for answers in chosen} == {1, 3}
    for one, other in zip(all_of(list, plain.read(asked)), chosen, strict=True):
        assert [(a.answer, a.start) for a in one] == [(a.answer, a.start) for a in other]
        assert [a.score for a in one] == pytest.approx([a.score for a in other], abs=2e-3)
