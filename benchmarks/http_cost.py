"""What HTTP costs over frames: time of the codec and the loop, latency, throughput, memory.

    python -m benchmarks.http_cost                  # all of it
    python -m benchmarks.http_cost --part codec     # or servers, or idle

codec: processor time of a request in, its message out, its answer back; no socket; the minimum of
many short runs. servers: whole ones, with the engine that answers at once; the loop's time is the
processor time of the server's own process, without its workers'; mosec's front is not its first
process, so that it has none here. idle: the memory of connections that each have asked one question
over HTTP and are kept alive, and the latency of one client beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import msgspec

from benchmarks.cells import Cells
from benchmarks.http_wire import HttpWire
from benchmarks.load import measure
from benchmarks.loop import allow_descriptors, open_idle
from benchmarks.record import Section, make_parser
from benchmarks.tables import markdown
from benchmarks.targets import MOSEC, Running, ours, peer, running
from benchmarks.texts import Item, uniform
from harness.frames import frame
from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.programs.load.wire import Reply
from qa_service.server.front.protocols import HttpDate
from qa_service.wire.codec import Codec
from qa_service.wire.frame_codec import FrameCodec
from qa_service.wire.http.http_access import HttpAccess
from qa_service.wire.http.http_codec import HttpCodec, HttpSite
from qa_service.wire.messages import Answer, Auth, Request, RequestLimits, Timings

RUNS, REQUESTS = 200, 200
TEXT = "Ada Lovelace wrote the notes in London in 1843. " * 16
LIMITS = RequestLimits()
ANSWERS = [Answer("Ada Lovelace", 0.97, 0, 12)]
TIMINGS = Timings(0.041, 18.25)

CLIENTS = (1, 50)
WARMUP_S, DURATION_S = 0.5, 3.0
IDLE, IDLE_DURATION_S = 10_000, 5.0
INSTANT = ("--inference_engine_type", "instant")


def posted(path: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    return (
        b"POST %s HTTP/1.1\r\nHost: localhost:9999\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data)
    )


ASK = {"question": "Who wrote the notes?", "text": TEXT}
TENSORS = [
    {"name": name, "shape": [1], "datatype": "BYTES", "data": [data]} for name, data in ASK.items()
]


def http() -> Codec:
    return HttpCodec(HttpSite(LIMITS, HttpAccess(is_loopback=True), HttpDate()), wants_token=False)


KINDS: dict[str, tuple[Callable[[], Codec], bytes]] = {
    "a frame": (lambda: FrameCodec(LIMITS, LIMITS.max_frame_bytes), frame({"id": 1, **ASK})),
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


class _Output(msgspec.Struct):
    data: list[str | int | float]


class _Response(msgspec.Struct):
    outputs: list[_Output]


class OpenInferenceWire(HttpWire):
    """One question a request in the Open Inference Protocol, in JSON."""

    _decode_response = msgspec.json.Decoder(_Response).decode

    def body(self, question: SquadQuestion) -> bytes:
        tensors = {"question": question.question, "text": question.context}
        inputs = [
            {"name": name, "shape": [1], "datatype": "BYTES", "data": [data]}
            for name, data in tensors.items()
        ]
        return self._request(msgspec.json.encode({"inputs": inputs}))

    def _reply(self, request_id: int, status: bytes, body: bytes) -> Reply:
        if status != b"200":
            return Reply(request_id, f"http_{status.decode(errors='replace')}")
        answer, _, start, end = (o.data[0] for o in self._decode_response(body).outputs)
        return Reply(request_id, "", answer, None if start == -1 else start, end)


FRAMES = ours("frames", *INSTANT)
POSTED = replace(FRAMES, name="POST /qa", wire=partial(HttpWire, "/qa"))
OPEN_WIRE = partial(OpenInferenceWire, "/v2/models/builtin/infer")
TARGETS = [
    FRAMES,
    POSTED,
    replace(FRAMES, name="Open Inference Protocol", wire=OPEN_WIRE),
    peer("mosec, no batching", "mosec_server", MOSEC, "--instant"),
    peer("mosec, batches of 32", "mosec_server", MOSEC, "--instant", "--batch", "32"),
]
FIGURES = (
    ("loop_us", "processor time of the server's own process a request, µs", 0),
    ("throughput", "answers/s by connections", 0),
    ("p50", "p50, ms", 2),
    ("p99", "p99, ms", 2),
    ("cpu_ms", "processor time an answer, ms in all of a server's processes", 3),
)


def say_codec(section: Section, flags: argparse.Namespace, items: list[Item]) -> None:
    costs_us = {name: cost_us(make, data) for name, (make, data) in KINDS.items()}
    section.raw["codec_us"] = costs_us
    rows = [[name, f"{cost:.1f}"] for name, cost in costs_us.items()]
    section.say(markdown([f"a text of {len(TEXT)} characters", "in the codec, µs"], rows))


def say_servers(section: Section, flags: argparse.Namespace, items: list[Item]) -> None:
    cells, duration_s = Cells(), 0.3 if flags.quick else DURATION_S

    def measure_rows(server: Running, repeat: int) -> None:
        for clients in CLIENTS:
            kept = measure(server, items, clients, WARMUP_S, duration_s)
            if server.target.module:
                kept["loop_us"] = math.nan
            cells.add(server.target.name, str(clients), kept)

    cells.measure(TARGETS, flags.model, 1 if flags.quick else flags.repeats, measure_rows)
    cells.say(section, [str(clients) for clients in CLIENTS], FIGURES)


def say_idle(section: Section, flags: argparse.Namespace, items: list[Item]) -> None:
    allow_descriptors()
    number = 200 if flags.quick else IDLE
    target = replace(POSTED, flags=(*POSTED.flags, "--max_connections", "12000"))
    with running(target, flags.model) as server, ExitStack() as stack:
        alone = measure(server, items, 1, WARMUP_S, IDLE_DURATION_S)
        kib = open_idle(stack, server, items[0].asked, number)
        beside = measure(server, items, 1, WARMUP_S, IDLE_DURATION_S)
    section.raw["idle"] = {"alone": alone, "beside": beside, "memory_kib": round(kib, 2)}
    section.say(
        f"{number:,} idle connections: {kib:.2f} KiB each. One client beside them: p50 "
        f"{beside['p50']:.2f} ms, p99 {beside['p99']:.2f} ms; without them {alone['p50']:.2f} and "
        f"{alone['p99']:.2f} ms."
    )


PARTS = {"codec": say_codec, "servers": say_servers, "idle": say_idle}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--part", choices=tuple(PARTS), action="append", help="only this")
    flags = parser.parse_args()
    section = Section("http_cost", "What HTTP costs over frames", flags, ("httptools", "mosec"))
    items = uniform(read_squad(flags.questions_file))[:500]
    for part in flags.part or PARTS:
        PARTS[part](section, flags, items)
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
