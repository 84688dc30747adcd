"""What each HTTP path is: a document, a question about the server, or questions to the model.

Sans-IO: a route turns a request into what answers it, and knows neither connection nor server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import msgspec

from qa_service import __version__
from qa_service.errors import HttpError, InvalidRequestError, QaError
from qa_service.wire import model_reports, openapi, page, prometheus, tf_serving
from qa_service.wire.http_message import HttpHead
from qa_service.wire.http_reply import HttpReply, error_reply, json_reply, server_timing
from qa_service.wire.json_codec import answers_body, error_body, parse_request
from qa_service.wire.messages import (
    QueryType,
    RejectedError,
    Request,
    RequestLimits,
)
from qa_service.wire.model_reports import ModelReport
from qa_service.wire.open_inference import HEADER_LENGTH, InferCall, Result, parse_infer
from qa_service.wire.tf_serving import PredictCall, parse_predict

EXTENSIONS = ("binary_tensor_data", "model_configuration", "parameters", "schedule_policy",
              "statistics")  # fmt: skip
_REMEMBERED_PATHS = 256
_encode = msgspec.json.Encoder().encode

TF_SERVING = "/v1/"
"""How the paths of TensorFlow Serving begin; errors have its form there."""

OPEN_PATHS = {"/", "/v2/health/live", "/v2/health/ready"}
"""What is served without a token; the page holds nothing, and a browser has none to send for it."""


class QaCall(msgspec.Struct, frozen=True):
    """One question as the frame protocol has it."""

    id_json: bytes
    requests: Sequence[Request]

    def reply(self, results: Sequence[Result]) -> HttpReply:
        """The response."""
        [result] = results
        top_k = self.requests[0].top_k
        body = answers_body(self.id_json, result.answers, result.timings, top_k, result.source)
        fields = {"Server-Timing": server_timing(result.timings)}
        return HttpReply(_encode(body), fields=fields)


@dataclass(frozen=True, slots=True)
class ReportCall:
    """A question about the server.

    Attributes:
        render: Makes the reply of the report.
        model: The model that it is about, where that matters to who answers it.
    """

    type: QueryType
    render: Callable[[Any], HttpReply]
    model: str = ""


QuestionsCall = QaCall | InferCall | PredictCall
Action = HttpReply | QuestionsCall | ReportCall


class HttpRequest(msgspec.Struct, frozen=True):
    """A whole request.

    Attributes:
        body: Its body, not compressed.
        model: The model in its path; empty if there is none.
        version: The version or label in its path; empty if there is none.
    """

    head: HttpHead
    body: bytes
    limits: RequestLimits
    model: str = ""
    version: str = ""


Handler = Callable[[HttpRequest], Action]


def find_action(head: HttpHead, body: bytes, limits: RequestLimits) -> Action:
    """What answers a request.

    Raises:
        HttpError: There is nothing there, or not by that method.
        InvalidRequestError: The body is not what it must be.
        RejectedError: The same, with the id to answer it under.
    """
    handlers, model, version = _find_route(head.path)
    method = "GET" if head.method == "HEAD" else head.method
    if method == "OPTIONS":
        return HttpReply(status=204, fields={"Allow": _allow(handlers)})
    if method not in handlers:
        fields = {"Allow": _allow(handlers)}
        raise HttpError(f"{method} is not for this path", status=405, fields=fields)
    return handlers[method](HttpRequest(head, body, limits, model, version))


@lru_cache(_REMEMBERED_PATHS)
def _find_route(path: str) -> tuple[Mapping[str, Handler], str, str]:
    """What handles the methods of a path, and the model and the version in it."""
    for pattern, handlers in _ROUTES:
        if found := pattern.match(path):
            names = {name: unquote(value or "") for name, value in found.groupdict().items()}
            version = names.get("version") or names.get("label", "")
            return handlers, names.get("model", ""), version
    raise HttpError("there is nothing at this path", status=404)


def path_error(path: str, id_json: bytes, error: QaError) -> HttpReply:
    """An error in the form that the path has for one."""
    if path == "/qa":
        return error_reply(error, error_body(id_json, error))
    return tf_serving.predict_error(error) if path.startswith(TF_SERVING) else error_reply(error)


def _allow(handlers: Mapping[str, object]) -> str:
    return ", ".join([*(["GET, HEAD"] if "GET" in handlers else []),
                      *(["POST"] if "POST" in handlers else []), "OPTIONS"])  # fmt: skip


# Questions to the model.


def _ask(request: HttpRequest) -> Action:
    asked = parse_request(request.body, request.limits)
    if not isinstance(asked, Request):
        raise RejectedError(asked.id_json, InvalidRequestError("`type` must be question"))
    return QaCall(asked.id_json, [asked])


def _infer(request: HttpRequest) -> Action:
    header_length = request.head.fields.get(HEADER_LENGTH.lower())
    return parse_infer(request.body, header_length, request.limits, request.model, request.version)


def _predict(request: HttpRequest) -> Action:
    return parse_predict(request.body, request.limits, request.model, request.version)


# Questions about the server.


def _report(query: QueryType, render: Callable[[Any], object]) -> Handler:
    """A route whose reply is the JSON of what is made of a report."""
    return lambda _: ReportCall(query, lambda report: json_reply(render(report)))


def _metrics(_: HttpRequest) -> Action:
    return ReportCall("metrics", lambda text: HttpReply(text, content_type=prometheus.CONTENT_TYPE))


def _live(_: HttpRequest) -> Action:
    return ReportCall("health", lambda _: json_reply({"live": True}))


def _ready(_: HttpRequest) -> Action:
    def render(health: Any) -> HttpReply:  # noqa: ANN401 - telemetry's, which is above
        is_ready = health.ready
        why = {} if is_ready else {"reason": health.reason}
        return json_reply({"live": True, "ready": is_ready, **why}, 200 if is_ready else 503)

    return ReportCall("health", render)


def _model(render: Callable[[ModelReport, Sequence[ModelReport]], HttpReply]) -> Handler:
    """A route whose reply is made of the report on the model in its path, and of all others."""

    def handle(request: HttpRequest) -> Action:
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
    """The model or route of that name, in that version if one is given.

    Raises:
        HttpError: There is none.
    """
    for model in models:
        if model.name == name and version in {"", model.version, *model.labels}:
            return model
    raise unknown_model(name, version)


def unknown_model(name: str, version: str) -> HttpError:
    """Says that a model is not there, without repeating at length what was asked for."""
    wanted = f"'{name[:64]}'" + (f", version '{version[:16]}'" if version else "")
    return HttpError(f"there is no model {wanted}", status=404)


def _command(query: QueryType) -> Handler:
    """A route that has a model loaded or unloaded; the reply says that it has begun."""
    return lambda request: ReportCall(query, lambda _: json_reply({}), request.model)


def _model_metadata(model: ModelReport, _: Sequence[ModelReport]) -> HttpReply:
    return json_reply(model_reports.metadata(model))


def _model_config(model: ModelReport, _: Sequence[ModelReport]) -> HttpReply:
    return json_reply(model_reports.config(model))


def _model_statistics(model: ModelReport, models: Sequence[ModelReport]) -> HttpReply:
    """What a model has done; of a route, what the models have done that it asks."""
    asked = [one for one in models if one.name in model.cascade]
    return json_reply(model_reports.statistics(asked or [model]))


def _model_ready(model: ModelReport, _: Sequence[ModelReport]) -> HttpReply:
    return json_reply({"name": model.name, "ready": model.is_ready}, 200 if model.is_ready else 503)


# What Triton has and this server has not.


def _refuse(status: int, message: str) -> Handler:
    def handle(_: HttpRequest) -> Action:
        raise HttpError(message, status=status)

    return handle


def _say(value: object) -> Handler:
    """A route to a document that is always the same."""
    reply = json_reply(value)
    return lambda _: reply


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
_PATHS: dict[str, dict[str, Handler]] = {
    "/qa": {"POST": _ask},
    f"{_MODEL}/infer": {"POST": _infer},
    "/": {"GET": lambda _: page.REPLY},
    "/openapi.json": {"GET": lambda _: openapi.reply()},
    "/metrics": {"GET": _metrics},
    "/stats": {"GET": _report("stats", lambda report: report)},
    "/v2/?": {"GET": _say(_SERVER)},
    "/v2/health/live": {"GET": _live},
    "/v2/health/ready": {"GET": _ready},
    "/v2/models/stats": {"GET": _report("models", model_reports.statistics)},
    _MODEL: {"GET": _model(_model_metadata)},
    f"{_MODEL}/ready": {"GET": _model(_model_ready)},
    f"{_MODEL}/config": {"GET": _model(_model_config)},
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
    _TF_MODEL: {"GET": _model(tf_serving.model_status)},
    f"{_TF_MODEL}{_TF_VERSION}": {"GET": _model(tf_serving.version_status)},
    f"{_TF_MODEL}{_TF_VERSION}?/metadata": {"GET": _model(tf_serving.metadata)},
    f"{_TF_MODEL}{_TF_VERSION}?:predict": {"POST": _predict},
    f"{_TF_MODEL}{_TF_VERSION}?:(?:classify|regress)": {
        "POST": _refuse(400, tf_serving.NO_SUCH_VERB)
    },
    f"{TF_SERVING}.*": {"GET": _MALFORMED, "POST": _MALFORMED},
    "\\*": {},
}
_ROUTES = [(re.compile(f"{path}\\Z"), handlers) for path, handlers in _PATHS.items()]
