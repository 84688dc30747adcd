"""The reading code that every contestant serves: this project's own, one thread a session."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from qa_service.config import ServerConfig
from qa_service.errors import QaError
from qa_service.protocol import Question
from qa_service.reading.reader import Reader
from qa_service.workers.worker_main import WARMUP, load_reader

MODEL_VARIABLE = "BENCHMARK_MODEL"

decode = msgspec.json.Decoder(Question).decode
"""A request's JSON to its question."""

encode = msgspec.json.Encoder().encode


def warm_reader(model: Path | None = None, **settings: Any) -> Reader:
    """A session: the model loaded and one question answered.

    Args:
        model: A prepared model; by default what the environment names.
        settings: Fields of `ServerConfig` that a session looks at.
    """
    model = model or Path(os.environ[MODEL_VARIABLE])
    reader = load_reader(ServerConfig(model=model, **settings).worker_setup)
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
