"""Inference in TensorFlow Serving's REST API, version 1. Sans-IO.

    {"instances": [{"question": …, "text": …}, …]}      ─▶ {"predictions": [{"answer": …}, …]}
    {"inputs": {"question": [N], "text": [N]}}          ─▶ {"outputs": {"answer": [N], …}}

https://www.tensorflow.org/tfx/serving/api_rest. Each of the N questions is a request of its own.
The outputs are tensors: scalars for each question, or lists of k if the largest `top_k` is k and
over 1. An answer that does not exist is empty, with -1 as its offsets, as in the Open Inference
Protocol.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from qa_service.errors import InvalidRequestError, QaError, QueueFullError
from qa_service.wire.http.http_reply import HttpReply, error_reply, json_reply, timed_reply
from qa_service.wire.http.model_reports import ModelReport
from qa_service.wire.http.open_inference import (
    INPUTS,
    MAX_QUESTIONS,
    OUTPUTS,
    Result,
    output_columns,
    slowest,
)
from qa_service.wire.json_codec import check_bounds
from qa_service.wire.messages import (
    ABOUT_QUESTION,
    ABOUT_TEXT,
    ABOUT_TOP_K,
    MAX_TOP_K,
    Request,
    RequestLimits,
)
from qa_service.wire.near_misses import near_miss

SIGNATURE = "serving_default"
NO_SUCH_VERB = f"the only signature is {SIGNATURE}, of the method predict: ask :predict"
MALFORMED = (
    "malformed request: the paths are /v1/models and "
    "/v1/models/M[/versions/N|/labels/L], alone or with /metadata or :predict"
)

_TopK = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOP_K)]


class Encoded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A string in base64, as TensorFlow Serving takes bytes."""

    b64: str


_Text = str | Encoded


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row: a question, its text, and how many answers are wanted."""

    question: Annotated[_Text, msgspec.Meta(description=ABOUT_QUESTION)]
    text: Annotated[_Text, msgspec.Meta(description=ABOUT_TEXT)]
    top_k: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOP_K, description=ABOUT_TOP_K)] = 1


class Inputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The columns, equally long; `top_k` may also be one number for all rows."""

    question: list[_Text]
    text: list[_Text]
    top_k: list[_TopK] | _TopK = 1

    def rows(self) -> list[Instance]:
        """The columns as rows.

        Raises:
            InvalidRequestError: The columns are not equally long.
        """
        count = len(self.question)
        top_k = self.top_k if isinstance(self.top_k, list) else [self.top_k] * count
        if not count == len(self.text) == len(top_k):
            raise InvalidRequestError("the inputs must be equally long")
        return [Instance(*row) for row in zip(self.question, self.text, top_k, strict=True)]


class PredictBody(msgspec.Struct, frozen=True):
    """A request: rows in `instances`, or columns in `inputs`."""

    instances: list[Instance] | msgspec.UnsetType = msgspec.UNSET
    inputs: Inputs | msgspec.UnsetType = msgspec.UNSET
    signature_name: str = ""


class Prediction(msgspec.Struct, frozen=True):
    """The outputs of one row; with `top_k` over 1, lists with the best answer first."""

    answer: str | Sequence[str]
    score: float | Sequence[float]
    start: int | Sequence[int]
    end: int | Sequence[int]


class Outputs(msgspec.Struct, frozen=True):
    """The outputs of all rows, by column."""

    answer: Sequence[str | Sequence[str]]
    score: Sequence[float | Sequence[float]]
    start: Sequence[int | Sequence[int]]
    end: Sequence[int | Sequence[int]]


class PredictReply(msgspec.Struct, frozen=True):
    """A reply: `predictions` to `instances`, `outputs` to `inputs`."""

    predictions: Sequence[Prediction] | msgspec.UnsetType = msgspec.UNSET
    outputs: Outputs | msgspec.UnsetType = msgspec.UNSET


class TfServingError(msgspec.Struct, frozen=True):
    """An error, in words."""

    error: str


class PredictCall(msgspec.Struct, frozen=True):
    """A request to predict.

    Attributes:
        is_columnar: Whether the questions came as columns.
    """

    requests: Sequence[Request]
    is_columnar: bool

    def reply(self, results: Sequence[Result]) -> HttpReply:
        """The HTTP response; the results are in the order of the questions."""
        columns = self._columns(results)
        if self.is_columnar:
            body = PredictReply(outputs=Outputs(*columns))
        else:
            rows = zip(*columns, strict=True)
            body = PredictReply(predictions=[Prediction(*row) for row in rows])
        return timed_reply(body, slowest(results))

    def _columns(self, results: Sequence[Result]) -> list[Sequence[Any]]:
        """Each output's elements; lists, if a question wants several answers."""
        width = max(request.top_k for request in self.requests)
        wanted = [
            msgspec.structs.replace(result, answers=result.answers[: request.top_k])
            for request, result in zip(self.requests, results, strict=True)
        ]
        columns = list(output_columns(wanted, width).values())
        if width == 1:
            return columns
        return [[column[i : i + width] for i in range(0, len(column), width)] for column in columns]


_decoder = msgspec.json.Decoder(PredictBody)
_UNKNOWN_FIELD = re.compile("unknown field `(.*?)`")
"""In msgspec's message."""


def parse_predict(body: bytes, limits: RequestLimits, model: str, version: str) -> PredictCall:
    """Parses a request to predict.

    Args:
        version: The model's version or label; empty for none.

    Raises:
        InvalidRequestError: The request is malformed, or over a bound.
    """
    try:
        asked = _decoder.decode(body)
        body.decode()  # msgspec does not check the strings in fields that it ignores
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = _UNKNOWN_FIELD.search(str(error))
        hint = near_miss([found[1]], Instance.__struct_fields__) if found else ""
        words = f"not a request to predict: {error}"
        raise InvalidRequestError(f"{words}; {hint}" if hint else words) from None
    if asked.signature_name not in {"", SIGNATURE}:
        raise InvalidRequestError(f"the only `signature_name` is {SIGNATURE}")
    requests = [
        Request(
            _plain("question", row.question),
            _plain("text", row.text),
            row.top_k,
            model=model,
            version=version or None,
        )
        for row in _rows(asked)
    ]
    for request in requests:
        check_bounds(request, limits)
    return PredictCall(requests, asked.inputs is not msgspec.UNSET)


def _rows(asked: PredictBody) -> list[Instance]:
    if (asked.instances is msgspec.UNSET) == (asked.inputs is msgspec.UNSET):
        raise InvalidRequestError("there must be either `instances` or `inputs`")
    rows = asked.instances or [] if asked.inputs is msgspec.UNSET else asked.inputs.rows()
    if not 1 <= len(rows) <= MAX_QUESTIONS:
        raise InvalidRequestError(f"a request has 1 to {MAX_QUESTIONS} questions")
    return rows


def _plain(name: str, value: _Text) -> str:
    """The string, decoded if it came in base64.

    Raises:
        InvalidRequestError: It is not UTF-8 in base64.
    """
    if isinstance(value, str):
        return value
    try:
        return base64.b64decode(value.b64, validate=True).decode()
    except ValueError:
        raise InvalidRequestError(f"the `b64` of `{name}` is not UTF-8 text in base64") from None


def predict_error(error: QaError) -> HttpReply:
    """The reply that tells an error as TensorFlow Serving does: 429 for a full queue."""
    reply = error_reply(error)
    if isinstance(error, QueueFullError):
        return msgspec.structs.replace(reply, status=429)
    return reply


# Reports on a model.

_STATES = {"LOADING": "LOADING", "READY": "AVAILABLE", "UNLOADING": "UNLOADING",
           "UNAVAILABLE": "END"}  # fmt: skip
_DATATYPES = {"BYTES": "DT_STRING", "FP32": "DT_FLOAT", "INT32": "DT_INT32"}


class StatusCode(msgspec.Struct, frozen=True):
    """Whether a version was loaded, and why not."""

    error_code: str = "OK"
    error_message: str = ""


class VersionStatus(msgspec.Struct, frozen=True):
    """A version's number, `0` for a route; and its state."""

    version: str
    state: str
    status: StatusCode


class ModelStatus(msgspec.Struct, frozen=True):
    """TensorFlow Serving's status; the last two fields are those of KServe's version 1."""

    model_version_status: Sequence[VersionStatus]
    name: str
    ready: bool


def index(models: Sequence[ModelReport]) -> dict[str, list[str]]:
    """The names of the models and routes, as in KServe's version 1."""
    return {"models": list(dict.fromkeys(model.name for model in models))}


def model_status(model: ModelReport, models: Sequence[ModelReport]) -> HttpReply:
    """The status of all versions of a model."""
    return _status_reply([one for one in models if one.name == model.name])


def version_status(model: ModelReport, _: Sequence[ModelReport]) -> HttpReply:
    """The status of one version."""
    return _status_reply([model])


def _status_reply(versions: Sequence[ModelReport]) -> HttpReply:
    statuses = [VersionStatus(_version(one), _STATES[one.state], _load(one)) for one in versions]
    is_ready = any(one.is_ready for one in versions)
    return json_reply(ModelStatus(statuses, versions[0].name, is_ready))


def _version(model: ModelReport) -> str:
    return model.version or "0"  # as protobuf's JSON writes a number that is not set


def _load(model: ModelReport) -> StatusCode:
    """Tells a failed load, unless the version serves in spite of it."""
    if model.failed_loads and not model.is_ready:
        return StatusCode("INTERNAL", model.reason)
    return StatusCode()


def metadata(model: ModelReport, _: Sequence[ModelReport]) -> HttpReply:
    """A model's one signature: N questions and N texts in, N or [N, top_k] of each output back."""
    column = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    either: dict[str, object] = {"dim": [], "unknown_rank": True}
    signature = {
        "inputs": {name: _tensor(name, kind, column) for name, kind in INPUTS.items()},
        "outputs": {name: _tensor(name, kind, either) for name, kind in OUTPUTS.items()},
        "method_name": "tensorflow/serving/predict",
    }
    spec = {"name": model.name, "signature_name": "", "version": _version(model)}
    signatures = {"signature_def": {SIGNATURE: signature}}
    return json_reply({"model_spec": spec, "metadata": {"signature_def": signatures}})


def _tensor(name: str, datatype: str, shape: Mapping[str, object]) -> dict[str, object]:
    return {"dtype": _DATATYPES[datatype], "tensor_shape": shape, "name": f"{name}:0"}
