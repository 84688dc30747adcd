"""What HTTP costs over frames: time of the loop, latency and throughput, with no model behind.

    python -m benchmarks.http_cost

The engine answers at once, so that what is left is the way of a request through the server. The
loop's time is the processor time of the server's own process, without its workers'; mosec's front
is not its first process, so that it has none here. One run of each target a round; mosec is another
server's front, in the same kind of work.
"""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial

import msgspec

from benchmarks.cells import Cells, measure
from benchmarks.http_wire import HttpWire
from benchmarks.peers import rounds
from benchmarks.record import Section, make_parser
from benchmarks.targets import MOSEC, NotStartedError, Running, Target, ours, peer, running
from benchmarks.texts import uniform
from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.load.wire import Reply

CLIENTS = (1, 50)
WARMUP_S, DURATION_S = 0.5, 3.0
INSTANT = ("--inference_engine_type", "instant")


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
TARGETS = [
    FRAMES,
    Target("POST /qa", FRAMES.command, partial(HttpWire, "/qa")),
    Target(
        "Open Inference Protocol",
        FRAMES.command,
        partial(OpenInferenceWire, "/v2/models/builtin/infer"),
    ),
    peer("mosec, no batching", "mosec_server", MOSEC, "--instant"),
    peer("mosec, batches of 32", "mosec_server", MOSEC, "--instant", "--batch", "32"),
]


class HttpCost:
    """All targets, all rows."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self._model = flags.model
        self._items = uniform(read_squad(flags.questions_file))[:500]
        self._duration_s = 0.3 if flags.quick else DURATION_S
        self.cells = Cells()
        self.absent: dict[str, str] = {}

    def measure(self, target: Target) -> None:
        if target.name in self.absent:
            return
        try:
            with running(target, self._model) as server:
                for clients in CLIENTS:
                    self._measure(server, clients)
        except (NotStartedError, RuntimeError, OSError) as error:
            self.absent[target.name] = f"{type(error).__name__}: {error}"

    def _measure(self, server: Running, clients: int) -> None:
        kept = measure(server, self._items, clients, WARMUP_S, self._duration_s)
        if server.target.command != FRAMES.command:
            kept["loop_us"] = math.nan
        self.cells.add(server.target.name, str(clients), kept)


def report(section: Section, cost: HttpCost) -> None:
    for name, error in cost.absent.items():
        section.say(f"{name} did not take part: {error}")
    rows = [str(clients) for clients in CLIENTS]
    for name, label, digits in (
        ("loop_us", "processor time of the server's own process a request, µs", 0),
        ("throughput", "answers/s by connections", 0),
        ("p50", "p50, ms", 2),
        ("p99", "p99, ms", 2),
        ("cpu_ms", "processor time an answer, ms in all of a server's processes", 3),
    ):
        section.say(f"**{label}**\n\n" + cost.cells.table("", rows, name, digits))
    section.say(f"Failed requests: at most {cost.cells.worst('failed'):.0f} in a cell.")


def main() -> int:
    flags = make_parser(__doc__).parse_args()
    section = Section("http_cost", "What HTTP costs over frames", flags, ("httptools", "mosec"))
    cost = HttpCost(flags)
    for _, target in rounds(TARGETS, 1 if flags.quick else flags.repeats):
        cost.measure(target)
    section.raw |= {"cells": cost.cells.raw(), "absent": cost.absent}
    report(section, cost)
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
