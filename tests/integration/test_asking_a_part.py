"""Parts of collections, and the places of their answers: a real server, model and indexes."""

from __future__ import annotations

import pytest

from harness.collections import index
from harness.server import EXACT_ENGINE, running_server
from qa_service.client import QaClient
from tests.http_calls import post
from tests.programs import run_python
from tests.unit.retrieval.formats.pdf_files import pdf_file

PAGES = ("Charles Babbage designed the engine.", "Ada Lovelace wrote the notes in 1843.")
QUESTION = "Who wrote the notes?"


@pytest.fixture(scope="module")
def server(builtin_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    (folder / "docs").mkdir()
    (folder / "docs" / "engine.pdf").write_bytes(pdf_file(*PAGES))
    index(folder / "docs", folder / "all" / "machines")
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
