"""What the loop and a worker say to each other, over one socketpair.

The frames are the wire's (a 4-byte big-endian length and a body); the bodies are msgpack of
the structs below, typed at both ends. End-of-file means that the other side is gone: there is
no lock between them that a killed process could keep.

    loop ──Setup──▶ worker            once
    loop ◀──Ready | Failed── worker   once: it has answered a warmup question, or can't
    loop ──Batch──▶ worker            any number
    loop ◀──Results── worker          one for each batch, with its number
"""

from __future__ import annotations

import socket

import msgspec

from qa_service.batching import CostTable
from qa_service.protocol import PREFIX, Answer, FrameReader, Question
from qa_service.reading.stopwatch import StagesMs


class Setup(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What a session is to be.

    Attributes:
        engine_type: One of `ENGINE_TYPES`.
        model_dir: A prepared model's folder.
        precision: One of `PRECISIONS`.
        intra_op_num_threads: Threads within one operator.
        max_batch_size: Windows the model is given at once.
        max_batch_tokens: Tokens it is given at once, padding included.
        max_batch_cost_ms: What a batch of several may cost, as it was measured.
        cost_table: Where the measured costs come from, see `find_costs`.
    """

    engine_type: str
    model_dir: str
    precision: str
    intra_op_num_threads: int
    max_batch_size: int
    max_batch_tokens: int
    max_batch_cost_ms: float
    cost_table: str


class Batch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Questions to answer together.

    Attributes:
        number: What its results are known by.
        questions: What is asked.
        is_long: Whether it is a text of many windows, between whose steps others may run.
    """

    number: int
    questions: list[Question]
    is_long: bool = False


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The session is loaded and has answered a warmup question.

    Attributes:
        model: The name of the model that it found.
        costs: What the model costs there; None if that is not to be looked at.
    """

    model: str = ""
    costs: CostTable | None = None


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The session cannot start; the message is for the person at the terminal."""

    message: str


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
        outcomes: Answers, or what was wrong with that one question.
        started_s: When the session began with it, by the clock that processes share.
        inference_ms: From then to its end, in milliseconds.
        stages_ms: How much of that each stage took; what is left went to other batches.
    """

    number: int
    outcomes: list[Answers | Failure]
    started_s: float
    inference_ms: float
    stages_ms: StagesMs = StagesMs()


ToWorker = Setup | Batch
ToLoop = Ready | Failed | Results

to_worker_decoder = msgspec.msgpack.Decoder(ToWorker)
to_loop_decoder = msgspec.msgpack.Decoder(ToLoop)

MAX_MESSAGE_BYTES = 2**32 - 1
READ_BYTES = 1 << 16

_encoder = msgspec.msgpack.Encoder()


def encode(message: ToWorker | ToLoop) -> bytearray:
    """Encodes a message as a frame."""
    frame = bytearray(PREFIX.size)
    _encoder.encode_into(message, frame, PREFIX.size)
    PREFIX.pack_into(frame, 0, len(frame) - PREFIX.size)
    return frame


class WorkerChannel:
    """The worker's end of the socketpair: blocking, one message at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._frames = FrameReader(MAX_MESSAGE_BYTES)

    def receive(self) -> ToWorker | None:
        """Waits for the next message; None when the loop's end is closed."""
        while (frame := self._frames.next_frame()) is None:
            try:
                data = self._sock.recv(READ_BYTES)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames.feed(data)
        message: ToWorker = to_worker_decoder.decode(frame)
        return message

    def has_more(self) -> bool:
        """Whether `receive` would not have to wait: a message has begun, or the end has come."""
        if self._frames.buffered_bytes:
            return True
        try:
            self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    def send(self, message: ToLoop) -> None:
        """Sends a message.

        Raises:
            OSError: The loop's end is closed.
        """
        self._sock.sendall(encode(message))

    def close(self) -> None:
        """Closes this end; the loop sees end-of-file."""
        self._sock.close()
