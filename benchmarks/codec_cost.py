"""What the codecs take of the loop: a request in, its message out, its answer back; no socket.

    python -m benchmarks.codec_cost

Microseconds of processor time a request, the minimum of many short runs, so that what else the
machine does hardly shows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from qa_service.wire.codec import Codec
from qa_service.wire.frame_codec import FrameCodec
from qa_service.wire.http_access import HttpAccess
from qa_service.wire.http_codec import HttpCodec, HttpSite
from qa_service.wire.messages import Answer, Auth, Request, RequestLimits, Timings

RUNS, REQUESTS = 200, 200
TEXT = "Ada Lovelace wrote the notes in London in 1843. " * 16
LIMITS = RequestLimits()
ANSWERS = [Answer("Ada Lovelace", 0.97, 0, 12)]
TIMINGS = Timings(0.041, 18.25)


def posted(path: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    return (
        b"POST %s HTTP/1.1\r\nHost: localhost:9999\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data)
    )


def frame() -> bytes:
    data = json.dumps({"id": 1, **ASK}).encode()
    return len(data).to_bytes(4, "big") + data


ASK = {"question": "Who wrote the notes?", "text": TEXT}
TENSORS = [
    {"name": name, "shape": [1], "datatype": "BYTES", "data": [data]} for name, data in ASK.items()
]


def http() -> Codec:
    return HttpCodec(HttpSite(LIMITS, HttpAccess(is_loopback=True)), wants_token=False)


KINDS: dict[str, tuple[Callable[[], Codec], bytes]] = {
    "a frame": (lambda: FrameCodec(LIMITS, LIMITS.max_frame_bytes), frame()),
    "POST /qa": (http, posted("/qa", ASK)),
    "Open Inference Protocol": (http, posted("/v2/models/builtin/infer", {"inputs": TENSORS})),
}


def cost_us(make: Callable[[], Codec], data: bytes) -> float:
    """The minimum of many runs, each of some requests."""
    return min(run_us(make(), data) for _ in range(RUNS))


def run_us(codec: Codec, data: bytes) -> float:
    started_s = time.thread_time()
    for _ in range(REQUESTS):
        codec.feed(data)
        while (message := codec.next_message()) is not None:
            if isinstance(message, Auth):
                codec.encode_authenticated(message)
            elif isinstance(message, Request):
                codec.trace_of(message)
                codec.encode_answers(message, ANSWERS, TIMINGS)
    return (time.thread_time() - started_s) / REQUESTS * 1e6


def main() -> None:
    print(f"a question of a text of {len(TEXT)} characters: microseconds in the codec")
    for name, (make, data) in KINDS.items():
        print(f"{name:25}{cost_us(make, data):6.1f}")


if __name__ == "__main__":
    main()
