"""The messages between the loop and the program that measures engines.

loop ──TrialRequest──▶ program    once
loop ◀──TrialReply── program      once; end-of-file without one means that it died
"""

from __future__ import annotations

import msgspec

from qa_service.autotune.engine_table import EngineTable, Measurement
from qa_service.logs import LogOptions
from qa_service.wire.frames import frame_of

MAX_MESSAGE_BYTES = 1 << 24
"""A table takes some kilobytes."""


class TrialRequest(msgspec.Struct, frozen=True):
    """What to measure, and the log of the instances that run it.

    Attributes:
        is_beside: Whether the server serves meanwhile, and has the processor first.
    """

    measurement: Measurement
    logs: LogOptions
    is_beside: bool = False


class TrialReply(msgspec.Struct, frozen=True):
    """The table; None and the reason if the reference could not run."""

    table: EngineTable | None = None
    failure: str = ""


def encode(message: TrialRequest | TrialReply) -> bytes:
    return frame_of(msgspec.msgpack.encode(message))
