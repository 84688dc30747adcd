"""The bound on the server's memory, whatever its clients do.

    connections x (frame + one read + read-ahead + unread answers + one turn's answers)
  + (queue + sessions) x request
  + sessions x frame
  + sessions x two batches of short requests

A frame's text may take four bytes a character once it is a `str`, where it took one in the
frame: a request in the queue is up to four frames, and an id. A batch on its way to a worker
is in the channel's buffer as well, and CPython keeps its texts' UTF-8: two frames more for each.
A session has one long text at most; what is short has no more tokens than a window, at four bytes
of UTF-8 each.
"""

from __future__ import annotations

from qa_service.config import ServerConfig
from qa_service.connection import FRAMES_A_TURN, READ_AHEAD_BYTES
from qa_service.manifest import ReadingConfig
from qa_service.protocol import MAX_ID_BYTES
from qa_service.stream import READ_BYTES

BYTES_A_CHAR = 4
BYTES_A_TOKEN = 4
WINDOW_TOKENS = ReadingConfig().window_tokens
REPLY_BYTES = 2048
OBJECTS_BYTES = 8192
"""Python's own objects for a connection or a request: measured, rounded up."""


def bound_bytes(config: ServerConfig) -> int:
    """The most that clients can make the server hold, on top of what it needs when idle."""
    connection = (
        config.max_frame_bytes
        + READ_BYTES
        + READ_AHEAD_BYTES
        + config.max_output_buffer_bytes
        + FRAMES_A_TURN * REPLY_BYTES
        + OBJECTS_BYTES
    )
    request = BYTES_A_CHAR * config.max_frame_bytes + MAX_ID_BYTES + OBJECTS_BYTES
    short = (BYTES_A_CHAR + 2) * BYTES_A_TOKEN * WINDOW_TOKENS + MAX_ID_BYTES + OBJECTS_BYTES
    sessions = config.num_inference_sessions
    return (
        config.max_connections * connection
        + (config.max_queue_size + sessions) * request
        + sessions * 2 * config.max_frame_bytes
        + sessions * 2 * config.max_batch_size * short
    )
