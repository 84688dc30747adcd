"""`ModelInfer`'s messages to and from the types of `wire/http/open_inference.py`.

An answer is raw if its request was, else typed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from qa_service.errors import InvalidRequestError
from qa_service.sidecars.grpc_gateway.grpc_messages import ModelInferResponse
from qa_service.wire.http.open_inference import (
    InferBody,
    InferCall,
    InferInput,
    InferOutput,
    make_call,
)
from qa_service.wire.messages import Answered

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
