"""A stream's places in its connection's room: each comes back, however the stream ends."""

import asyncio
from typing import cast

import pytest

grpc = pytest.importorskip("grpc", reason="there is no grpcio")

from grpc._cython.cygrpc import ExecuteBatchError

from harness.process import GIVE_UP_S
from qa_service.errors import QaError, QueueFullError
from qa_service.sidecars.grpc_gateway.grpc_messages import Caller, ModelInferRequest, PeerLostError
from qa_service.sidecars.grpc_gateway.links import PeerLink
from qa_service.sidecars.grpc_gateway.stream import InferStream

NUM_PLACES = 3


def request(name: str) -> bytes:
    made = ModelInferRequest(model_name="m", id=name)
    for column in ("question", "text"):
        its = made.inputs.add(name=column, datatype="BYTES", shape=[1])
        its.contents.bytes_contents.append(name.encode())
    return made.SerializeToString()


class Context:
    """A peer that sends its requests, and then nothing, or its end."""

    def __init__(self, *names, is_open=False, metadata=(), loss=None):
        self.requests = [request(name) for name in names]
        self.is_open, self.metadata, self.loss = is_open, metadata, loss
        self.written = []

    def invocation_metadata(self):
        return self.metadata

    def peer(self):
        return "the peer"

    def time_remaining(self):
        return None

    async def read(self):
        if self.requests:
            return self.requests.pop(0)
        if self.is_open:
            await asyncio.Event().wait()
        return grpc.aio.EOF

    async def write(self, message):
        if self.loss is not None:
            raise self.loss
        self.written.append(message)


class Link:
    """A connection on which `full` fails, and every other question has no answer yet."""

    def __init__(self):
        self.room = asyncio.Semaphore(NUM_PLACES)

    async def ask(self, requests):
        if requests[0].question != "full":
            await asyncio.Event().wait()
        raise QueueFullError


def run(context):
    """Runs a stream to its end; returns that, and how many places are free then."""

    async def scenario():
        link = Link()
        stream = InferStream(context, Caller(context), cast(PeerLink, link))
        async with asyncio.timeout(GIVE_UP_S):
            try:
                end = await stream.run()
            except (QaError, PeerLostError) as error:
                end = error
        num_free = 0
        while not link.room.locked():
            await link.room.acquire()
            num_free += 1
        return end, num_free

    return asyncio.run(scenario())


def test_an_error_that_ends_the_stream_frees_its_place_and_those_of_the_other_requests():
    context = Context(
        "held", "held", "full", is_open=True, metadata=[("triton_grpc_error", "true")]
    )
    end, num_free = run(context)
    assert (type(end), num_free) == (QueueFullError, NUM_PLACES)


def test_an_error_in_the_stream_frees_the_place_for_the_next_request():
    names = ["full"] * (2 * NUM_PLACES + 1)
    context = Context(*names)
    assert run(context) == (None, NUM_PLACES)
    assert [bool(message.error_message) for message in context.written] == [True] * len(names)


@pytest.mark.parametrize(
    "loss",
    [grpc.aio.UsageError("the call is over"), ExecuteBatchError("Failed", ())],
    ids=["ended", "reset while a message waited for its window"],
)
def test_a_peer_that_is_lost_frees_all_places(loss):
    end, num_free = run(Context("held", "full", is_open=True, loss=loss))
    assert (type(end), num_free) == (PeerLostError, NUM_PLACES)
