"""How the gateway writes to peers that may be gone."""

from __future__ import annotations

import asyncio

import pytest

grpc = pytest.importorskip("grpc", reason="there is no grpcio")

from grpc._cython.cygrpc import ExecuteBatchError

from qa_service.sidecars.grpc_gateway.status import PeerLostError, write


class LostContext:
    """A call whose connection was reset while a message waited for its peer's window."""

    async def write(self, message):
        raise ExecuteBatchError("Failed", ())


def test_a_write_to_a_disconnected_peer_is_distinguished_from_other_faults():
    with pytest.raises(PeerLostError):
        asyncio.run(write(LostContext(), object()))
