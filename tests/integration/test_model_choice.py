"""Several models and versions as their clients see them: in frames, over HTTP, in the terminal."""

import pytest

from harness.frames import ASK, frame, receive
from harness.models import ModelFile, write_version
from harness.process import wait_until
from harness.server import running_server
from qa_service.client import QaClient, QaServerError
from tests.http_calls import bearer, get, post, tensors
from tests.programs import token_flags

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
def test_a_question_goes_to_the_model_it_names(client, asked, answered):
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
def test_unknown_model_names_the_models_that_exist(client, asked, message):
    with pytest.raises(QaServerError) as raised:
        client.ask(**ASK, **asked)
    assert (raised.value.code, raised.value.message) == ("unknown_model", message)


def test_the_paths_of_a_version_are_served_and_unknown_ones_get_404(server):
    inputs = tensors(question=[ASK["question"]], text=[ASK["text"]])
    for path, version in (("m", "1"), ("m/versions/2", "2"), ("m/versions/canary", "2")):
        reply = post(server.port, f"/v2/models/{path}/infer", {"inputs": inputs}).json
        assert (reply["model_name"], reply["model_version"]) == ("m", version)
        assert get(server.port, f"/v2/models/{path}/ready").json["ready"]
    for version in ("9", "01", "%d9%a1", "1" * 5000, "1" * 8000):
        path = f"/v2/models/m/versions/{version}"
        assert post(server.port, f"{path}/infer", {"inputs": inputs}).status == 404
        assert get(server.port, f"{path}/ready").status == 404
    assert sorted(get(server.port, "/v2/models/m").json["versions"]) == ["1", "2"]
    index = post(server.port, "/v2/repository/index", {}).json
    assert {(one["name"], one["version"], one["state"]) for one in index} == {
        ("m", "1", "READY"), ("m", "2", "READY"), ("base", "7", "READY"),
        ("default", "", "READY"), ("both", "", "READY"),
    }  # fmt: skip


def test_the_paths_of_a_route_are_served(server):
    assert get(server.port, "/v2/models/both/ready").json == {"name": "both", "ready": True}
    metadata = get(server.port, "/v2/models/both").json
    assert (metadata["platform"], metadata["versions"]) == ("cascade", [])
    config = get(server.port, "/v2/models/both/config").json
    assert config["parameters"] == {"cascade": {"string_value": "m,base"}}
    done = get(server.port, "/v2/models/both/stats").json["model_stats"]
    assert [(one["name"], one["version"]) for one in done] == [
        ("base", "7"), ("m", "1"), ("m", "2"),
    ]  # fmt: skip
    assert get(server.port, "/v2/models/both/versions/1").status == 404
    assert get(server.port, "/v2/models/none").status == 404


def test_the_report_names_a_models_engine(client):
    reports = {(one["name"], one["version"]): one for one in client.models()}
    assert (reports["m", "1"]["engine_type"], reports["m", "1"]["precision"]) == ("instant", "fp32")
    assert reports["both", ""]["cascade"] == ["m", "base"]


def test_figures_are_counted_for_each_version(server, client):
    for asked in ({"model": "m", "version": 2}, {"model": "m"}, {"model": "both"}):
        client.ask(**ASK, **asked)
    text = get(server.port, "/metrics").body.decode()
    for line in ('nv_inference_request_success{model="m",version="2"}',
                 'qa_model_traffic_share{model="m",version="1"} 1.0',
                 'qa_model_ready{model="base",version="7"} 1',
                 'qa_shadow_seen_total{model="m",version="2"}',
                 'qa_cascade_requests_total{route="both",models_asked="1"}'):  # fmt: skip
        assert line in text
    assert client.stats()["shadows"][0]["version"] == 2
    assert {one["version"]: one["labels"] for one in client.models() if one["name"] == "m"} == {
        "1": ["stable"], "2": ["canary"],
    }  # fmt: skip


class TestCommands:
    """Loading and unloading by request."""

    @pytest.fixture
    def guarded(self, tmp_path):
        tokens = token_flags(tmp_path, f"{ADMIN} admin name=operator", OTHER)
        file = ModelFile(tmp_path)
        file.write("versions = [1]")
        with running_server(file.model, *file.flags(*tokens)) as running:
            yield running

    def connect(self, server, token):
        sock = server.connect()
        sock.sendall(frame({"type": "auth", "token": token}))
        assert receive(sock)["auth"] == "ok"
        return sock

    def test_commands_in_frames_load_and_unload(self, guarded):
        with self.connect(guarded, ADMIN) as sock:
            sock.sendall(frame({"id": 1, "type": "unload", "model": "m"}))
            assert receive(sock) == {"id": 1, "unload": {"model": "m"}}
            sock.sendall(frame({"id": 2, **ASK}))
            error = receive(sock)["error"]
            assert error["code"] == "unknown_model"
            assert error["message"] == "there is no model m; no model is loaded"
            sock.sendall(frame({"id": 3, "type": "load", "model": "m"}))
            assert receive(sock) == {"id": 3, "load": {"model": "m"}}

            def ask():
                sock.sendall(frame({"id": 4, **ASK}))
                return receive(sock)

            assert wait_until(ask, lambda reply: "answer" in reply)["version"] == 1
            sock.sendall(frame({"id": 5, "type": "load", "model": "x"}))
            assert receive(sock)["error"]["message"] == "there is no model x; there is m"

    def test_commands_over_http_load_and_unload(self, guarded):
        path = "/v2/repository/models/m"
        assert post(guarded.port, f"{path}/unload", {}, bearer(OTHER)).status == 403
        for command in ("unload", "load"):
            reply = post(guarded.port, f"{path}/{command}", {}, bearer(ADMIN))
            assert (reply.status, reply.json) == (200, {})

    def test_commands_without_the_right_are_refused(self, guarded):
        with self.connect(guarded, OTHER) as sock:
            sock.sendall(frame({"id": 1, "type": "unload", "model": "m"}))
            assert receive(sock)["error"]["code"] == "forbidden"
            sock.sendall(frame({"id": 2, **ASK}))
            assert receive(sock)["version"] == 1
