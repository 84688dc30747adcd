"""Checks what must hold of the decoder, whatever it is fed."""

from __future__ import annotations

from harness.frames import frame
from harness.mutate import Mutator, check_json
from qa_service.errors import ERROR_KINDS, FrameTooLargeError
from qa_service.instance.worker_messages import Batch, encode, to_worker_decoder
from qa_service.wire.frames import PREFIX, FrameReader
from qa_service.wire.json_codec import encode_answers, encode_error, parse_request
from qa_service.wire.messages import (
    MAX_ID_BYTES,
    MAX_QUESTION_CHARS,
    Answer,
    Answered,
    RejectedError,
    Request,
    Timings,
)

MAX_FRAME_BYTES = 4096
UNKNOWN = Answer("", 0.5, None, None)
BURST = 50  # bodies in the buffer at a time


def check_body(body: bytes) -> bool:
    """Parses a body; says whether it is a request.

    Raises:
        Exception: It did anything but become a request within limits, whose answer can be
            written and which a worker can read, or an error that can be answered.
    """
    try:
        request = parse_request(body)
    except RejectedError as rejected:
        assert ERROR_KINDS[rejected.error.code] is type(rejected.error)
        assert len(rejected.id_json) <= MAX_ID_BYTES
        check_json(encode_error(rejected.id_json, rejected.error)[PREFIX.size :])
        return False
    if not isinstance(request, Request):
        check_json(request.id_json)
        return True
    assert 0 < len(request.question) <= MAX_QUESTION_CHARS
    assert bool(request.text) != bool(request.collection)
    answered = Answered([UNKNOWN], Timings(0, 0))
    check_json(encode_answers(request.id_json, answered, 1)[PREFIX.size :])
    batch = Batch(0, [request.as_task()])
    assert to_worker_decoder.decode(encode(batch)[PREFIX.size :]) == batch
    return True


def check_stream(data: bytes) -> None:
    """Reads a stream to its end or to its first length that is too large."""
    reader = FrameReader(MAX_FRAME_BYTES)
    reader.feed(data)
    try:
        for body in iter(reader.next_frame, None):
            check_body(body)
    except FrameTooLargeError:
        pass
    assert len(reader.buffer) <= len(data)


def fuzz(count: int, seed: int) -> int:
    """Checks a number of frames, in bursts that each end with a broken one.

    Returns:
        How many were valid requests.
    """
    mutator, valid = Mutator(seed), 0
    for _ in range(0, count, BURST):
        bodies = mutator.bodies(BURST - 1)
        reader = FrameReader(MAX_FRAME_BYTES)
        reader.feed(b"".join(map(frame, bodies)))
        for body in bodies:
            if len(body) > MAX_FRAME_BYTES:
                break
            assert reader.next_frame() == body
            valid += check_body(body)
        check_stream(mutator.broken_frame() + frame(bodies[0]))
    return valid
