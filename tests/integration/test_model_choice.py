"""Several models and versions as their clients see them: in frames, over HTTP, in the terminal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from harness.frames import frame, receive
from harness.models import ModelFile, count_versions, states, write_version
from harness.questions import ASK
from harness.server import ROOT, running_server
from qa_service.client import QaClient, QaServerError

ADMIN, OTHER = "a-token-that-may-load-models", "a-token-that-may-only-ask"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Two versions of `m` and one of `base`; a cascade, a canary, and a shadow."""
    folder = tmp_path_factory.mktemp("models")
    file = ModelFile(folder)
    write_version(folder / "base", 7)
    file.write(
        "labels = { stable = 1, canary = 2 }\ntraffic = { stable = 1, canary = 0 }\n"
        "shadow = { canary = 100 }",
        f'[models.base]\npath = "{folder / "base"}"\n'
        '[routes.default]\ncascade = ["m"]\n'
        '[routes.both]\ncascade = ["m", "base"]\nmin_score = 1.0\n',
    )
    with running_server(file.model, *file.flags()) as running:
        yield running


@pytest.fixture
def client(server):
    with QaClient("localhost", server.port) as connected:
        yield connected


def post(server, path, body=None, token=""):
    """The status and the JSON of a reply."""
    request = urllib.request.Request(
        f"http://localhost:{server.port}{path}",
        json.dumps(body or {}).encode(),
        {"Authorization": f"Bearer {token}"} if token else {},
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def get(server, path):
    with urllib.request.urlopen(f"http://localhost:{server.port}{path}") as reply:
        return reply.read().decode()


def status_of(server, path):
    try:
        get(server, path)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ({}, ("m", 1)),
        ({"model": "m"}, ("m", 1)),
        ({"model": "m", "version": 2}, ("m", 2)),
        ({"model": "m", "version": "2"}, ("m", 2)),
        ({"model": "m", "version": "canary"}, ("m", 2)),
        ({"model": "base"}, ("base", 7)),
        ({"model": "both"}, ("m", 1)),
    ],
)
def test_a_question_goes_where_it_says(client, asked, answered):
    answer = client.ask(**ASK, **asked)
    assert (answer.model, answer.version) == answered
    assert answer.response.get("models_asked") == (None if asked.get("model") in
                                                   ("m", "base") else 1)  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"model": "x"}, "there is no model x; there are m, base, default, both"),
        ({"model": "m", "version": 9}, "m has no version 9; there are 1, 2, canary, stable"),
        ({"model": "m", "version": "old"}, "m has no version old; there are 1, 2, canary, stable"),
        ({"version": 1}, "a route has no versions; name a model with the version"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(client, asked, message):
    with pytest.raises(QaServerError) as raised:
        client.ask(**ASK, **asked)
    assert (raised.value.code, raised.value.message) == ("unknown_model", message)


def test_the_paths_of_a_version(server):
    inputs = [{"name": name, "shape": [1], "datatype": "BYTES", "data": [value]}
              for name, value in ASK.items()]  # fmt: skip
    for path, version in (("m", "1"), ("m/versions/2", "2"), ("m/versions/canary", "2")):
        status, reply = post(server, f"/v2/models/{path}/infer", {"inputs": inputs})
        assert (status, reply["model_name"], reply["model_version"]) == (200, "m", version)
        assert json.loads(get(server, f"/v2/models/{path}/ready"))["ready"]
    for version in ("9", "01", "%d9%a1", "1" * 5000, "1" * 8000):
        path = f"/v2/models/m/versions/{version}"
        assert post(server, f"{path}/infer", {"inputs": inputs})[0] == 404
        assert status_of(server, f"{path}/ready") == 404
    assert sorted(json.loads(get(server, "/v2/models/m"))["versions"]) == ["1", "2"]
    index = post(server, "/v2/repository/index")[1]
    assert {(one["name"], one["version"], one["state"]) for one in index} == {
        ("m", "1", "READY"), ("m", "2", "READY"), ("base", "7", "READY"),
        ("default", "", "READY"), ("both", "", "READY"),
    }  # fmt: skip


def test_the_paths_of_a_route(server):
    assert json.loads(get(server, "/v2/models/both/ready")) == {"name": "both", "ready": True}
    metadata = json.loads(get(server, "/v2/models/both"))
    assert (metadata["platform"], metadata["versions"]) == ("cascade", [])
    config = json.loads(get(server, "/v2/models/both/config"))
    assert config["parameters"] == {"cascade": {"string_value": "m,base"}}
    done = json.loads(get(server, "/v2/models/both/stats"))["model_stats"]
    assert [(one["name"], one["version"]) for one in done] == [
        ("base", "7"), ("m", "1"), ("m", "2"),
    ]  # fmt: skip
    assert status_of(server, "/v2/models/both/versions/1") == 404
    assert status_of(server, "/v2/models/none") == 404


def test_the_report_says_what_runs_a_model(client):
    reports = {(one["name"], one["version"]): one for one in client.models()}
    assert (reports["m", "1"]["engine_type"], reports["m", "1"]["precision"]) == ("instant", "fp32")
    assert reports["both", ""]["cascade"] == ["m", "base"]


def test_figures_are_a_versions_own(server, client):
    for asked in ({"model": "m", "version": 2}, {"model": "m"}, {"model": "both"}):
        client.ask(**ASK, **asked)
    text = get(server, "/metrics")
    for line in ('nv_inference_request_success{model="m",version="2"}',
                 'qa_model_traffic{model="m",version="1"} 1.0',
                 'qa_model_ready{model="base",version="7"} 1',
                 'qa_shadow_seen_total{model="m",version="2"}',
                 'qa_cascade_requests_total{route="both",models_asked="1"}'):  # fmt: skip
        assert line in text
    assert client.stats()["shadows"][0]["version"] == 2
    assert {one["version"]: one["labels"] for one in client.models() if one["name"] == "m"} == {
        "1": ["stable"], "2": ["canary"],
    }  # fmt: skip


def test_the_terminal_shows_what_there_is_and_asks_it(server):
    command = [sys.executable, str(ROOT / "client.py"), "--port", str(server.port)]
    shown = subprocess.run([*command, "--models"], capture_output=True, text=True, check=True)
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert [row[:3] for row in rows[1:4]] == [
        ["base", "7", "READY"], ["m", "1", "READY"], ["m", "2", "READY"],
    ]  # fmt: skip
    assert shown.stdout.splitlines()[4:] == [
        "route default: m; READY", "route both: m then base; READY",
    ]  # fmt: skip
    question = ("--question", ASK["question"], "--text", ASK["text"], "--json")
    asked = (*question, "--model", "m", "--model_version", "canary")
    answered = subprocess.run([*command, *asked], capture_output=True, text=True, check=True)
    assert json.loads(answered.stdout)["version"] == 2


class TestCommands:
    """Loading and unloading by request."""

    @pytest.fixture
    def guarded(self, tmp_path):
        tokens = tmp_path / "tokens"
        tokens.write_text(f"{ADMIN} admin name=operator\n{OTHER}\n")
        tokens.chmod(0o600)
        file = ModelFile(tmp_path)
        file.write("versions = [1]")
        with running_server(file.model, *file.flags("--auth_token_file", str(tokens))) as running:
            yield running

    def connect(self, server, token):
        sock = server.connect()
        sock.sendall(frame({"type": "auth", "token": token}))
        assert receive(sock)["auth"] == "ok"
        return sock

    def test_in_frames(self, guarded):
        with self.connect(guarded, ADMIN) as sock:
            sock.sendall(frame({"id": 1, "type": "unload", "model": "m"}))
            assert receive(sock) == {"id": 1, "unload": {"model": "m"}}
            sock.sendall(frame({"id": 2, **ASK}))
            error = receive(sock)["error"]
            assert error["code"] == "unknown_model"
            assert error["message"] == "there is no model m; no model is loaded"
            sock.sendall(frame({"id": 3, "type": "load", "model": "m"}))
            assert receive(sock) == {"id": 3, "load": {"model": "m"}}
            give_up_s = time.monotonic() + 20
            answered = {"error": {}}
            while "error" in answered and time.monotonic() < give_up_s:
                sock.sendall(frame({"id": 4, **ASK}))
                answered = receive(sock)
            assert answered["version"] == 1
            sock.sendall(frame({"id": 5, "type": "load", "model": "x"}))
            assert receive(sock)["error"]["message"] == "there is no model x; there is m"

    def test_over_http(self, guarded):
        path = "/v2/repository/models/m/unload"
        assert post(guarded, path, token=OTHER)[0] == 403
        assert post(guarded, path, token=ADMIN) == (200, {})
        assert post(guarded, "/v2/repository/models/m/load", token=ADMIN) == (200, {})

    def test_they_take_the_right(self, guarded):
        with self.connect(guarded, OTHER) as sock:
            sock.sendall(frame({"id": 1, "type": "unload", "model": "m"}))
            assert receive(sock)["error"]["code"] == "forbidden"
            sock.sendall(frame({"id": 2, **ASK}))
            assert receive(sock)["version"] == 1


def test_equal_answers_are_kept_for_each_version(tmp_path):
    file = ModelFile(tmp_path)
    file.write('versions = "all"')
    with running_server(file.model, *file.flags("--cache_bytes", "1000000")) as server:
        for version in (1, 2):
            first, second = (server.ask(**ASK, version=version) for _ in range(2))
            assert (first.get("cached"), second["cached"]) == (None, True)
            assert (first["version"], second["version"]) == (version, version)


def test_the_one_model_of_flags_is_one_as_ever(builtin_model):
    flags = ("--inference_engine_type", "instant", "--num_inference_sessions", "1")
    with running_server(builtin_model, *flags) as server:
        assert states(server) == {"builtin/1": "READY"}
        assert count_versions(server, 60) == {1: 60}
        assert server.ask(**ASK, model="builtin", version=1)["answer"] == "Ada"
