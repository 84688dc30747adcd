"""The reading code that every target serves: this project's own, one thread an instance.

The model is given batches of up to the size that the target is set to, the windows of a long
text among them: without a table of costs, every batch is filled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from qa_service.errors import QaError
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.reader.reader import Reader
from qa_service.instance.runs import WARMUP
from qa_service.instance.worker_main import load_reader
from qa_service.instance.worker_messages import Setup
from qa_service.wire.messages import Question

MODEL_VARIABLE = "BENCHMARK_MODEL"
BATCH_VARIABLE = "BENCHMARK_BATCH"
ENGINE_VARIABLE = "BENCHMARK_ENGINE"
PRECISION_VARIABLE = "BENCHMARK_PRECISION"

decode = msgspec.json.Decoder(Question).decode
"""A request's JSON to its question."""

encode = msgspec.json.Encoder().encode


class FramedQuestion(Question, frozen=True):
    """A question of the frame protocol, whose answer carries its id.

    Attributes:
        id: As the client chose it.
    """

    id: int | str | None = None


decode_framed = msgspec.json.Decoder(FramedQuestion).decode
"""A frame's JSON to its question."""


def set_batch_size(size: int) -> None:
    """Sets the largest batch for the instances that this process will start."""
    os.environ[BATCH_VARIABLE] = str(size)


def warm_reader(
    model: Path | None = None, max_batch_size: int | None = None, **settings: Any
) -> Reader:
    """An instance: the model loaded and one question answered.

    Args:
        model: A prepared model; by default what the environment names.
        max_batch_size: Rows given to the model at once; by default what the environment says.
        settings: Further options that an instance looks at; engine and precision are by default
            what the environment says.
    """
    model = model or Path(os.environ[MODEL_VARIABLE])
    size = max_batch_size or int(os.environ.get(BATCH_VARIABLE, "1"))
    fixed: dict[str, Any] = {
        "inference_engine_type": os.environ.get(ENGINE_VARIABLE, "onnx"),
        "precision": os.environ.get(PRECISION_VARIABLE, "fp32"),
        "intra_op_num_threads": 1,
    }
    options = InstanceOptions(max_batch_size=size, cost_table="off", **(fixed | settings))
    reader = load_reader(Setup(str(model), options)).reader
    assert isinstance(reader, Reader)
    reader.read([WARMUP])
    return reader


def answers(reader: Reader, questions: Sequence[Question]) -> list[dict[str, Any]]:
    """The answer to each question, as the server's own frames have it.

    Raises:
        QaError: One cannot be answered; the benchmarks ask none of that kind.
    """
    found = []
    for outcome in reader.read(questions):
        if isinstance(outcome, QaError):
            raise outcome
        found.append(msgspec.to_builtins(outcome[0]))
    return found


def instant_answer(question: Question) -> dict[str, Any]:
    word = question.text.split(None, 1)[0]
    start = question.text.index(word)
    return {"answer": word, "score": 1.0, "start": start, "end": start + len(word)}
