"""What each HTTP path is: a document, a query about the server, or questions to a model.

A route makes a call of a request; the call makes the reply. Sans-IO.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any
from urllib.parse import unquote

import msgspec

from qa_service import __version__
from qa_service.errors import HttpError, InvalidRequestError, QaError
from qa_service.wire.error_codes import tf_serving_status_of
from qa_service.wire.http import model_reports, pages, prometheus, tf_serving
from qa_service.wire.http.http_message import HttpHead
from qa_service.wire.http.http_reply import HttpReply, error_reply, json_reply, timed_reply
from qa_service.wire.http.model_reports import ModelReport
from qa_service.wire.http.open_inference import HEADER_LENGTH, InferCall, parse_infer
from qa_service.wire.http.tf_serving import PredictCall, parse_predict
from qa_service.wire.json_codec import answers_body, error_body, parse_request
from qa_service.wire.messages import Answered, QueryType, RejectedError, Request

EXTENSIONS = ("binary_tensor_data", "model_configuration", "parameters", "schedule_policy",
              "statistics")  # fmt: skip
_REMEMBERED_PATHS = 256
"""2 MiB of paths at most; a client needs one or two."""

TF_SERVING = "/v1/"
"""The beginning of TensorFlow Serving's paths, where errors have its form."""
_ENCODED_COLON = re.compile("%3a", re.IGNORECASE)
"""As some clients write the colon before a verb (RFC 3986, section 2.2, lets them)."""

LIVE_PATHS = {"/v2/health/live", "/livez"}
READY_PATHS = {"/v2/health/ready", "/readyz", "/health", "/healthz"}
"""Under the names that probes of other servers use too."""
OPEN_PATHS = {"/", "/docs", *LIVE_PATHS, *READY_PATHS}
"""Served without a token: the pages hold no secrets, and a browser sends no token for them."""


class QaCall(msgspec.Struct, frozen=True):
    """One question, in the JSON of the frame protocol."""

    id_json: bytes
    requests: Sequence[Request]

    def reply(self, results: Sequence[Answered]) -> HttpReply:
        [result], [request] = results, self.requests
        return timed_reply(answers_body(self.id_json, result, request.top_k), result.timings)


class ReportCall(msgspec.Struct, frozen=True):
    """A query about the server."""

    type: QueryType
    render: Callable[[Any], HttpReply]
    model: str = ""


QuestionsCall = QaCall | InferCall | PredictCall


class HttpRequest(msgspec.Struct, frozen=True):
    """A whole request, inflated; the model and the version in its path are empty without any."""

    head: HttpHead
    body: bytes
    model: str = ""
    version: str = ""


Handler = Callable[[HttpRequest], QuestionsCall | ReportCall]


def route(head: HttpHead, body: bytes) -> QuestionsCall | ReportCall:
    """Makes the call that a request asks for.

    Raises:
        HttpError: There is nothing at its path, or not by its method.
        InvalidRequestError: The body is malformed, or over a bound.
        RejectedError: The same, with the id to answer it under.
    """
    handlers, model, version = _find_route(head.path)
    method = "GET" if head.method == "HEAD" else head.method
    if method in handlers:
        return handlers[method](HttpRequest(head, body, model, version))
    allow = {"Allow": ", ".join([*handlers, "OPTIONS"]).replace("GET", "GET, HEAD")}
    if method == "OPTIONS":
        return _document(HttpReply(status=204, fields=allow))
    raise HttpError(f"{method} is not for this path", status=405, fields=allow)


@lru_cache(_REMEMBERED_PATHS)
def _find_route(path: str) -> tuple[Mapping[str, Handler], str, str]:
    """The handlers of a path by method, and the model and the version in the path."""
    if path.startswith(TF_SERVING):
        path = _ENCODED_COLON.sub(":", path)
    for pattern, handlers in _ROUTES:
        if found := pattern.match(path):
            names = {name: unquote(value or "") for name, value in found.groupdict().items()}
            version = names.get("version") or names.get("label", "")
            return handlers, names.get("model", ""), version
    raise HttpError("there is nothing at this path", status=404)


def path_error(path: str, id_json: bytes, error: QaError) -> HttpReply:
    if path == "/qa":
        return error_reply(error, error_body(id_json, error))
    reply = error_reply(error)
    if path.startswith(TF_SERVING):
        return msgspec.structs.replace(reply, status=tf_serving_status_of(error))
    return reply


# Questions to a model.


def _ask(request: HttpRequest) -> QaCall:
    asked = parse_request(request.body)
    if not isinstance(asked, Request):
        raise RejectedError(asked.id_json, InvalidRequestError("`type` must be question"))
    return QaCall(asked.id_json, [asked])


def _infer(request: HttpRequest) -> InferCall:
    header_length = request.head.fields.get(HEADER_LENGTH.lower())
    return parse_infer(request.body, header_length, request.model, request.version)


# Queries about the server.


def _report(query: QueryType, render: Callable[[Any], object]) -> Handler:
    return lambda _: ReportCall(query, lambda report: json_reply(render(report)))


def _ready(_: HttpRequest) -> ReportCall:
    def render(health: Any) -> HttpReply:  # noqa: ANN401 - telemetry's, which is above
        why = {} if health.ready else {"reason": health.reason}
        report = {"live": True, "ready": health.ready, **why}
        return json_reply(report, 200 if health.ready else 503)

    return ReportCall("health", render)


def _model(render: Callable[[ModelReport, Sequence[ModelReport]], HttpReply]) -> Handler:
    """A route whose reply is made from the report on the model in its path, and all reports."""

    def handle(request: HttpRequest) -> ReportCall:
        def reply(models: Sequence[ModelReport]) -> HttpReply:
            try:
                found = find_model(models, request.model, request.version)
            except HttpError as error:
                return error_reply(error)
            versions = [one.version for one in models if one.name == found.name]
            return render(replace(found, versions=versions), models)

        return ReportCall("models", reply)

    return handle


def find_model(models: Sequence[ModelReport], name: str, version: str) -> ModelReport:
    """The model or route of that name, in that version if one is given; else an `HttpError`."""
    for model in models:
        if model.name == name and version in {"", model.version, *model.labels}:
            return model
    wanted = f"'{name[:64]}'" + (f", version '{version[:16]}'" if version else "")
    raise HttpError(f"there is no model {wanted}", status=404)


def _command(query: QueryType) -> Handler:
    """A route that loads or unloads a model; the reply comes when that has begun."""
    return lambda request: ReportCall(query, lambda _: json_reply({}), request.model)


def _model_statistics(model: ModelReport, models: Sequence[ModelReport]) -> HttpReply:
    """A model's statistics; of a route, those of the models that it asks."""
    asked = [one for one in models if one.name in model.cascade]
    return json_reply(model_reports.statistics(asked or [model]))


def _model_ready(model: ModelReport, _: Sequence[ModelReport]) -> HttpReply:
    return json_reply({"name": model.name, "ready": model.is_ready}, 200 if model.is_ready else 503)


# Documents, and what this server lacks of Triton's paths.


def _document(reply: HttpReply) -> ReportCall:
    return ReportCall("document", lambda _: reply)


def _say(value: object) -> Handler:
    """A route to a JSON document that never changes."""
    reply = json_reply(value)
    return lambda _: _document(reply)


def _refuse(status: int, message: str) -> Handler:
    def handle(_: HttpRequest) -> ReportCall:
        raise HttpError(message, status=status)

    return handle


_SERVER = {"name": "qa-server", "version": __version__, "extensions": EXTENSIONS}
_TRACE = {"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0"}
_LOG = {"log_file": "", "log_info": True, "log_warning": True, "log_error": True,
        "log_verbose_level": 0, "log_format": "default"}  # fmt: skip
_NO_SETTINGS = _refuse(501, "settings are changed where the server is started")
_NO_MEMORY = _refuse(501, "there is no shared memory")

_MODEL = "/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_REPOSITORY = "/v2/repository/models/(?P<model>[^/]+)"
_TF_MODEL = "/v1/models/(?P<model>[^/:]+)"
_TF_VERSION = "(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:0-9][^/:]*))"
_MALFORMED = _refuse(400, tf_serving.MALFORMED)
_TEXT = partial(HttpReply, content_type=prometheus.CONTENT_TYPE)
_PATHS: dict[str, dict[str, Handler]] = {
    "/qa": {"POST": _ask},
    f"{_MODEL}/infer": {"POST": _infer},
    "/": {"GET": lambda _: _document(pages.PAGE)},
    "/docs": {"GET": lambda _: _document(pages.docs())},
    "/openapi.json": {"GET": lambda _: _document(pages.openapi())},
    "/metrics": {"GET": lambda _: ReportCall("metrics", _TEXT)},
    "/stats": {"GET": _report("stats", lambda report: report)},
    "/v2/?": {"GET": _say(_SERVER)},
    **{path: {"GET": _report("health", lambda _: {"live": True})} for path in LIVE_PATHS},
    **{path: {"GET": _ready} for path in READY_PATHS},
    "/v2/models/stats": {"GET": _report("models", model_reports.statistics)},
    _MODEL: {"GET": _model(lambda model, _: json_reply(model_reports.metadata(model)))},
    f"{_MODEL}/ready": {"GET": _model(_model_ready)},
    f"{_MODEL}/config": {"GET": _model(lambda model, _: json_reply(model_reports.config(model)))},
    f"{_MODEL}/stats": {"GET": _model(_model_statistics)},
    "/v2/repository/index": {"POST": _report("models", model_reports.index)},
    f"{_REPOSITORY}/load": {"POST": _command("load")},
    f"{_REPOSITORY}/unload": {"POST": _command("unload")},
    "/v2(?:/models/[^/]+)?/trace/setting": {"GET": _say(_TRACE), "POST": _NO_SETTINGS},
    "/v2/logging": {"GET": _say(_LOG), "POST": _NO_SETTINGS},
    "/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/status": {"GET": _say([])},
    "/v2/(?:system|cuda)sharedmemory/region/[^/]+/register": {"POST": _NO_MEMORY},
    "/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/unregister": {"POST": _say({})},
    "/v1/models": {"GET": _report("models", tf_serving.index)},
    _TF_MODEL: {"GET": _model(tf_serving.status_of_all)},
    f"{_TF_MODEL}{_TF_VERSION}": {"GET": _model(lambda model, _: tf_serving.status([model]))},
    f"{_TF_MODEL}{_TF_VERSION}?/metadata": {"GET": _model(tf_serving.metadata)},
    f"{_TF_MODEL}{_TF_VERSION}?:predict": {
        "POST": lambda its: parse_predict(its.body, its.model, its.version)
    },
    f"{_TF_MODEL}{_TF_VERSION}?:(?:classify|regress)": {
        "POST": _refuse(400, tf_serving.NO_SUCH_VERB)
    },
    f"{TF_SERVING}.*": {"GET": _MALFORMED, "POST": _MALFORMED},
    "\\*": {},
}
_ROUTES = [(re.compile(f"{path}\\Z"), handlers) for path, handlers in _PATHS.items()]
