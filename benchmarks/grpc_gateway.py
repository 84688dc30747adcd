"""What gRPC adds to a frame, what a core of gateway carries, and whether its peers are even.

    python -m benchmarks.grpc_gateway

Costs are with the engine that answers at once, so that what is left is a question's way: by a
frame, by HTTP, by gRPC through the gateway, and by a bare grpc.aio server that answers nothing,
which is the library's own price. The clients are closed loops of one asyncio program, the same for
all but for what speaks the protocol; each has a connection of its own. A process's time is its
processor time a question; a core carries its inverse. Fairness is with a real engine: three clients
with one question in flight, alone and together with one with 64.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import msgspec

from benchmarks.record import Section, make_parser
from benchmarks.tables import median, percentile
from harness.gateway import GatewayServer, running_gateway
from harness.ports import reserve_port
from harness.process import cpu_s
from harness.questions import ASK
from harness.server import EXACT_ENGINE, INSTANT, ROOT
from qa_service.aio.connection import open_connection
from qa_service.client import MAX_RESPONSE_BYTES, Server, Terms, encode_frame, look_up
from qa_service.sidecars.grpc_gateway.messages import ModelInferRequest

CLIENTS = (1, 32)
WARMUP_S, DURATION_S, FAIRNESS_S = 0.5, 5.0, 15.0
GREEDY_IN_FLIGHT = 64
SERVICE = "/inference.GRPCInferenceService"
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Else all channels of a process to one address share a connection, and are one peer."""

Ask = Callable[[], Awaitable[object]]
Client = Callable[[int], "AsyncIterator[Ask]"]


def grpc_request() -> bytes:
    """A question in raw contents, as tritonclient sends it."""
    request = ModelInferRequest(model_name="builtin")
    for name in ("question", "text"):
        request.inputs.add(name=name, datatype="BYTES", shape=[1])
        data = ASK[name].encode()
        request.raw_input_contents.append(len(data).to_bytes(4, "little") + data)
    return request.SerializeToString()


# Clients: each gives a function that asks once.


@asynccontextmanager
async def by_frame(port: int):
    [addresses] = look_up("127.0.0.1", port)
    terms = Terms(60.0, MAX_RESPONSE_BYTES, None, None)
    connection = await open_connection(Server("127.0.0.1", port, addresses), terms)
    ids = itertools.count(1)

    async def ask() -> bytes:
        number = next(ids)
        return await connection.ask(number, encode_frame({"id": number, **ASK}), bytes)

    yield ask
    connection.close()


@asynccontextmanager
async def by_http(port: int):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = msgspec.json.encode(ASK)
    request = b"POST /qa HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )

    async def ask() -> bytes:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r")[0])
        return await reader.readexactly(length)

    yield ask
    writer.close()


@asynccontextmanager
async def by_grpc(port: int, path: str = f"{SERVICE}/ModelInfer"):
    async with grpc.aio.insecure_channel(f"localhost:{port}", options=OWN_CONNECTION) as channel:
        call, request = channel.unary_unary(path), grpc_request()
        yield lambda: call(request)


@asynccontextmanager
async def by_grpc_stream(port: int):
    async with grpc.aio.insecure_channel(f"localhost:{port}", options=OWN_CONNECTION) as channel:
        stream, request = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")(), grpc_request()

        async def ask() -> object:
            await stream.write(request)
            return await stream.read()

        yield ask
        await stream.done_writing()


def by_echo(port: int):
    return by_grpc(port, "/echo/Echo")


async def loops(client, port: int, count: int, seconds: float) -> list[float]:
    """Milliseconds of each question of several clients that ask again when answered."""
    waited_ms: list[float] = []

    async def loop(ask: Ask, until_s: float) -> None:
        while (started_s := time.perf_counter()) < until_s:
            await ask()
            waited_ms.append((time.perf_counter() - started_s) * 1e3)

    async with AsyncExitStack() as stack:
        asks = [await stack.enter_async_context(client(port)) for _ in range(count)]
        until_s = time.perf_counter() + seconds
        await asyncio.gather(*(loop(ask, until_s) for ask in asks))
    return waited_ms


def measured(
    client, port: int, count: int, seconds: float, pids: Sequence[int]
) -> dict[str, float]:
    """Figures of one kind of client; the processor time of each process in µs a question."""
    asyncio.run(loops(client, port, count, WARMUP_S))
    before_s = [cpu_s(pid) for pid in pids]
    waited_ms = asyncio.run(loops(client, port, count, seconds))
    used_us = [
        (cpu_s(pid) - s) * 1e6 / len(waited_ms) for pid, s in zip(pids, before_s, strict=True)
    ]
    loop_us, gateway_us = [*used_us, math.nan][:2]
    return {
        "per_s": len(waited_ms) / seconds,
        "p50": percentile(waited_ms, 50),
        "p99": percentile(waited_ms, 99),
        "loop_us": loop_us,
        "gateway_us": gateway_us,
    }


class EchoServer:
    """The bare server, while the block lasts."""

    def __enter__(self) -> EchoServer:
        self.port = reserve_port()
        command = [sys.executable, "-m", "benchmarks.servers.grpc_echo", str(self.port)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert self.process.stdout
        assert self.process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def costs(gateway: GatewayServer, seconds: float) -> dict[str, dict[str, float]]:
    """One round: each protocol with each number of clients."""
    loop, process = gateway.server.process.pid, gateway.pid
    found = {}
    with EchoServer() as echo:
        for count in CLIENTS:
            for name, client, port, pids in (
                ("frames", by_frame, gateway.server.port, [loop]),
                ("HTTP", by_http, gateway.server.port, [loop]),
                ("gRPC", by_grpc, gateway.port, [loop, process]),
                ("gRPC, streams", by_grpc_stream, gateway.port, [loop, process]),
                ("bare grpc.aio", by_echo, echo.port, [loop, echo.process.pid]),
            ):
                found[f"{name}, {count}"] = measured(client, port, count, seconds, pids)
    return found


async def fairness(port: int, seconds: float) -> dict[str, float]:
    """Median milliseconds of three clients, alone and with one with many questions in flight."""

    async def greedy() -> None:
        async with by_grpc(port) as ask:
            running = {asyncio.ensure_future(ask()) for _ in range(GREEDY_IN_FLIGHT)}
            try:
                while True:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    running |= {asyncio.ensure_future(ask()) for _ in done}
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    await loops(by_grpc, port, 3, WARMUP_S)
    alone_ms = median(await loops(by_grpc, port, 3, seconds))
    load = asyncio.create_task(greedy())
    loaded_ms = median(await loops(by_grpc, port, 3, seconds))
    load.cancel()
    await asyncio.gather(load, return_exceptions=True)
    return {"alone_ms": alone_ms, "loaded_ms": loaded_ms, "ratio": loaded_ms / alone_ms}


def report(section: Section, cells: dict[str, list[dict[str, float]]]) -> None:
    rows = [
        "| clients by, number | questions/s | p50, ms | p99, ms | server's loop, µs | gateway, µs "
        "| a core of gateway carries |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in cells.items():
        its = {key: median([run[key] for run in runs]) for key in runs[0]}
        has_one = not math.isnan(its["gateway_us"])
        gateway_cells = (
            f"{its['gateway_us']:.0f} | {1e6 / its['gateway_us']:,.0f}/s" if has_one else "|"
        )
        loop = "" if name.startswith("bare") else f"{its['loop_us']:.0f}"
        cells_of = (name, f"{its['per_s']:,.0f}", f"{its['p50']:.2f}", f"{its['p99']:.2f}", loop)
        rows.append(f"| {' | '.join(cells_of)} | {gateway_cells} |")
    section.say("\n".join(rows))


def main() -> int:
    flags = make_parser(__doc__).parse_args()
    title = "What gRPC costs, and whether its peers are served fairly"
    section = Section("grpc_gateway", title, flags, ("grpcio", "protobuf"))
    repeats, scale = (1, 0.1) if flags.quick else (flags.repeats, 1.0)
    cells: dict[str, list[dict[str, float]]] = {}
    with running_gateway(flags.model, *INSTANT) as gateway:
        for _ in range(repeats):
            for name, figures in costs(gateway, DURATION_S * scale).items():
                cells.setdefault(name, []).append(figures)
    report(section, cells)
    with running_gateway(flags.model, *EXACT_ENGINE) as gateway:
        runs = [asyncio.run(fairness(gateway.port, FAIRNESS_S * scale)) for _ in range(repeats)]
    fair = {key: median([run[key] for run in runs]) for key in runs[0]}
    section.say(
        f"Three gRPC peers with one question in flight each: {fair['alone_ms']:.1f} ms alone, "
        f"{fair['loaded_ms']:.1f} ms with one that has {GREEDY_IN_FLIGHT} ({fair['ratio']:.2f}; a "
        "fair share is 4/3). Medians."
    )
    section.raw |= {"cells": cells, "fairness": runs}
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
