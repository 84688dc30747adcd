"""What tests send a gateway, in Triton's messages, and how they read the replies."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from harness.frames import ASK, TEXT

grpc = pytest.importorskip("grpc", reason="there is no grpcio")
triton = pytest.importorskip("tritonclient.grpc", reason="there is no tritonclient")

from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

Health, HealthRequest = health_pb2_grpc.HealthStub, health_pb2.HealthCheckRequest
Stub = service_pb2_grpc.GRPCInferenceServiceStub


def typed_request(questions: Sequence[str] = (ASK["question"],), **fields: Any):
    """A request as KServe's clients write it: its data in `contents`."""
    made = service_pb2.ModelInferRequest(model_name="builtin", **fields)
    for name, column in (("question", questions), ("text", [TEXT] * len(questions))):
        its = made.inputs.add(name=name, datatype="BYTES", shape=[len(column)])
        its.contents.bytes_contents.extend(word.encode() for word in column)
    return made


def failure(call, *arguments, **options):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **options)
    return caught.value


@contextmanager
def refused(status: str) -> Iterator[None]:
    """What Triton's client does in the block has this status, and words that say why."""
    with pytest.raises(triton.InferenceServerException) as caught:
        yield
    assert caught.value.status() == f"StatusCode.{status}"
    assert 0 < len(caught.value.message()) < 300
