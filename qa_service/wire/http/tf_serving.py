"""Inference in TensorFlow Serving's REST API, version 1. Sans-IO.

    {"instances": [{"question": …, "text": …}, …]}      ─▶ {"predictions": [{"answer": …}, …]}
    {"inputs": {"question": [N], "text": [N]}}          ─▶ {"outputs": {"answer": [N], …}}

https://www.tensorflow.org/tfx/serving/api_rest. Each of the N questions is a separate request.
The outputs are tensors: scalars for each question, or lists of k if the largest `top_k` is k and
over 1. An answer that does not exist is empty, with -1 as its offsets, as in the Open Inference
Protocol. `wire/fields.py` has which columns there are.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias
from typing import Annotated, Any

import msgspec

from qa_service.errors import InvalidRequestError
from qa_service.wire.fields import ALWAYS_SHOWN, COLUMNS, OUTPUTS, Shown, near_miss, shown_outputs
from qa_service.wire.http.http_reply import HttpReply, json_reply, timed_reply
from qa_service.wire.http.model_reports import INPUT_TYPES, OUTPUT_TYPES, ModelReport
from qa_service.wire.http.open_inference import MAX_QUESTIONS, output_columns, slowest
from qa_service.wire.json_codec import check_bounds, decode_leniently
from qa_service.wire.messages import Answered, CollectionNames, Request

SIGNATURE = "serving_default"
NO_SUCH_VERB = f"the only signature is {SIGNATURE}, of the method predict: ask :predict"
MALFORMED = (
    "malformed request: the paths are /v1/models and "
    "/v1/models/M[/versions/N|/labels/L], alone or with /metadata or :predict"
)


class Encoded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A string in base64, as TensorFlow Serving takes bytes."""

    b64: str


_Text = str | Encoded


def _list_of(kind: object) -> Any:  # noqa: ANN401
    return GenericAlias(list, (kind,))


def _columns(wrap: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """A struct of the columns, each the type of an element as `wrap` makes it the column's."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(Request):
        if field.name not in COLUMNS:
            continue
        kind = field.type
        if field.name == "collection":  # a list is a column
            about = "the collection to ask, in place of a text; several with commas; `*`: all"
            kind = Annotated[CollectionNames | None, msgspec.Meta(description=about)]
        if kind.__origin__ is str:  # any string may be in base64
            kind = Annotated[_Text, *kind.__metadata__]
        if field.default is msgspec.NODEFAULT:
            fields.append((field.name, wrap(kind)))
        else:
            fields.append((field.name, wrap(kind) | kind, field.default))
    return msgspec.defstruct("_Columns", fields, frozen=True, forbid_unknown_fields=True)


class Instance(_columns(lambda kind: kind)):  # type: ignore[misc]
    """One row: a question, its text, and how it is asked."""


class Inputs(_columns(_list_of)):  # type: ignore[misc]
    """The columns, equally long; all but `question` may also be one value for all rows."""

    def rows(self) -> list[dict[str, Any]]:
        """The columns as rows; they must be equally long."""
        count = len(self.question)
        columns = [
            column if isinstance(column := getattr(self, name), list) else [column] * count
            for name in COLUMNS
        ]
        if any(len(column) != count for column in columns):
            raise InvalidRequestError("the inputs must be equally long")
        return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]


class PredictBody(msgspec.Struct, frozen=True):
    """A request: rows in `instances`, or columns in `inputs`."""

    instances: list[Instance] | msgspec.UnsetType = msgspec.UNSET
    inputs: Inputs | msgspec.UnsetType = msgspec.UNSET
    signature_name: str = ""


def _outputs(wrap: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """A struct of the outputs; one that is not always there is left out then."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, output in OUTPUTS.items():
        kind = output.kind | _list_of(output.kind)
        kind = wrap(_list_of(kind) if output.is_json else kind)
        if name in ALWAYS_SHOWN:
            fields.append((name, kind))
        else:
            fields.append((name, kind | msgspec.UnsetType, msgspec.UNSET))
    return msgspec.defstruct("_Outputs", fields, frozen=True)


class Prediction(_outputs(lambda kind: kind)):  # type: ignore[misc]
    """The outputs of one row; with `top_k` over 1, lists with the best answer first."""


class Outputs(_outputs(_list_of)):  # type: ignore[misc]
    """The outputs of all rows, by column."""


class PredictReply(msgspec.Struct, frozen=True):
    """A reply: `predictions` to `instances`, `outputs` to `inputs`."""

    predictions: Sequence[Prediction] | msgspec.UnsetType = msgspec.UNSET
    outputs: Outputs | msgspec.UnsetType = msgspec.UNSET


class TfServingError(msgspec.Struct, frozen=True):
    """An error, in words."""

    error: str


class PredictCall(msgspec.Struct, frozen=True):
    """A request to predict."""

    requests: Sequence[Request]
    is_columnar: bool

    def reply(self, results: Sequence[Answered]) -> HttpReply:
        columns = self._by_output(results)
        if self.is_columnar:
            body = PredictReply(outputs=Outputs(**columns))
        else:
            rows = zip(*columns.values(), strict=True)
            body = PredictReply(
                predictions=[Prediction(**dict(zip(columns, row, strict=True))) for row in rows]
            )
        return timed_reply(body, slowest(results))

    def _by_output(self, results: Sequence[Answered]) -> dict[str, list[Any]]:
        """Each output's elements; lists, if a question wants several answers."""
        width = max(request.top_k for request in self.requests)
        wanted = [
            msgspec.structs.replace(result, answers=result.answers[: request.top_k])
            for request, result in zip(self.requests, results, strict=True)
        ]
        has_collection = any(request.collection for request in self.requests)
        columns = {
            name: column
            for name, column in output_columns(wanted, width, OUTPUTS).items()
            if name in shown_outputs(has_collection=has_collection)
            or (OUTPUTS[name].shown is Shown.IF_ANY and any(column))
        }
        if width == 1:
            return columns
        return {
            name: column
            if OUTPUTS[name].is_of_reply
            else [column[i : i + width] for i in range(0, len(column), width)]
            for name, column in columns.items()
        }


_decoder = msgspec.json.Decoder(PredictBody)
_UNKNOWN_FIELD = re.compile("unknown field `(.*?)`")
"""In msgspec's message."""


def parse_predict(body: bytes, model: str, version: str) -> PredictCall:
    """Parses a request to predict.

    Args:
        version: The model's version or label; empty for none.

    Raises:
        InvalidRequestError: The request is malformed, or over a bound.
    """
    try:
        asked = decode_leniently(_decoder, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = _UNKNOWN_FIELD.search(str(error))
        hint = near_miss([found[1]], COLUMNS) if found else ""
        words = f"not a request to predict: {error}"
        raise InvalidRequestError(f"{words}; {hint}" if hint else words) from None
    if asked.signature_name not in {"", SIGNATURE}:
        raise InvalidRequestError(f"the only `signature_name` is {SIGNATURE}")
    if (asked.instances is msgspec.UNSET) == (asked.inputs is msgspec.UNSET):
        raise InvalidRequestError("there must be either `instances` or `inputs`")
    if asked.inputs is msgspec.UNSET:
        rows = [msgspec.structs.asdict(row) for row in asked.instances or []]
    else:
        rows = asked.inputs.rows()
    if not 1 <= len(rows) <= MAX_QUESTIONS:
        raise InvalidRequestError(f"a request has 1 to {MAX_QUESTIONS} questions")
    requests = [
        Request(model=model, version=version or None, **{k: _plain(k, v) for k, v in row.items()})
        for row in rows
    ]
    for request in requests:
        check_bounds(request)
    return PredictCall(requests, asked.inputs is not msgspec.UNSET)


def _plain(name: str, value: object) -> Any:  # noqa: ANN401
    """The value; a string is decoded if it came in base64."""
    if not isinstance(value, Encoded):
        return value
    try:
        return base64.b64decode(value.b64, validate=True).decode()
    except ValueError:
        raise InvalidRequestError(f"the `b64` of `{name}` is not UTF-8 text in base64") from None


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


def status_of_all(model: ModelReport, models: Sequence[ModelReport]) -> HttpReply:
    return status([one for one in models if one.name == model.name])


def status(versions: Sequence[ModelReport]) -> HttpReply:
    statuses = []
    for one in versions:
        has_failed = one.failed_loads and not one.is_ready
        load = StatusCode("INTERNAL", one.reason) if has_failed else StatusCode()
        statuses.append(VersionStatus(_version(one), _STATES[one.state], load))
    is_ready = any(one.is_ready for one in versions)
    return json_reply(ModelStatus(statuses, versions[0].name, is_ready))


def _version(model: ModelReport) -> str:
    return model.version or "0"  # as protobuf's JSON writes a number that is not set


def metadata(model: ModelReport, _: Sequence[ModelReport]) -> HttpReply:
    """A model's one signature: N questions and N texts in, N or [N, top_k] of each output back."""
    column = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    either: dict[str, object] = {"dim": [], "unknown_rank": True}
    signature = {
        "inputs": {name: _tensor(name, kind, column) for name, kind in INPUT_TYPES.items()},
        "outputs": {name: _tensor(name, kind, either) for name, kind in OUTPUT_TYPES.items()},
        "method_name": "tensorflow/serving/predict",
    }
    spec = {"name": model.name, "signature_name": "", "version": _version(model)}
    signatures = {"signature_def": {SIGNATURE: signature}}
    return json_reply({"model_spec": spec, "metadata": {"signature_def": signatures}})


def _tensor(name: str, datatype: str, shape: Mapping[str, object]) -> dict[str, object]:
    return {"dtype": _DATATYPES[datatype], "tensor_shape": shape, "name": f"{name}:0"}
