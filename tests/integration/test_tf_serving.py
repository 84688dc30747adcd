"""TensorFlow Serving's clients as people write them, against a running server."""

import json

import pytest

from harness.frames import QUESTIONS, TEXT
from harness.process import GIVE_UP_S

ROWS = [{"question": question, "text": TEXT} for question in QUESTIONS]


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
