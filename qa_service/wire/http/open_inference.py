"""Inference in the Open Inference Protocol, version 2, as Triton speaks it. Sans-IO.

    JSON, then the binary data of the inputs that have some, in their order
    question BYTES [N] or [N,1]  ─┐                   ┌─ answer BYTES, score FP32,
    text     BYTES the same      ─┴─▶ N questions ──▶─┴─ start INT32, end INT32: the same, or [N,k]

An input `collection` may replace `text`; then `document`, `title` and `passage`, BYTES, are outputs
too. `places` and `passages`, BYTES of JSON, are outputs if they are asked for. Each of the N
questions is a separate request; their answers come back together, as [N,k] if `top_k` is k and
over 1. An answer that does not exist is empty, with -1 as its offsets.

`wire/fields.py` has which inputs, parameters and outputs there are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from qa_service.errors import InvalidRequestError
from qa_service.wire.fields import (
    NUMBERS,
    OTHER_NAMES,
    OUTPUTS,
    PARAMETERS,
    REQUEST,
    TENSORS,
    near_miss,
    shown_outputs,
)
from qa_service.wire.http.http_reply import HttpReply, timed_reply
from qa_service.wire.json_codec import as_whole, check_bounds, decode_leniently
from qa_service.wire.messages import MAX_PRIORITY, Answer, Answered, Filter, Request, Timings

MAX_QUESTIONS = 256
"""The loop parses and queues all questions of a request in one turn."""
HEADER_LENGTH = "Inference-Header-Content-Length"
EMPTY_FINAL = "triton_enable_empty_final_response"
"""Of a request of a stream: asks for an empty response behind the last one; else without effect."""

_OTHER_PARAMETERS = {**OTHER_NAMES, "timeoutms": "timeout", "timeoutus": "timeout"}

_Parameters = dict[str, bool | int | float | str]
_NO_ANSWER = Answer("", 0.0, None, None)


class InferInput(msgspec.Struct):
    """An input, with its data or, as a parameter, the length of its binary data."""

    name: str
    shape: list[int]
    datatype: str
    parameters: _Parameters = {}
    data: list[str | list[str]] | None = None


class InferOutput(msgspec.Struct):
    name: str
    parameters: _Parameters = {}


class InferBody(msgspec.Struct):
    inputs: list[InferInput]
    outputs: list[InferOutput] = []
    id: str = ""
    parameters: _Parameters = {}


_decoder = msgspec.json.Decoder(InferBody)


class Tensor(msgspec.Struct, omit_defaults=True):
    """An output, with its data or the length of its binary data."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: Mapping[str, int] = {}
    data: Sequence[object] | msgspec.UnsetType = msgspec.UNSET


class InferResponse(msgspec.Struct, omit_defaults=True):
    """An inference response, without the outputs' binary data."""

    model_name: str
    model_version: str
    id: str = ""
    parameters: Mapping[str, bool | int] = {}
    outputs: Sequence[Tensor] = ()


class InferCall(msgspec.Struct, frozen=True):
    """An inference request; `outputs` has the names of those wanted, and whether in binary."""

    requests: Sequence[Request]
    shape: Sequence[int]
    outputs: Mapping[str, bool]
    id: str

    def reply(self, results: Sequence[Answered]) -> HttpReply:
        """The HTTP response; the results are in the order of the questions."""
        response, binary = self.response(results)
        header = timed_reply(response, slowest(results))
        if not binary:
            return header
        fields = {**header.fields, HEADER_LENGTH: str(len(header.body))}
        body = b"".join([header.body, *binary])
        return HttpReply(body, content_type="application/octet-stream", fields=fields)

    def response(self, results: Sequence[Answered]) -> tuple[InferResponse, list[bytes]]:
        """The response, and the data of its binary outputs."""
        top_k = self.requests[0].top_k
        columns = output_columns(results, top_k, self.outputs)
        outputs, binary = [], []
        for name, is_binary in self.outputs.items():
            row = OUTPUTS[name]
            is_wide = top_k > 1 and not row.is_of_reply
            shape = [self.shape[0], top_k] if is_wide else self.shape
            output = Tensor(name, row.datatype, shape)
            column: Sequence[object] = columns[name]
            if row.is_json:
                column = [_encode(element).decode() for element in column]
            if is_binary:
                binary.append(_to_binary(row.datatype, column))
                output.parameters = {"binary_data_size": len(binary[-1])}
            else:
                output.data = column
            outputs.append(output)
        parameters: dict[str, bool | int] = {}
        if all(result.source.is_cached for result in results):
            parameters["cached"] = True
        if models_asked := max(result.source.models_asked for result in results):
            parameters["models_asked"] = models_asked  # the most for one question
        model, version = results[0].source.model, str(results[0].source.version)
        return InferResponse(model, version, self.id, parameters, outputs), binary


def parse_infer(body: bytes, header_length: str | None, model: str, version: str) -> InferCall:
    """Parses an inference request.

    Args:
        body: JSON, then the inputs' binary data.
        header_length: The header field with the length of the JSON; None if all is JSON.
        version: The model's version or label; empty for none.

    Raises:
        InvalidRequestError: The request is malformed, or over a bound.
    """
    header, binary = body, memoryview(b"")
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 20):
            raise InvalidRequestError(f"{HEADER_LENGTH} is not a number")
        size = int(header_length)
        if size > len(body):
            raise InvalidRequestError(f"{HEADER_LENGTH} is over the body's length")
        header, binary = body[:size], memoryview(body)[size:]
    try:
        asked = decode_leniently(_decoder, header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"not an inference request: {error}") from None
    return make_call(asked, binary, model, version)


def make_call(asked: InferBody, binary: memoryview, model: str, version: str) -> InferCall:
    """Makes requests of an inference request's questions; `model` is empty for the default.

    Raises:
        InvalidRequestError: A part of it is malformed, or over a bound.
    """
    columns, shape = _read_inputs(asked.inputs, binary)
    options = _read_parameters(asked.parameters)
    options.update(model=model or None, version=version or None)
    requests = [
        Request(**dict(zip(columns, elements, strict=True)), **options)
        for elements in zip(*columns.values(), strict=True)
    ]
    for request in requests:
        check_bounds(request)
    outputs = _read_outputs(
        asked.outputs,
        shown_outputs(has_collection="collection" in columns),
        asked.parameters.get("binary_data_output") is True,
    )
    return InferCall(requests, shape, outputs, asked.id)


# Inputs.

_INPUTS = ({"question", "text"}, {"question", "collection"})


def _read_inputs(
    inputs: Sequence[InferInput], binary: memoryview
) -> tuple[dict[str, list[str]], Sequence[int]]:
    """The inputs' elements by name, and the shape that they have in common."""
    names = {item.name for item in inputs}
    if len(inputs) != len(names) or names not in _INPUTS:
        message = "the inputs must be question and either text or collection, each once"
        hint = near_miss(names, TENSORS)
        raise InvalidRequestError(f"{message}; {hint}" if hint else message)
    columns: dict[str, list[str]] = {}
    for item in inputs:
        count = _check_input(item)
        size = as_whole(item.parameters.get("binary_data_size"))
        if size is None:
            columns[item.name] = _flat(item.name, item.data)
        elif isinstance(size, int) and 0 <= size <= len(binary):
            columns[item.name], binary = _from_binary(item.name, binary[:size]), binary[size:]
        else:
            raise InvalidRequestError(f"the binary data of {item.name} is incomplete")
        if len(columns[item.name]) != count:
            raise InvalidRequestError(f"the data length of {item.name} does not match its shape")
    if len(binary):
        raise InvalidRequestError("there is more binary data than the inputs declare")
    if inputs[0].shape != inputs[1].shape:
        raise InvalidRequestError(f"{' and '.join(columns)} must have the same shape")
    return columns, inputs[0].shape


def _check_input(item: InferInput) -> int:
    """Checks all but the data; returns how many elements the data must have."""
    if item.datatype != "BYTES":
        raise InvalidRequestError(f"{item.name} must be of the datatype BYTES")
    if item.parameters and any(name.startswith("shared_memory") for name in item.parameters):
        raise InvalidRequestError("there is no shared memory")
    if len(item.shape) != 1 and item.shape[1:] != [1]:
        raise InvalidRequestError(f"the shape of {item.name} must be [N] or [N,1]")
    if not 1 <= item.shape[0] <= MAX_QUESTIONS:
        raise InvalidRequestError(f"a request has 1 to {MAX_QUESTIONS} questions")
    return item.shape[0]


# Parameters and outputs.


def _read_parameters(parameters: _Parameters) -> dict[str, Any]:
    """The fields of a `Request` that they set.

    Of unknown ones Triton's are refused, and those that are nearly one that there is.
    """
    if not parameters:
        return {}
    if fault := near_miss(parameters, PARAMETERS, _OTHER_PARAMETERS):
        raise InvalidRequestError(fault)
    unknown = [name for name in parameters if name.startswith("triton_") and name != EMPTY_FINAL]
    if unknown:
        raise InvalidRequestError(f"there is no parameter {unknown[0][:64]}")
    if not isinstance(parameters.get(EMPTY_FINAL, False), bool):
        raise InvalidRequestError(f"the parameter {EMPTY_FINAL} must be true or false")
    if parameters.get("sequence_id"):
        raise InvalidRequestError("the model keeps no sequences")
    return {
        field: _json(parameter, value) if REQUEST[field].is_json else _number(parameter, value)
        for parameter, field in PARAMETERS.items()
        if (value := parameters.get(parameter)) is not None
    }


_filter_decoder = msgspec.json.Decoder(Filter)


def _json(parameter: str, value: object) -> Filter:
    try:
        return _filter_decoder.decode(value if isinstance(value, str) else "")
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the parameter {parameter} must be JSON: {error}") from None


def _number(parameter: str, value: object) -> float | int | None:
    """The field's value for a parameter's, within its bounds."""
    value = as_whole(value)
    minimum, maximum = _BOUNDS.get(parameter) or NUMBERS[PARAMETERS[parameter]]
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidRequestError(f"the parameter {parameter} must be from {minimum} to {maximum}")
    return _UNITS[parameter](value) if parameter in _UNITS else value


def priority_of(level: int) -> int:
    """The server's priority for Triton's, where 1 is the highest and 0 the default."""
    return max(0, MAX_PRIORITY + 1 - level) if level else 0


_BOUNDS = {"timeout": (0, 2**63), "priority": (0, 2**64)}
_UNITS: Mapping[str, Callable[[int], float | int | None]] = {
    "timeout": lambda us: us / 1e3 or None,
    "priority": priority_of,
}
"""Of the parameters that Triton has otherwise than `Request`."""


def _read_outputs(
    outputs: Sequence[InferOutput], shown: Sequence[str], is_binary: bool
) -> dict[str, bool]:
    if not outputs:
        return dict.fromkeys(shown, is_binary)
    wanted = {}
    for output in outputs:
        if output.name not in OUTPUTS or output.name in wanted:
            raise InvalidRequestError(f"the outputs are {', '.join(OUTPUTS)}, each once")
        if {"shared_memory_region", "classification"} & output.parameters.keys():
            raise InvalidRequestError("there is neither shared memory nor classification")
        wanted[output.name] = output.parameters.get("binary_data", is_binary) is True
    return wanted


# The response.


def output_columns(
    results: Sequence[Answered], top_k: int, names: Iterable[str]
) -> dict[str, list[Any]]:
    """The elements of each output: `top_k` for each result, or one if it is of the reply."""
    answers: list[Answer] = []
    for result in results:
        its = result.answers[:top_k]
        answers += [*its, *[_NO_ANSWER] * (top_k - len(its))]
    sources = [result.source for result in results]
    return {
        name: [
            OUTPUTS[name].read(one) for one in (sources if OUTPUTS[name].is_of_reply else answers)
        ]
        for name in names
    }


def slowest(results: Sequence[Answered]) -> Timings:
    timings = [result.timings for result in results]
    return Timings(max(t.queue for t in timings), max(t.inference for t in timings))


# The data of a tensor; in binary, a 4-byte little-endian length is before each element of BYTES.

_FORMATS = {"FP32": "f", "INT32": "i"}
_LENGTH = struct.Struct("<I")
_encode = msgspec.json.Encoder().encode


def _flat(name: str, data: Sequence[str | list[str]] | None) -> list[str]:
    """The elements of an input's JSON data, nested or not."""
    if data is None:
        raise InvalidRequestError(f"{name} has no data")
    elements: list[str] = []
    for element in data:
        if isinstance(element, str):
            elements.append(element)
        else:
            elements += element
    return elements


def _from_binary(name: str, data: memoryview) -> list[str]:
    """The elements of an input's binary data."""
    elements, at = [], 0
    while at < len(data):
        if len(data) - at < _LENGTH.size:
            raise InvalidRequestError(f"the binary data of {name} ends within a length")
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + size
        if at > len(data):
            raise InvalidRequestError(f"the binary data of {name} ends within an element")
        try:
            elements.append(str(data[at - size : at], "utf-8"))
        except UnicodeDecodeError:
            raise InvalidRequestError(f"an element of {name} is not UTF-8") from None
    return elements


def _to_binary(datatype: str, column: Sequence[object]) -> bytes:
    if datatype == "BYTES":
        elements = [str(element).encode() for element in column]
        return b"".join(_LENGTH.pack(len(element)) + element for element in elements)
    return struct.pack(f"<{len(column)}{_FORMATS[datatype]}", *column)
