"""The reading code that every contestant serves: this project's own, one thread a session.

The model is given batches of up to the size that the contestant is set to, the windows of a long
text among them: without a table of costs, every batch is filled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from qa_service.config import ServerConfig
from qa_service.errors import QaError
from qa_service.placement import Placement
from qa_service.protocol import Question
from qa_service.reading.reader import Reader
from qa_service.workers.worker_main import WARMUP, load_reader

MODEL_VARIABLE = "BENCHMARK_MODEL"
BATCH_VARIABLE = "BENCHMARK_BATCH"

decode = msgspec.json.Decoder(Question).decode
"""A request's JSON to its question."""

encode = msgspec.json.Encoder().encode


def set_batch_size(size: int) -> None:
    """Tells the sessions that this process will start how large a batch may be."""
    os.environ[BATCH_VARIABLE] = str(size)


def warm_reader(
    model: Path | None = None, max_batch_size: int | None = None, **settings: Any
) -> Reader:
    """A session: the model loaded and one question answered.

    Args:
        model: A prepared model; by default what the environment names.
        max_batch_size: Rows given to the model at once; by default what the environment says.
        settings: Further fields of `ServerConfig` that a session looks at.
    """
    model = model or Path(os.environ[MODEL_VARIABLE])
    size = max_batch_size or int(os.environ.get(BATCH_VARIABLE, "1"))
    config = ServerConfig(model=model, max_batch_size=size, cost_table="off", **settings)
    reader, _ = load_reader(config.worker_setup, Placement())
    assert isinstance(reader, Reader)
    reader.read([WARMUP])
    return reader


def answers(reader: Reader, questions: Sequence[Question]) -> list[dict[str, Any]]:
    """The answer to each question, as the server's own frames have it.

    Raises:
        QaError: One cannot be answered; the benchmarks ask none of that kind.
    """
    outcomes = reader.read(questions)
    for outcome in outcomes:
        if isinstance(outcome, QaError):
            raise outcome
    return [msgspec.to_builtins(outcome[0]) for outcome in outcomes]


def instant_answer(question: Question) -> dict[str, Any]:
    """The text's first word, without any model."""
    word = question.text.split(None, 1)[0]
    start = question.text.index(word)
    return {"answer": word, "score": 1.0, "start": start, "end": start + len(word)}
