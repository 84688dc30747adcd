"""The messages of the gRPC services, in a separate descriptor pool; what all calls have.

Packages that register `inference.*` in protobuf's default pool break one another, as Triton's and
KServe's clients do; a pool of one's own disturbs neither. For reflection it has the health and the
reflection services too.

`ModelInfer`'s become the types of `wire/http/open_inference.py` and back: raw if the request was,
else typed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import grpc
import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from qa_service.errors import DeadlineExceededError, HttpError, InvalidRequestError, QaError
from qa_service.wire.error_codes import grpc_code_of
from qa_service.wire.http.http_access import bearer_token
from qa_service.wire.http.open_inference import (
    InferBody,
    InferCall,
    InferInput,
    InferOutput,
    make_call,
)
from qa_service.wire.messages import Answered, Request

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


MAX_MESSAGE_CHARS = 300
"""Percent-encoded, each takes at most 12 bytes: all fit the 8 KiB of metadata that clients take."""

MIN_TIMEOUT_MS = 0.001
"""A call with less time left is not asked: the server takes no timeout of 0."""


class Caller:
    """The caller of a gRPC call, as its context has it; a token or a trace may be empty."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        metadata = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        }
        self.peer: str = context.peer()
        self.token = bearer_token(metadata)
        self.traceparent = metadata.get("traceparent", "")
        self.wants_status = metadata.get("triton_grpc_error", "").lower() == "true"
        self._context = context

    def limit(self, requests: Sequence[Request]) -> list[Request]:
        """The questions with the call's deadline and trace; raises `DeadlineExceededError`."""
        left_s = self._context.time_remaining()
        left_ms = None if left_s is None else left_s * 1e3
        if left_ms is not None and left_ms < MIN_TIMEOUT_MS:
            raise DeadlineExceededError
        return [
            msgspec.structs.replace(
                request,
                timeout_ms=min(filter(None, (left_ms, request.timeout_ms)), default=None),
                traceparent=self.traceparent,
            )
            for request in requests
        ]


def message_of(error: QaError) -> str:
    """The error's message, cut to fit a header."""
    return error.message[:MAX_MESSAGE_CHARS]


class PeerLostError(Exception):
    """A peer's connection was lost while a message of a stream was being written."""


async def write(context: grpc.aio.ServicerContext, message: object) -> None:
    """Writes a message of a stream; `PeerLostError` if nobody reads it any more."""
    try:
        await context.write(message)
    except grpc.aio.BaseError:
        raise PeerLostError from None


async def abort(context: grpc.aio.ServicerContext, error: QaError) -> NoReturn:
    """Ends a call with an error: a status code, a short message, and trailers.

    These are the error's code, and after how long to ask again; gRPC's own retries go by
    `grpc-retry-pushback-ms` (its proposal A6).
    """
    trailers = [] if isinstance(error, HttpError) else [("qa-error", error.code)]
    if (after_ms := error.retry_after_ms) is not None:
        trailers.append(("retry-after", str(math.ceil(after_ms / 1e3))))
        trailers.append(("grpc-retry-pushback-ms", str(after_ms)))
    code = grpc.StatusCode[grpc_code_of(error)]
    await context.abort(code, message_of(error), tuple(trailers))
    raise AssertionError("a call goes on that was aborted")
