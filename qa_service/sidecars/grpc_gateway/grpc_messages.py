"""The messages of the gRPC services, in a separate descriptor pool.

Packages that register `inference.*` in protobuf's default pool break one another, as Triton's and
KServe's clients do; a pool of one's own disturbs neither. For reflection it has the health and the
reflection services too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from qa_service.errors import InvalidRequestError

INFERENCE_SERVICE = "inference.GRPCInferenceService"
HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_SERVICES = (
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)

_DESCRIPTORS = Path(__file__).with_name("inference.binpb")


def _make_pool() -> Any:  # noqa: ANN401 - protobuf has no types
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file
    alpha = descriptor_pb2.FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
    # grpcio-reflection has v1alpha only; v1 is the same under another name.
    text = text_format.MessageToString(alpha).replace("v1alpha", "v1")
    first = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    for file in (*files, alpha, first):
        pool.AddSerializedFile(file.SerializeToString())
    pool.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)
    return pool


POOL = _make_pool()


METHODS: dict[str, tuple[Any, Any]] = {
    method.name: (
        message_factory.GetMessageClass(method.input_type),
        message_factory.GetMessageClass(method.output_type),
    )
    for method in POOL.FindServiceByName(INFERENCE_SERVICE).methods
}
"""The request and the response of each method of the inference service."""

ModelInferRequest, ModelInferResponse = METHODS["ModelInfer"]
ModelStreamInferResponse = METHODS["ModelStreamInfer"][1]


def read_message(kind: Any, data: bytes) -> Any:  # noqa: ANN401
    """A message from its bytes; grpcio would log malformed ones at length and tell UNKNOWN."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequestError(f"not a {kind.DESCRIPTOR.name}") from None
