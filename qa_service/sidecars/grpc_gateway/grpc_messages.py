"""The messages of the gRPC services, in a separate descriptor pool.

Packages that register `inference.*` in protobuf's default pool break one another, as Triton's and
KServe's clients do; a pool of one's own disturbs neither. For reflection it has the health and the
reflection services too.

`ModelInfer`'s become the types of `wire/http/open_inference.py` and back: raw if the request was,
else typed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from qa_service.errors import InvalidRequestError
from qa_service.wire.http.open_inference import (
    InferBody,
    InferCall,
    InferInput,
    InferOutput,
    make_call,
)
from qa_service.wire.messages import Answered

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


_CONTENTS = {"BYTES": "bytes_contents", "FP32": "fp32_contents", "INT32": "int_contents"}


def read_call(request: Any) -> InferCall:  # noqa: ANN401 - a ModelInferRequest
    """The questions of a request, within all bounds."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidRequestError("raw_input_contents must have an element for each input")
    inputs = [
        _read_input(tensor, raw[number] if raw else None)
        for number, tensor in enumerate(request.inputs)
    ]
    outputs = [InferOutput(its.name, _values(its.parameters)) for its in request.outputs]
    asked = InferBody(inputs, outputs, request.id, _values(request.parameters))
    binary = memoryview(b"".join(raw))
    call = make_call(asked, binary, request.model_name, request.model_version)
    return msgspec.structs.replace(call, outputs=dict.fromkeys(call.outputs, bool(raw)))


def _read_input(tensor: Any, raw: bytes | None) -> InferInput:  # noqa: ANN401
    parameters = _values(tensor.parameters)
    parameters.pop("binary_data_size", None)
    its = InferInput(tensor.name, list(tensor.shape), tensor.datatype, parameters)
    if raw is None:
        try:
            its.data = [element.decode() for element in tensor.contents.bytes_contents]
        except UnicodeDecodeError:
            raise InvalidRequestError(f"an element of {its.name[:64]} is not UTF-8") from None
    elif tensor.HasField("contents"):
        raise InvalidRequestError(f"{its.name[:64]} has contents besides raw_input_contents")
    else:
        parameters["binary_data_size"] = len(raw)
    return its


def _values(parameters: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    return {
        name: getattr(value, choice)
        for name, value in parameters.items()
        if (choice := value.WhichOneof("parameter_choice"))
    }


def write_response(call: InferCall, results: Sequence[Answered]) -> Any:  # noqa: ANN401
    """The `ModelInferResponse` to all questions, whose answers are given in their order."""
    response, raw = call.response(results)
    message = ModelInferResponse(
        model_name=response.model_name,
        model_version=response.model_version,
        id=response.id,
        raw_output_contents=raw,
    )
    for name, value in response.parameters.items():
        choice = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(message.parameters[name], choice, value)
    for tensor in response.outputs:
        its = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if not raw:
            data = tensor.data or ()
            column = [str(one).encode() for one in data] if tensor.datatype == "BYTES" else data
            getattr(its.contents, _CONTENTS[tensor.datatype]).extend(column)
    return message
