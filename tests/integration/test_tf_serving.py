"""TensorFlow Serving's clients as people write them, against a running server."""

import json

import pytest

from harness.frames import ANSWER, ASK, QUESTIONS, TEXT
from harness.models import ModelFile
from harness.process import GIVE_UP_S, held_still, wait_until
from harness.server import ONE_BY_ONE, running_server
from tests.http_calls import get, post

ROWS = [{"question": question, "text": TEXT} for question in QUESTIONS]
AVAILABLE = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}


def call(server, path, body=None):
    """The status and the JSON of a reply."""
    reply = get(server.port, path) if body is None else post(server.port, path, body)
    return reply.status, reply.json


def test_the_tutorials_snippet_gets_predictions(server):
    requests = pytest.importorskip("requests", reason="there is no requests")
    server_url = f"http://localhost:{server.port}/v1/models/builtin:predict"
    data = json.dumps({"signature_name": "serving_default", "instances": ROWS})
    headers = {"content-type": "application/json"}
    response = requests.post(server_url, data=data, headers=headers, timeout=GIVE_UP_S)
    response.raise_for_status()
    predictions = response.json()["predictions"]
    assert [prediction["answer"] for prediction in predictions] == list(QUESTIONS.values())
    for row in predictions:
        assert TEXT[row["start"] : row["end"]] == row["answer"]


def test_columns_get_outputs(server):
    columns = {"question": list(QUESTIONS), "text": [TEXT] * len(QUESTIONS), "top_k": 2}
    status, body = call(server, "/v1/models/builtin/versions/1:predict", {"inputs": columns})
    outputs = body["outputs"]
    assert (status, outputs.keys()) == (200, {"answer", "score", "start", "end"})
    assert [answers[0] for answers in outputs["answer"]] == list(QUESTIONS.values())
    assert {len(answers) for column in outputs.values() for answers in column} == {2}


def test_status_and_metadata_of_the_served_model(server):
    status = {"version": "1", **AVAILABLE}
    expected = {"model_version_status": [status], "name": "builtin", "ready": True}
    assert call(server, "/v1/models/builtin") == (200, expected)
    assert call(server, "/v1/models/builtin/versions/1") == (200, expected)
    assert call(server, "/v1/models") == (200, {"models": ["builtin"]})
    _, metadata = call(server, "/v1/models/builtin/metadata")
    assert metadata["model_spec"] == {"name": "builtin", "signature_name": "", "version": "1"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/models/builtin:predict", {"instances": [ASK], "inputs": {}}, 400),
        ("/v1/models/builtin:predict", {"instances": [ASK, {**ASK, "text": ""}]}, 400),
        ("/v1/models/builtin:classify", {"examples": [ASK]}, 400),
        ("/v1/models/builtin/predict", {"instances": [ASK]}, 400),
        ("/v1/models/other:predict", {"instances": [ASK]}, 404),
        ("/v1/models/builtin/versions/7:predict", {"instances": [ASK]}, 404),
        ("/v1/models/builtin/labels/none:predict", {"instances": [ASK]}, 404),
        ("/v1/models/other", None, 404),
        ("/v1/models/builtin/versions/7", None, 404),
    ],
)
def test_an_error_has_its_status_and_words(server, path, body, status):
    found, reply = call(server, path, body)
    assert (found, list(reply)) == (status, ["error"])
    assert reply["error"]


def test_a_model_is_asked_by_version_and_by_label(tmp_path):
    file = ModelFile(tmp_path)
    file.write("labels = { stable = 1, canary = 2 }")
    with running_server(file.model, *file.flags()) as server:
        for place in ("", "/versions/2", "/labels/canary"):
            status, body = call(server, f"/v1/models/m{place}:predict", {"instances": [ASK]})
            assert (status, len(body["predictions"])) == (200, 1)
        _, both = call(server, "/v1/models/m")
        assert sorted(one["version"] for one in both["model_version_status"]) == ["1", "2"]
        _, canary = call(server, "/v1/models/m/labels/canary")
        assert canary["model_version_status"] == [{"version": "2", **AVAILABLE}]


def test_a_full_queue_and_a_deadline_have_their_status(builtin_model):
    flags = ("--max_queue_size", "4", "--request_timeout_ms", "100", *ONE_BY_ONE)
    path = "/v1/models/builtin:predict"
    with running_server(builtin_model, *flags) as server:
        with held_still(server.worker_pids()):
            assert call(server, path, {"instances": [ASK] * 50})[0] == 429
            # The siblings of a failed row are cancelled.
            wait_until(lambda: server.stats()["gauges"]["requests_in_flight"] == 0)
            assert call(server, path, {"instances": [ASK] * 4})[0] == 504
        status, body = call(server, path, {"instances": [ASK]})
    assert (status, body["predictions"][0]["answer"]) == (200, ANSWER)
