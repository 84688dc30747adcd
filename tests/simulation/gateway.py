"""The gRPC gateway without a process and without grpcio: all else of it runs as it is.

    Call ─▶ RpcServer ─▶ InferenceService ─▶ PeerLinks ─▶ AsyncConnection ─▶ UnixSocket ─▶ server
     └─ the handler's context ─┘

The server starts it, restarts it when it is killed, and has it drain. Its bounds are small ones.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from msgspec import structs

from qa_service.sidecars.grpc_gateway import child_main
from qa_service.sidecars.grpc_gateway.grpc_messages import INFERENCE_SERVICE
from qa_service.sidecars.grpc_gateway.grpc_server import GrpcServer
from qa_service.sidecars.grpc_gateway.program import parse
from qa_service.sidecars.grpc_gateway.stream import InferStream
from tests.simulation.asyncio_loop import SimulatedAsyncLoop
from tests.simulation.network import Network, SimulatedSocket, SocketModule
from tests.simulation.world import OrderedSet, Violation
from tests.support import present

if TYPE_CHECKING:
    from tests.simulation.grpc_calls import Call

CHANNEL_BYTES = 1 << 12
START_S = 0.02


@dataclass(frozen=True)
class GatewayPlan:
    """The gateway's bounds: `--max_connections`, and those that `links` has as constants."""

    max_connections: int = 1000
    max_links: int = 64
    max_calls: int = 1024
    idle_s: float = 1.0


class Gateway:
    """The gateway's program, whichever runs now, and the calls that are made of it.

    Attributes:
        calls: Those under way.
    """

    def __init__(self, plan: GatewayPlan, network: Network) -> None:
        self.plan, self.network = plan, network
        self.calls: list[Call] = []
        self._program: GatewayProgram | None = None
        self._seen_turns = 0

    @property
    def program(self) -> GatewayProgram:
        """The latest, once the first has been started."""
        return present(self._program)

    @property
    def takes_calls(self) -> bool:
        return self._program is not None and self._program.is_listening

    @property
    def processes(self) -> list[GatewayProgram]:
        """Those that have not ended."""
        return [self._program] if self._program and self._program.poll() is None else []

    def has_run(self) -> bool:
        """Whether it listens and has run since this was asked last."""
        if not self.takes_calls:
            return False
        seen, self._seen_turns = self._seen_turns, self.program.loop.num_turns
        return seen != self._seen_turns

    def asked_now(self, key: tuple[str, str]) -> set[str]:
        """The questions of a peer and token that wait for their answers."""
        its = (asked for call in self.calls if call.key == key for asked in call.waiting.values())
        return {subject.question for asked in its for subject in asked.subjects}

    def users(self) -> Counter[tuple[str, str]]:
        """How many calls the gateway answers now, by peer and token."""
        return Counter(call.key for call in self.calls if call.is_handled)

    def start_program(self, *arguments: str) -> tuple[GatewayProgram, SimulatedSocket]:
        self._program = GatewayProgram(self, arguments)
        return self._program, self._program.sock

    def parts(self) -> dict[str, object]:
        """What stands in for the parts of the gateway's machine, by their names."""
        module = SocketModule(lambda *_: _running_loop().make_socket())
        return {
            "qa_service.aio.connection.socket": module,
            "qa_service.sidecars.grpc_gateway.reports.socket": module,
            "qa_service.sidecars.grpc_gateway.links.IDLE_S": self.plan.idle_s,
            "qa_service.sidecars.grpc_gateway.links.MAX_LINKS": self.plan.max_links,
            "qa_service.sidecars.grpc_gateway.links.MAX_CALLS": self.plan.max_calls,
            "qa_service.sidecars.grpc_gateway.service.InferStream": OrderedStream,
            "grpc.aio.server": lambda options: RpcServer(),
        }


def _running_loop() -> SimulatedAsyncLoop:
    return cast(SimulatedAsyncLoop, asyncio.get_running_loop())


class GatewayProgram:
    """A process of the gateway: what `subprocess.Popen` gives, and the program."""

    pid = 2

    def __init__(self, gateway: Gateway, flags: tuple[str, ...]) -> None:
        self.loop = SimulatedAsyncLoop(gateway.network)
        self._server: GrpcServer | None = None
        self._gateway, self._world = gateway, gateway.network.world
        self._channel = self.loop.make_channel(CHANNEL_BYTES)
        self.sock = self._channel.sock
        bound = gateway.plan.max_connections
        self._settings = structs.replace(parse("", flags), max_connections=bound)
        self._code: int | None = None
        self._world.work(START_S, self._begin)

    @property
    def server(self) -> GrpcServer:
        """What it runs, once it has begun."""
        return present(self._server)

    @property
    def rpcs(self) -> RpcServer:
        """What takes its calls, once it listens."""
        return self.server._server

    @property
    def is_listening(self) -> bool:
        return self._code is None and self._server is not None and self.rpcs.is_listening

    # As `subprocess.Popen`.

    def poll(self) -> int | None:
        return self._code

    def kill(self) -> None:
        self._end(-9)

    # The program.

    def _begin(self) -> None:
        if self._code is None:
            main = self.loop.create_task(self._run())
            main.add_done_callback(lambda _: self._world.soon(lambda: self._exit(main)))

    async def _run(self) -> None:
        self._server = GrpcServer(self._settings)
        self._server._inference._streams = cast(set[InferStream], OrderedSet())
        await child_main._serve(cast(socket.socket, self._channel), self._server)

    def _exit(self, main: asyncio.Task[None]) -> None:
        if self._code is None:
            if error := main.exception():
                raise Violation("exception", f"the gateway has ended: {error!r}")
            self._end(0)

    def _end(self, code: int) -> None:
        if self._code is None:
            self._code = code
            try:
                for call in list(self._gateway.calls):
                    call.lose()
            finally:
                self.loop.kill()


class OrderedStream(InferStream):
    """The real stream, which cancels its requests in their order."""

    def __init__(self, *args):
        super().__init__(*args)
        self._asking = cast(set[asyncio.Task[None]], OrderedSet())


class RpcServer:
    """What stands in for grpcio's server; `Call` does what grpcio does for one call."""

    def __init__(self) -> None:
        self.is_listening = False
        self._handlers = ()

    def add_generic_rpc_handlers(self, handlers):
        self._handlers = handlers

    def add_insecure_port(self, address):
        pass

    async def start(self):
        self.is_listening = True

    def handler(self, method: str):
        """What answers a method."""
        details = SimpleNamespace(method=f"/{INFERENCE_SERVICE}/{method}", invocation_metadata=())
        return next(filter(None, (generic.service(details) for generic in self._handlers)))
