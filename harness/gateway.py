"""A server with a gRPC gateway, and tritonclient's inputs and answers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness.frames import TEXT
from harness.process import reserve_port, wait_until
from harness.server import RunningServer, running_server

LISTENS = "the gRPC gateway listens on"


class GatewayServer:
    """A running server and its gateway, whose port and address these are."""

    def __init__(self, server: RunningServer, port: int) -> None:
        self.server = server
        self.port = port
        self.address = f"localhost:{port}"

    @property
    def pid(self) -> int:
        [pid] = [pid for pid in self.server.worker_pids() if _is_gateway(pid)]
        return pid

    @property
    def instance_pids(self) -> list[int]:
        return [pid for pid in self.server.worker_pids() if not _is_gateway(pid)]

    def counted(self, code: str) -> int:
        return self.server.stats()["counters"]["requests_total"].get(code, 0)

    def wait_for_count(self, code: str, count: int) -> None:
        """Waits until this number of requests had this outcome."""
        wait_until(lambda: self.counted(code), lambda found: found >= count)

    def wait_for_flight(self, count: int) -> None:
        """Waits until this number of requests is in flight."""
        wait_until(
            lambda: self.server.stats()["gauges"]["requests_in_flight"],
            lambda found: found == count,
        )


@contextmanager
def running_gateway(
    model: Path, *flags: str, wrapper: Sequence[str] = ()
) -> Iterator[GatewayServer]:
    """Runs a server with a gateway; on a clean exit of the block, checks that both stop cleanly."""
    port = reserve_port()
    with running_server(model, "--grpc_port", str(port), *flags, wrapper=wrapper) as server:
        gateway = GatewayServer(server, port)
        pid = gateway.pid
        yield gateway
    # Killed, it ends at once, but stays in /proc until whoever has taken it over asks for it.
    wait_until(lambda: not _is_gateway(pid))


def _is_gateway(pid: int) -> bool:
    try:
        return b"grpc_gateway" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def inputs(
    triton: Any, questions: Sequence[str], *, shape: Sequence[int] = (), **options: bool
) -> list:
    """The two inputs of a request, as a module of tritonclient has them."""
    made = []
    for name, column in (("question", questions), ("text", [TEXT] * len(questions))):
        its = triton.InferInput(name, list(shape or (len(column),)), "BYTES")
        data = np.array([word.encode() for word in column], dtype=np.object_)
        its.set_data_from_numpy(data.reshape(its.shape()), **options)
        made.append(its)
    return made


def answers(result: Any) -> list[str]:
    """The answers of a result of tritonclient's."""
    found = result.as_numpy("answer").flatten()
    return [answer.decode() if isinstance(answer, bytes) else answer for answer in found]


# Tests start programs while grpcio's threads run.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
