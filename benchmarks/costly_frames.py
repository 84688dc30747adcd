"""Ten honest clients beside one that sends nothing but the frames that cost the loop most.

    python -m benchmarks.costly_frames --duration_s 15

A frame over 16 KiB ends its connection's turn, so that such a client delays the others by one
frame a round. Exit code 0 if every honest answer was right, 1 otherwise; the ratio of the p99s is
for reading.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

from harness.frame_cost import MAX_FRAME_BYTES, cost_ms
from harness.frames import frame
from harness.hostile_frames import HOSTILE, OK
from harness.load import QuietAnswers, report_of
from harness.server import EXACT_ENGINE, running_server
from qa_service.repository.options import DEFAULT_MODEL


def costliest() -> tuple[str, bytes, float]:
    """The frame that costs the loop most before it is refused: its name, itself, milliseconds."""
    bodies = {
        name: make(MAX_FRAME_BYTES) for name, (make, outcome) in HOSTILE.items() if outcome != OK
    }
    costs_ms = {name: cost_ms(body)[0] for name, body in bodies.items()}
    name = max(costs_ms, key=costs_ms.__getitem__)
    return name, frame(bodies[name]), costs_ms[name]


async def send_without_end(port: int, costly: bytes) -> None:
    """Sends one frame after another as fast as the server takes them, and reads the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def read() -> None:
        while await reader.read(1 << 16):
            pass

    reading = asyncio.create_task(read())
    try:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(costly)
                await writer.drain()
    finally:
        reading.cancel()
        writer.close()


async def measure(port: int, costly: bytes, num_honest: int, duration_s: float) -> list:
    """What the honest clients saw: alone, beside the costly one, and alone again."""
    plan = QuietAnswers(port).plan(num_honest, duration_s)
    reports = [await asyncio.to_thread(report_of, plan)]
    sender = asyncio.create_task(send_without_end(port, costly))
    reports.append(await asyncio.to_thread(report_of, plan))
    sender.cancel()
    await asyncio.gather(sender, return_exceptions=True)
    return [*reports, await asyncio.to_thread(report_of, plan)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duration_s", type=float, default=15.0, help="how long, each time")
    parser.add_argument("--num_honest", type=int, default=10, help="honest clients")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    flags = parser.parse_args()
    name, costly, cost = costliest()
    print(f"the costliest frame that is refused: {name}, {len(costly)} bytes, {cost:.2f} ms")
    with running_server(flags.model, *EXACT_ENGINE) as server:
        before, beside, after = asyncio.run(
            measure(server.port, costly, flags.num_honest, flags.duration_s)
        )
    for when, report in (("alone", before), ("beside it", beside), ("alone again", after)):
        print(f"{when}\n{report}")
    quiet_ms = (before.percentiles_ms[99] + after.percentiles_ms[99]) / 2
    print(f"p99 beside it / alone:   {beside.percentiles_ms[99] / quiet_ms:.2f}")
    return 1 if beside.errors else 0


if __name__ == "__main__":
    sys.exit(main())
