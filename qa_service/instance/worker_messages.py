"""The messages between the loop and a worker: msgpack in frames, typed at both ends.

loop ──Setup──▶ worker            once
loop ◀──Ready | Failed── worker   once: it has proved itself, or cannot
loop ──Batch──▶ worker            any number
loop ◀──Results── worker          one for each batch, with its number
loop ──Check──▶ worker             now and then, between batches
loop ◀──Checked | Failed── worker  one for each, with its number; after `Failed` it ends
"""

from __future__ import annotations

import msgspec

from qa_service.errors import QaError
from qa_service.instance.batch_cost import CostTable
from qa_service.instance.devices import DeviceAssignment
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.stages import StagesMs
from qa_service.wire.frames import encode_frame
from qa_service.wire.messages import Answer, Task
from qa_service.wire.spans import SegmentResult


class Setup(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An instance's model, options and device.

    Attributes:
        fingerprint: The manifest's; empty for any.
        former_dir: The folder of the version that this one replaces; empty for none.
        hooks_fingerprint: Of the hooks' module; empty for any.
        keeps: Whether it may write into the model's folder what it measures and compiles.
    """

    model_dir: str
    options: InstanceOptions
    device: DeviceAssignment = DeviceAssignment()
    fingerprint: str = ""
    former_dir: str = ""
    hooks_fingerprint: str = ""
    keeps: bool = True


class Batch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    number: int
    tasks: list[Task]


class Check(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Has the instance run a known row, in its place among the batches."""

    number: int


class ModelFacts(msgspec.Struct, frozen=True, array_like=True):
    """What the loop needs to know of a model.

    Attributes:
        window_tokens: Its longest window; a longer text has several.
        reading: How a text's windows overlap, and what spans and passages score.
        fingerprint: SHA-256 of the manifest.
        hooks: Which hooks an instance runs, and the SHA-256 of their module; empty for none.
    """

    name: str = ""
    window_tokens: int = 1 << 30
    reading: ReadingConfig = ReadingConfig()
    fingerprint: str = ""
    hooks: str = ""


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The instance is loaded and has answered a warmup question.

    Attributes:
        costs: The instance's cost table; None with `--cost_table off`.
        device: `cpu` or `cuda:N`, as the server's process numbers GPUs.
        memory_bytes: The memory of its process, without a GPU's, and what static shapes may add.
        can_test: Whether it has given known answers, and can be tested while it serves.
        largest_difference: Of a logit from a known one.
        self_test_ms: How long giving the known answers took.
    """

    model: ModelFacts = ModelFacts()
    costs: CostTable | None = None
    device: str = "cpu"
    memory_bytes: int = 0
    can_test: bool = False
    largest_difference: float = 0.0
    self_test_ms: float = 0.0


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The instance cannot start, or must end.

    Attributes:
        is_blameless: Whether no request can be the cause: the machine was lost, not the program.
        is_wrong: Whether it does not give its known answers.
    """

    message: str
    is_blameless: bool = False
    is_wrong: bool = False


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
        started_s: When the batch began to run, on the clock that processes share.
        costs: The new cost table; None if it has not changed.
        waited_ms: How long the instance had held no batch since the results before.
    """

    number: int
    outcomes: list[Answers | SegmentResult | Failure]
    started_s: float
    inference_ms: float
    stages_ms: StagesMs = StagesMs()
    costs: CostTable | None = None
    waited_ms: float = 0.0


class Checked(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The instance has given a known answer."""

    number: int


ToWorker = Setup | Batch | Check
ToLoop = Ready | Failed | Results | Checked

Outcome = Answers | SegmentResult | QaError
"""A task's outcome: its answers, its result as a segment, or its error."""

to_worker_decoder = msgspec.msgpack.Decoder(ToWorker)
to_loop_decoder = msgspec.msgpack.Decoder(ToLoop)

MAX_MESSAGE_BYTES = 2**32 - 1
"""All that a frame's prefix can say: texts are bounded as they come, and neither end is hostile."""

_encoder = msgspec.msgpack.Encoder()


def encode(message: ToWorker | ToLoop) -> bytearray:
    return encode_frame(_encoder, message)
