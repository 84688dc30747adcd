"""The bound on the server's memory, whatever its clients do.

    connections x (frame + one read + read-ahead + unread answers + one turn's answers)
  + (queue + instances) x request
  + instances x frame
  + instances x two batches of short requests
  + with a cache, its bytes and the requests that may wait for the runs of others

A frame's text may take four bytes a character once it is a `str`, where it took one in the
frame: a request in the queue is up to four frames, and an id. A batch on its way to a worker
is in the channel's buffer as well, and CPython keeps its texts' UTF-8: two frames more for each.
A text of several windows is cut into segments in the loop: what waits in a channel is short, and
has no more tokens than a window, at four bytes of UTF-8 each.
"""

from __future__ import annotations

from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.net.stream import READ_BYTES
from qa_service.server.config import ServerConfig
from qa_service.server.front.connection import MESSAGES_A_TURN, READ_AHEAD_BYTES
from qa_service.server.front.open_connections import RESERVE
from qa_service.wire.messages import MAX_ID_BYTES

BYTES_A_CHAR = 4
BYTES_A_TOKEN = 4
WINDOW_TOKENS = ReadingConfig().window_tokens
REPLY_BYTES = 2048
OBJECTS_BYTES = 8192
"""Python's own objects for a connection or a request: measured, rounded up."""


def bound_bytes(config: ServerConfig) -> int:
    """The most that clients can make the server hold, on top of what it needs when idle."""
    max_frame_bytes = config.requests.max_frame_bytes
    connection = (
        max_frame_bytes
        + READ_BYTES
        + READ_AHEAD_BYTES
        + config.connections.max_output_buffer_bytes
        + MESSAGES_A_TURN * REPLY_BYTES
        + OBJECTS_BYTES
    )
    request = BYTES_A_CHAR * max_frame_bytes + MAX_ID_BYTES + OBJECTS_BYTES
    short = (BYTES_A_CHAR + 2) * BYTES_A_TOKEN * WINDOW_TOKENS + MAX_ID_BYTES + OBJECTS_BYTES
    instances = config.instances.num_inference_sessions
    cache = config.cache
    return (
        (config.listen.max_connections + RESERVE) * connection
        + (config.queue.max_queue_size + instances) * request
        + instances * 2 * max_frame_bytes
        + instances * 2 * config.instances.max_batch_size * short
        + bool(cache.cache_bytes) * (cache.cache_bytes + config.queue.max_queue_size * request)
    )
