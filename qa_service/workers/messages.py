"""What the loop and a worker say to each other: msgpack in frames, typed at both ends.

loop ──Setup──▶ worker            once
loop ◀──Ready | Failed── worker   once: it has answered a warmup question, or cannot
loop ──Batch──▶ worker            any number
loop ◀──Results── worker          one for each batch, with its number
"""

from __future__ import annotations

import msgspec

from qa_service.scheduling.batch_cost import CostTable
from qa_service.telemetry.stages import StagesMs
from qa_service.wire.frames import PREFIX
from qa_service.wire.messages import Answer, Task
from qa_service.wire.spans import Findings
from qa_service.workers.devices import DeviceAssignment
from qa_service.workers.options import InstanceOptions


class Setup(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What an instance is to be.

    Attributes:
        model_dir: A prepared model's folder.
        options: How it is run.
        device: Where it runs.
        fingerprint: SHA-256 that the model's manifest must have; empty for any.
    """

    model_dir: str
    options: InstanceOptions
    device: DeviceAssignment = DeviceAssignment()
    fingerprint: str = ""


class Batch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Questions to answer together.

    Attributes:
        number: What its results are known by.
        tasks: What is asked.
    """

    number: int
    tasks: list[Task]


class ModelFacts(msgspec.Struct, frozen=True, array_like=True):
    """What the loop has to know of a model.

    Attributes:
        name: Its name.
        window_tokens: Its longest window; a longer text has several.
        overlap_tokens: Tokens that two neighbouring windows share.
        null_log_score: The log score of its null answer; None if it cannot abstain.
        fingerprint: SHA-256 of its manifest.
        passage_weight: What a point of a passage's search score adds to its log scores.
    """

    name: str = ""
    window_tokens: int = 1 << 30
    overlap_tokens: int = 0
    null_log_score: float | None = None
    fingerprint: str = ""
    passage_weight: float = 0.0


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The instance is loaded and has answered a warmup question.

    Attributes:
        model: What it runs.
        costs: What the model costs there; None if that is not to be used.
        device: Where it runs: `cpu` or `cuda:N`, as the server numbers GPUs.
        memory_bytes: The memory of its process, without that of a GPU.
    """

    model: ModelFacts = ModelFacts()
    costs: CostTable | None = None
    device: str = "cpu"
    memory_bytes: int = 0


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The instance cannot start, or must end.

    Attributes:
        message: Why, for the person at the terminal.
        is_blameless: Whether no request can be the cause: its machine was lost, not its program.
    """

    message: str
    is_blameless: bool = False


class Failure(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A `QaError` on its way from a worker: its code and its safe message."""

    code: str
    message: str


class Answers(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One question's answers, best first."""

    answers: list[Answer]


class Results(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A batch's outcomes, one for each question, in their order.

    Attributes:
        number: The batch's.
        outcomes: Answers, the findings of a segment, or what was wrong with that question.
        started_s: When the instance began with it, by the clock that processes share.
        inference_ms: From then to its end, in milliseconds.
        stages_ms: How much of that each stage took.
        costs: What the model costs by now; None if that is as it was.
    """

    number: int
    outcomes: list[Answers | Findings | Failure]
    started_s: float
    inference_ms: float
    stages_ms: StagesMs = StagesMs()
    costs: CostTable | None = None


ToWorker = Setup | Batch
ToLoop = Ready | Failed | Results

to_worker_decoder = msgspec.msgpack.Decoder(ToWorker)
to_loop_decoder = msgspec.msgpack.Decoder(ToLoop)

MAX_MESSAGE_BYTES = 2**32 - 1

_encoder = msgspec.msgpack.Encoder()


def encode(message: ToWorker | ToLoop) -> bytearray:
    """Encodes a message as a frame."""
    frame = bytearray(PREFIX.size)
    _encoder.encode_into(message, frame, PREFIX.size)
    PREFIX.pack_into(frame, 0, len(frame) - PREFIX.size)
    return frame
