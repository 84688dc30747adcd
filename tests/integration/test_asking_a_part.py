"""Parts of collections, and the places of their answers: a real server, model and indexes."""

import json
import os
import re

import pytest

from harness.collections import index
from harness.models import make_manifest
from harness.server import INSTANT, ONE_INSTANCE, running_server
from qa_service.client import QaClient, QaServerError
from qa_service.instance.model_folder.manifest import save_manifest
from tests.http_calls import get, post, tensors
from tests.programs import run_python, token_flags
from tests.unit.retrieval.formats.pdf_files import pdf_file

PAGES = ("Charles Babbage designed the engine.", "Ada Lovelace wrote the notes in 1843.")
LOOMS = {
    "1804/notes.md": "Joseph Jacquard wrote the notes on the loom.",
    "1843/notes.md": "Luigi Menabrea wrote the notes on the loom.",
}
QUESTION = "Who wrote the notes?"


@pytest.fixture(scope="module")
def collections(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    (folder / "docs").mkdir()
    (folder / "docs" / "engine.pdf").write_bytes(pdf_file(*PAGES))
    index(folder / "docs", folder / "all" / "machines")
    for name, words in LOOMS.items():
        (folder / "looms" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "looms" / name).write_text(f"---\ndate: {name[:4]}-05-01\n---\n{words}\n")
    index(folder / "looms", folder / "all" / "looms")
    return folder / "all"


@pytest.fixture(scope="module")
def server(quick_model, collections):
    flags = ("--collections_dir", str(collections), *ONE_INSTANCE)
    with running_server(quick_model, *flags) as running:
        yield running


def test_an_answer_has_its_page_in_every_protocol(server):
    asked = {"question": QUESTION, "collection": "machines"}
    reply = server.ask(**asked, passages=1)
    assert (reply["answer"], reply["passage"]["page"]) == ("Ada Lovelace", 2)
    assert reply["passage"]["place"] == "page 2"
    assert reply["passages"][0]["place"] == "page 1", "where the passage begins"
    with QaClient("localhost", server.port) as client:
        passage = client.ask(QUESTION, collection="machines").passage
    assert passage is not None
    assert (passage.page, passage.place) == (2, "page 2")
    row = post(server.port, "/v1/models/builtin:predict", {"instances": [asked]})
    assert (row.json["predictions"][0]["page"], row.json["predictions"][0]["place"]) == (
        2,
        "page 2",
    )
    inputs = tensors(**{name: [value] for name, value in asked.items()})
    body = {"inputs": inputs, "outputs": [{"name": "page"}, {"name": "place"}]}
    outputs = post(server.port, "/v2/models/builtin/infer", body).json["outputs"]
    assert [output["data"] for output in outputs] == [[2], ["page 2"]]


def test_without_an_answer_the_best_places_are_there_as_not_sure_enough(server):
    question = "How many euros does the engine cost?"
    reply = server.ask(question=question, collection="machines")
    assert (reply["answer"], "answers" in reply) == ("", False)
    assert 1 <= len(reply["unsure"]) <= 5
    for one in reply["unsure"]:
        assert one["score"] < reply["score"]
        assert one["passage"]["document"] == "engine.pdf"
    flags = ("--port", server.port, "--collection", "machines", "--question", question)
    ended = run_python("client.py", *map(str, flags))
    assert ended.returncode == 1
    assert f"{reply['unsure'][0]['answer']}\n" in ended.stderr.partition("not sure enough:")[2]


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        ({"path": "1804/"}, "Joseph Jacquard"),
        ({"path": "1843/"}, "Luigi Menabrea"),
        ({"date": {"before": "1805-01-01"}}, "Joseph Jacquard"),
        ({"date": {"after": "1805-01-01"}}, "Luigi Menabrea"),
    ],
)
def test_a_filter_chooses_the_documents_in_every_protocol(server, wanted, answer):
    replies, found = in_every_protocol(server, QUESTION, "looms", filter=wanted)
    assert found == [answer] * 5
    assert [len(reply.get("places", [1])) for reply in replies] == [1, 1]


def in_every_protocol(server, question, collection, **options):
    """The replies of frames and of `POST /qa`, and the answers of these and three others."""
    asked = {"question": question, "collection": collection}
    replies = server.ask(**asked, **options), post(server.port, "/qa", asked | options).json
    rows = {"instances": [asked | options]}
    row = post(server.port, "/v1/models/builtin:predict", rows).json["predictions"][0]
    inputs = tensors(**{name: [value] for name, value in asked.items()})
    words = {name: json.dumps(value) for name, value in options.items()}
    body = {"inputs": inputs, "parameters": words}
    outputs = post(server.port, "/v2/models/builtin/infer", body).json["outputs"]
    flags = [word for name, value in (asked | words).items() for word in (f"--{name}", value)]
    ended = run_python("client.py", "--port", server.port, *flags)
    answers = [reply["answer"] for reply in (*replies, row)]
    return replies, [*answers, outputs[0]["data"][0], ended.stdout.strip()]


def test_the_terminals_client_takes_a_name_and_a_value(server):
    flags = ("--port", server.port, "--collection", "looms", "--question", QUESTION)
    ended = run_python("client.py", *flags, "--filter", "path=1843/")
    assert ended.stdout == "Luigi Menabrea\n"
    assert "neither NAME=VALUE nor JSON" in run_python("client.py", *flags, "--filter", "x").stderr


@pytest.mark.parametrize("collection", [["machines", "looms"], "looms,machines", "*"])
def test_several_collections_are_asked_as_one(server, collection):
    for question, its, answers in (
        ("Who wrote the notes in 1843?", "machines", {"Ada Lovelace"}),
        ("Who wrote the notes on the loom?", "looms", {"Joseph Jacquard", "Luigi Menabrea"}),
    ):
        reply = server.ask(question=question, collection=collection, passages=9)
        assert reply["answer"] in answers
        assert reply["passage"]["collection"] == its
        assert {one["collection"] for one in reply["passages"]} == {"machines", "looms"}


def test_several_collections_are_asked_in_every_protocol(server):
    question = "Who designed the engine?"
    _, found = in_every_protocol(server, question, "looms,machines")
    assert found == ["Charles Babbage"] * 5
    reply = post(server.port, "/qa", {"question": question, "collection": ["looms", "machines"]})
    assert reply.json["answer"] == "Charles Babbage"
    flags = ("--question", question, "--collection", "looms,machines")
    ended = run_python("client.py", "--port", server.port, *flags)
    assert "machines: engine.pdf, page 1" in ended.stderr
    error = server.ask(question="Who?", collection=["looms", "books"])["error"]
    assert error["code"] == "unknown_collection"
    error = server.ask(question="Who?", collection=[f"c{n}" for n in range(17)])["error"]
    assert error["message"] == "`collection` names more than 16 collections"


def test_a_collection_is_asked_by_its_tokens_alone(quick_model, collections, tmp_path):
    file = tmp_path / "server.toml"
    file.write_text(
        f'[collections.looms]\npath = "{collections / "looms"}"\ntokens = ["weaver"]\n'
        f'[collections.open]\npath = "{collections / "machines"}"\n[cache]\ncache_bytes = 1048576\n'
    )
    tokens = token_flags(tmp_path, "weaver-0123456789abcdef name=weaver", "miller-0123456789abcdef")
    with running_server(quick_model, "--config", str(file), *tokens, *ONE_INSTANCE) as running:
        found = {}
        for token in ("weaver-0123456789abcdef", "miller-0123456789abcdef"):
            seen = {"looms", "open"} if token.startswith("weaver") else {"open"}
            assert names_seen(running.port, token) == [seen] * 4
            with QaClient("localhost", running.port, token=token) as client:
                both = client.ask(QUESTION, collection="*", passages=9)
                found[token[:6]] = {passage.collection for passage in both.passages}
                if token.startswith("weaver"):
                    assert client.ask(QUESTION, collection="looms").known
                    continue
                with pytest.raises(QaServerError) as refused:
                    client.ask(QUESTION, collection="looms")
                assert refused.value.code == "unknown_collection"
                message = str(refused.value)
                with pytest.raises(QaServerError) as refused:
                    client.ask(QUESTION, collection="loops")
                assert str(refused.value) == message.replace("looms", "loops")
        assert found == {"weaver": {"looms", "open"}, "miller": {""}}
        headers = {"Authorization": "Bearer miller-0123456789abcdef"}
        body = {"question": QUESTION, "collection": "looms"}
        assert post(running.port, "/qa", body, headers).status == 404
        assert (
            "looms" not in post(running.port, "/qa", body, headers).body.decode().partition(";")[2]
        )


def names_seen(port, token):
    """The collections in each report that a client with this token is given."""
    with QaClient("localhost", port, token=token) as client:
        health, stats = client.health().report["collections"], client.stats()["collections"]
    headers = {"Authorization": f"Bearer {token}"}
    metrics = get(port, "/metrics", headers).body.decode()
    labels = set(re.findall(r'collection="([^"]+)"', metrics))
    ended = run_python(
        "client.py", "--port", port, "--models", env={**os.environ, "QA_SERVER_TOKEN": token}
    )
    printed = set(re.findall(r"^collection (\S+)", ended.stdout, re.MULTILINE))
    return [set(health), set(stats), labels, printed]


def test_a_collection_for_tokens_needs_a_server_with_tokens(collections, tmp_path):
    save_manifest(tmp_path, make_manifest("m"))
    (tmp_path / "server.toml").write_text(
        f'[collections.looms]\npath = "{collections / "looms"}"\ntokens = ["weaver"]\n'
    )
    flags = (*INSTANT, "--model", tmp_path, "--config", tmp_path / "server.toml")
    for more in ((), ("--check",)):
        ended = run_python("server.py", "--port", "0", *flags, *more)
        assert ended.returncode == 2
        shown = ended.stdout + ended.stderr
        assert "[collections.looms] tokens: needs --auth_token_file" in shown
