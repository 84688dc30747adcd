"""Parts of collections, and the places of their answers: a real server, model and indexes."""

from __future__ import annotations

import json

import pytest

from harness.collections import index
from harness.server import EXACT_ENGINE, running_server
from qa_service.client import QaClient
from tests.http_calls import post
from tests.programs import run_python
from tests.unit.retrieval.formats.pdf_files import pdf_file

PAGES = ("Charles Babbage designed the engine.", "Ada Lovelace wrote the notes in 1843.")
LOOMS = {
    "1804/notes.md": "Joseph Jacquard wrote the notes on the loom.",
    "1843/notes.md": "Luigi Menabrea wrote the notes on the loom.",
}
QUESTION = "Who wrote the notes?"


@pytest.fixture(scope="module")
def server(builtin_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    (folder / "docs").mkdir()
    (folder / "docs" / "engine.pdf").write_bytes(pdf_file(*PAGES))
    index(folder / "docs", folder / "all" / "machines")
    for name, words in LOOMS.items():
        (folder / "looms" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "looms" / name).write_text(f"---\ndate: {name[:4]}-05-01\n---\n{words}\n")
    index(folder / "looms", folder / "all" / "looms")
    flags = ("--collections_dir", str(folder / "all"), *EXACT_ENGINE)
    with running_server(builtin_model, *flags) as running:
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
    inputs = [
        {"name": name, "shape": [1], "datatype": "BYTES", "data": [value]}
        for name, value in asked.items()
    ]
    body = {"inputs": inputs, "outputs": [{"name": "page"}, {"name": "place"}]}
    outputs = post(server.port, "/v2/models/builtin/infer", body).json["outputs"]
    assert [output["data"] for output in outputs] == [[2], ["page 2"]]


def test_the_terminals_client_shows_the_page(server):
    flags = ("--port", server.port, "--collection", "machines", "--question", QUESTION)
    ended = run_python("client.py", *map(str, flags))
    assert ended.stdout == "Ada Lovelace\n"
    assert "engine.pdf, page 2, character " in ended.stderr


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
    asked = {"question": QUESTION, "collection": "looms"}
    for reply in (
        server.ask(**asked, filter=wanted),
        post(server.port, "/qa", {**asked, "filter": wanted}).json,
    ):
        assert (reply["answer"], len(reply.get("places", [1]))) == (answer, 1)
    row = post(
        server.port, "/v1/models/builtin:predict", {"instances": [asked | {"filter": wanted}]}
    )
    assert row.json["predictions"][0]["answer"] == answer
    inputs = [
        {"name": name, "shape": [1], "datatype": "BYTES", "data": [value]}
        for name, value in asked.items()
    ]
    body = {"inputs": inputs, "parameters": {"filter": json.dumps(wanted)}}
    outputs = post(server.port, "/v2/models/builtin/infer", body).json["outputs"]
    assert outputs[0]["data"] == [answer]
    flags = ("--collection", "looms", "--question", QUESTION, "--filter", json.dumps(wanted))
    ended = run_python("client.py", "--port", server.port, *flags)
    assert ended.stdout == f"{answer}\n"


def test_a_field_that_is_not_there_is_an_error_that_names_those_that_are(server):
    reply = server.ask(question=QUESTION, collection="looms", filter={"dtae": "1804-05-01"})
    assert reply["error"] == {
        "code": "invalid_request",
        "message": "no document of the collection has the field `dtae` of `filter`; there are: "
        "date, path, title",
        "retryable": False,
    }
    body = {"question": QUESTION, "collection": "looms", "filter": {"path": {}}}
    assert post(server.port, "/qa", body).status == 400


def test_the_terminals_client_takes_a_name_and_a_value(server):
    flags = ("--port", server.port, "--collection", "looms", "--question", QUESTION)
    ended = run_python("client.py", *flags, "--filter", "path=1843/")
    assert ended.stdout == "Luigi Menabrea\n"
    assert "neither NAME=VALUE nor JSON" in run_python("client.py", *flags, "--filter", "x").stderr
