"""TensorFlow Serving's REST API: rows and columns in, predictions and outputs out, byte by byte."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.errors import (
    DeadlineExceededError,
    ExecutionTimeoutError,
    HttpError,
    InvalidRequestError,
    QueueFullError,
    TextTooLongError,
    UnavailableError,
    UnknownModelError,
)
from qa_service.wire import json_codec
from qa_service.wire.http import pages
from qa_service.wire.http.http_access import HttpAccess
from qa_service.wire.http.http_codec import HttpCodec, HttpSite
from qa_service.wire.http.model_reports import CASCADE, ModelReport
from qa_service.wire.http.open_inference import MAX_QUESTIONS
from qa_service.wire.http.tf_serving import PredictCall, parse_predict
from qa_service.wire.messages import (
    MAX_QUESTION_CHARS,
    UNKNOWN_SOURCE,
    Answer,
    Answered,
    RejectedError,
    Timings,
)
from tests.unit.wire.http.test_http_codec import Peer, get, post

TIMINGS = Timings(1.0, 2.0)
ROW = {"question": "Who?", "text": "It was Ada."}
COLUMNS = {"question": ["Who?", "When?"], "text": ["It was Ada.", "In 1843."]}
ADA = Answer("Ada", 0.5, 7, 10)
NONE = Answer("", 0.25, None, None)
PREDICT = "/v1/models/builtin:predict"


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [{"question": {"b64": "V2hvPw=="}, "text": {"b64": "QWRhIMOpLg=="}}]},
        {"inputs": {"question": [{"b64": "V2hvPw=="}], "text": ["Ada é."]}},
    ],
)
def test_strings_may_come_in_base64(body):
    [request] = parse(body).requests
    assert (request.question, request.text) == ("Who?", "Ada é.")


@pytest.mark.parametrize(
    "value", [{"b64": "V2hvPw"}, {"b64": "/w=="}, {"b64": "V-_="}, {"b": ""}, 1]
)
def test_invalid_base64_is_refused(value):
    with pytest.raises(InvalidRequestError):
        parse({"instances": [{"question": value, "text": "Ada."}]})


def test_a_near_miss_gets_a_suggestion():
    with pytest.raises(InvalidRequestError, match="did you mean `text`"):
        parse({"instances": [{"question": "Who?", "context": "Ada."}]})


def parse(body: object) -> PredictCall:
    return parse_predict(json.dumps(body).encode(), "builtin", "")


def reply_to(body: object, *answers: list[Answer]) -> bytes:
    results = [Answered(its, TIMINGS, UNKNOWN_SOURCE) for its in answers]
    return parse(body).reply(results).body


class TestPredict:
    @pytest.mark.parametrize(
        ("top_k", "each"), [(3, [3, 3]), (3.0, [3, 3]), ([1, 2], [1, 2]), ([1.0, 2], [1, 2])]
    )
    def test_top_k_is_one_for_all_or_a_column(self, top_k, each):
        call = parse({"inputs": {**COLUMNS, "top_k": top_k}})
        assert [request.top_k for request in call.requests] == each

    def test_rows_get_predictions(self):
        body = {"signature_name": "serving_default", "instances": [ROW, ROW]}
        assert reply_to(body, [ADA, NONE], [NONE]) == (
            b'{"predictions":[{"answer":"Ada","score":0.5,"start":7,"end":10},'
            b'{"answer":"","score":0.25,"start":-1,"end":-1}]}'
        )

    def test_columns_get_outputs(self):
        assert reply_to({"inputs": COLUMNS}, [ADA], [NONE]) == (
            b'{"outputs":{"answer":["Ada",""],"score":[0.5,0.25],"start":[7,-1],"end":[10,-1]}}'
        )

    def test_predictions_of_several_answers_are_as_wide_as_the_widest(self):
        rows = [{**ROW, "top_k": 2}, ROW]
        assert reply_to({"instances": rows}, [ADA, NONE], [ADA, NONE]) == (
            b'{"predictions":['
            b'{"answer":["Ada",""],"score":[0.5,0.25],"start":[7,-1],"end":[10,-1]},'
            b'{"answer":["Ada",""],"score":[0.5,0.0],"start":[7,-1],"end":[10,-1]}]}'
        )

    def test_outputs_of_several_answers_have_a_column_for_each(self):
        assert reply_to({"inputs": {**COLUMNS, "top_k": 2}}, [ADA], [ADA, NONE]) == (
            b'{"outputs":{"answer":[["Ada",""],["Ada",""]],"score":[[0.5,0.0],[0.5,0.25]],'
            b'"start":[[7,-1],[7,-1]],"end":[[10,-1],[10,-1]]}}'
        )


WRONG = {
    "neither": {},
    "both": {"instances": [ROW], "inputs": COLUMNS},
    "no object": [ROW],
    "no rows": {"instances": []},
    "no columns": {"inputs": {"question": [], "text": []}},
    "a row alone": {"instances": ROW},
    "null": {"instances": None},
    "rows of strings": {"instances": ["Who?"]},
    "a field more": {"instances": [{**ROW, "context": "?"}]},
    "a field less": {"instances": [{"question": "Who?"}]},
    "a column more": {"inputs": {**COLUMNS, "context": ["?", "?"]}},
    "a column less": {"inputs": {"question": ["Who?"]}},
    "a shorter column": {"inputs": {**COLUMNS, "text": ["It was Ada."]}},
    "a shorter top_k": {"inputs": {**COLUMNS, "top_k": [1]}},
    "scalars": {"inputs": ROW},
    "top_k 0": {"instances": [{**ROW, "top_k": 0}]},
    "top_k 21": {"inputs": {**COLUMNS, "top_k": 21}},
    "top_k 1.5": {"inputs": {**COLUMNS, "top_k": 1.5}},
    "top_k true": {"inputs": {**COLUMNS, "top_k": True}},
    "too many": {"instances": [ROW] * (MAX_QUESTIONS + 1)},
    "blank": {"instances": [{**ROW, "question": " "}]},
    "too long": {"instances": [ROW, {**ROW, "question": "a" * (MAX_QUESTION_CHARS + 1)}]},
    "another signature": {"instances": [ROW], "signature_name": "regress"},
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_bodies_are_refused_with_the_reason(name):
    with pytest.raises(InvalidRequestError):
        parse(WRONG[name])


def test_a_row_without_a_field_is_refused_without_a_second_reading(monkeypatch):
    monkeypatch.setattr(json_codec, "_whole_decoder", None)
    body = b'{"instances":[' + b",".join([b"{}"] * 60_000) + b"]}"
    with pytest.raises(InvalidRequestError, match="missing required field `question`"):
        parse_predict(body, "m", "")


def test_a_number_that_is_out_of_range_is_refused_also_after_a_whole_float():
    body = b'{"instances":[{"question":"q","text":"t","top_k":1.0,"timeout_ms":1e400}]}'
    with pytest.raises(InvalidRequestError, match="Number out of range"):
        parse_predict(body, "m", "")


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"instances": [ROW], "more": "?"}).encode().replace(b"?", b"\xff"),
        b'{"instances":' + b"[" * 100_000,
    ],
    ids=["no UTF-8", "nested deeply"],
)
def test_invalid_json_is_refused(body):
    with pytest.raises(InvalidRequestError):
        parse_predict(body, "builtin", "")


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(body):
    with pytest.raises(InvalidRequestError):
        parse_predict(body, "builtin", "")


names = st.sampled_from(["question", "text", "top_k", "instances", "inputs", "signature_name", "x"])
scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4)
)
instances = st.fixed_dictionaries(
    {"question": st.text(), "text": st.text()}, optional={"top_k": st.integers(-1, 25)}
)


@given(st.dictionaries(names, values) | st.fixed_dictionaries({"instances": st.lists(instances)}))
def test_a_hostile_body_is_refused_or_has_a_reply_for_each_row(body):
    try:
        call = parse(body)
    except InvalidRequestError:
        return
    results = [Answered([ADA], TIMINGS, UNKNOWN_SOURCE)] * len(call.requests)
    reply = json.loads(call.reply(results).body)
    assert len(reply.get("predictions") or reply["outputs"]["answer"]) == len(call.requests)


class TestOverTheWire:
    @pytest.mark.parametrize(
        ("place", "version"),
        [
            ("", None),
            ("/versions/12", "12"),
            ("/labels/stable", "stable"),
            ("/labels/a%2Eb", "a.b"),
        ],
    )
    def test_a_path_names_model_and_version(self, place, version):
        peer = Peer().send(post(f"/v1/models/fast{place}:predict", {"instances": [ROW]}))
        [request] = peer.requests
        assert (request.model, request.version) == ("fast", version)

    @pytest.mark.parametrize(
        ("error", "status"),
        [(QueueFullError("full", retry_after_ms=1200), 429), (UnavailableError("none"), 503),
         (DeadlineExceededError("late"), 504), (UnknownModelError("no model x"), 404),
         (InvalidRequestError("wrong"), 400), (ExecutionTimeoutError(), 504),
         (TextTooLongError(), 400)],
    )  # fmt: skip
    def test_an_error_has_its_status(self, error, status):
        peer = Peer().send(post(PREDICT, {"instances": [ROW]}))
        peer.fail(error)
        found, fields, body = peer.only()
        assert (found, body) == (status, {"error": error.message})
        assert fields.get("Retry-After") == ("2" if status == 429 else None)

    @pytest.mark.parametrize(
        ("data", "status", "words"),
        [
            (post(PREDICT, {}), 400, "either `instances` or `inputs`"),
            (post(PREDICT, b"{"), 400, "not a request to predict"),
            (post("/v1/models/builtin:classify", {"examples": [{}]}), 400, "ask :predict"),
            (post("/v1/models/builtin/versions/1:regress", {}), 400, "ask :predict"),
            (post("/v1/models/builtin:explain", {}), 400, "malformed request"),
            (post("/v1/models/builtin/versions/one:predict", {}), 400, "malformed request"),
            (post("/v1/models/builtin/labels/1:predict", {}), 400, "malformed request"),
            (post("/v1/models/builtin/versions/1/labels/a:predict", {}), 400, "malformed request"),
            (post("/v1/models/:predict", {}), 400, "malformed request"),
            (get("/v1/models/builtin/versions"), 400, "malformed request"),
            (get("/v1/nothing"), 400, "malformed request"),
            (get("/v1/models/other"), 404, "there is no model 'other'"),
            (get("/v1/models/other/metadata"), 404, "there is no model 'other'"),
            (get(PREDICT), 405, "GET is not for this path"),
        ],
    )  # fmt: skip
    def test_an_unserved_paths_error_gives_the_reason(self, data, status, words):
        found, _, body = Peer().send(data).only()
        assert (found, list(body)) == (status, ["error"])
        assert words in body["error"]

    @given(st.binary(max_size=40))
    def test_any_path_is_served_or_refused(self, path):
        codec = HttpCodec(HttpSite(5000, HttpAccess(), str), wants_token=False)
        codec.feed(b"GET /v1/models/" + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            codec.next_message()
        except HttpError:
            return
        except RejectedError as rejected:
            assert isinstance(rejected.error, HttpError)


# What is said of a model.


def report_of(version, state="READY", **more):
    fields = {"name": "fast", "engine_type": "onnx", "is_ready": state == "READY", "reason": "",
              "instances": 2, "max_queue_delay_us": 0}  # fmt: skip
    return ModelReport(version=version, state=state, **{**fields, **more})


ROUTE = report_of("", name="auto", engine_type=CASCADE, cascade=["fast"])
MODELS = [
    ROUTE,
    report_of("2", labels=["stable"]),
    report_of("1", "UNLOADING"),
    report_of("3", "UNAVAILABLE", reason="no such file", failed_loads=2),
    report_of("4", "LOADING", reason="it is being loaded"),
]


def told(path, models=MODELS):
    peer = Peer()
    peer.report = lambda _: models
    status, _, body = peer.send(get(path)).only()
    assert status == 200
    return body


def status_of(number, state, code="OK", message=""):
    return {"version": number, "state": state,
            "status": {"error_code": code, "error_message": message}}  # fmt: skip


def test_the_status_path_lists_all_versions():
    assert told("/v1/models/fast") == {
        "model_version_status": [
            status_of("2", "AVAILABLE"),
            status_of("1", "UNLOADING"),
            status_of("3", "END", "INTERNAL", "no such file"),
            status_of("4", "LOADING"),
        ],
        "name": "fast",
        "ready": True,
    }


@pytest.mark.parametrize(
    ("path", "version", "state"),
    [
        ("fast/versions/2", "2", "AVAILABLE"),
        ("fast/labels/stable", "2", "AVAILABLE"),
        ("fast/versions/4", "4", "LOADING"),
        ("auto", "0", "AVAILABLE"),
    ],
)
def test_the_status_path_of_a_version_or_route_has_that_one(path, version, state):
    body = told(f"/v1/models/{path}")
    assert body["model_version_status"] == [status_of(version, state)]
    assert body["ready"] == (state == "AVAILABLE")


def test_the_list_of_models_has_models_and_routes():
    assert told("/v1/models") == {"models": ["auto", "fast"]}


def test_the_metadata_has_the_signature():
    body = told("/v1/models/fast/metadata")
    assert body["model_spec"] == {"name": "fast", "signature_name": "", "version": "2"}
    signature = body["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["text"] == {
        "dtype": "DT_STRING",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
        "name": "text:0",
    }
    assert signature["outputs"]["start"]["tensor_shape"] == {"dim": [], "unknown_rank": True}
    kinds = {name: tensor["dtype"] for name, tensor in signature["outputs"].items()}
    assert kinds == {
        "answer": "DT_STRING", "score": "DT_FLOAT", "start": "DT_INT32", "end": "DT_INT32",
    }  # fmt: skip


def test_the_description_has_the_paths_and_what_they_take():
    description = pages.description()
    instance = description["components"]["schemas"]["Instance"]
    assert (instance["required"], instance["additionalProperties"]) == (["question"], False)
    predict = description["paths"]["/v1/models/{model}:predict"]["post"]
    assert {"400", "404", "429", "503", "504"} <= predict["responses"].keys()
    for path, item in description["paths"].items():
        named = {parameter["name"] for parameter in item.get("parameters", [])}
        assert named == set(re.findall(r"{(\w+)}", path))
