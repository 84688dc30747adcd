"""TensorFlow Serving's clients as people write them, against a running server."""

import json

import pytest

from harness.frames import ASK, QUESTIONS, TEXT
from harness.models import ModelFile
from harness.process import GIVE_UP_S
from harness.server import running_server
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
