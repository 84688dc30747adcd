"""What idle HTTP connections cost: memory each, and the latency of those that ask beside them.

    python -m benchmarks.http_idle

Each connection asks one question over HTTP and is then silent, kept alive. The engine answers at
once. Latency is that of one client over HTTP, before and beside the idle ones.
"""

from __future__ import annotations

import resource
import sys
from contextlib import ExitStack
from functools import partial

from benchmarks.cells import measure
from benchmarks.http_wire import HttpWire
from benchmarks.loop import open_idle
from benchmarks.record import Section, make_parser
from benchmarks.targets import Target, ours, running
from benchmarks.texts import uniform
from qa_service.data.squad import read_squad

IDLE = 10_000
WARMUP_S, DURATION_S = 0.5, 5.0
FLAGS = ("--inference_engine_type", "instant", "--max_connections", "12000")


def main() -> int:
    flags = make_parser(__doc__).parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    idle = 200 if flags.quick else IDLE
    items = uniform(read_squad(flags.questions_file))[:500]
    section = Section("http_idle", "Idle HTTP connections", flags, ("httptools",))
    target = Target("POST /qa", ours("", *FLAGS).command, partial(HttpWire, "/qa"))
    with running(target, flags.model) as server, ExitStack() as stack:
        alone = measure(server, items, 1, WARMUP_S, DURATION_S)
        before_bytes = server.rss_bytes()
        open_idle(stack, server, items[0].asked, idle)
        kib = (server.rss_bytes() - before_bytes) / idle / 1024
        beside = measure(server, items, 1, WARMUP_S, DURATION_S)
    section.raw |= {"alone": alone, "beside": beside, "memory_kib": round(kib, 2)}
    section.say(
        f"{idle:,} idle connections: {kib:.2f} KiB each. One client beside them: p50 "
        f"{beside['p50']:.2f} ms, p99 {beside['p99']:.2f} ms; without them {alone['p50']:.2f} and "
        f"{alone['p99']:.2f} ms."
    )
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
