"""A question may be about a part of a collection: real indexes, with embeddings and without."""

import json
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from harness.collections import run_index, write_documents
from qa_service.errors import InvalidRequestError
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.encoder_folder import SharedEncoder
from qa_service.retrieval.formats.front_matter import front_fields
from qa_service.retrieval.open_search import OpenSearchIndex
from qa_service.wire.json_codec import parse_request
from qa_service.wire.messages import Filter, RejectedError
from tests.unit.retrieval.test_open_search import Cluster

pytestmark = pytest.mark.usefixtures("reads_here")

TRAVEL = """---
title: Travel policy
date: 2026-03-01
tags: [travel, "money, and more"]
owner: Ada  # of the board
---
A flight is approved by the head.
"""
LEAVE = """+++
date = 2025-06-30
tags = ["leave"]
draft = true
+++
A flight of stairs is approved by nobody.
"""
TICKETS = [
    {"id": 1, "text": "A flight was late.", "priority": 2, "day": "2026-01-31T10:00:00Z"},
    {"id": 2, "text": "A flight was early.", "priority": 3.0, "open": True, "no": {"a": 1}},
]
FILES = {
    "policies/2026/travel.md": TRAVEL,
    "policies/2025/leave.md": LEAVE,
    "policies/2026.md": "A flight is nothing new.",
    "tickets.jsonl": "\n".join(map(json.dumps, TICKETS)),
}


def index(folder: Path, output: Path, encoder: Path | None = None) -> Collection:
    run_index(write_documents(folder, FILES), output, embeddings=bool(encoder), encoder=encoder)
    return Collection(output, SharedEncoder(encoder))


@pytest.fixture(scope="module", params=["words", "embeddings"])
def collection(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("filters")
    encoder = request.getfixturevalue("encoder") if request.param == "embeddings" else None
    return index(folder / "docs", folder / "out", encoder)


def found(collection: Collection, wanted: Filter | dict | None) -> list[str]:
    wanted = msgspec.convert(wanted, Filter | None)
    hits = collection.search("Who approves a flight?", 20, wanted)
    return sorted(hit.passage.document for hit in hits)


TRAVEL_FILE, LEAVE_FILE, OTHER_FILE, *_ = FILES
LATE, EARLY = "tickets.jsonl#1", "tickets.jsonl#2"
ALL = [LEAVE_FILE, OTHER_FILE, TRAVEL_FILE, LATE, EARLY]


@pytest.mark.parametrize(
    ("wanted", "documents"),
    [
        (None, ALL),
        ({"path": "policies/2026/"}, [TRAVEL_FILE]),
        ({"path": {"prefix": "policies/2026"}}, [OTHER_FILE, TRAVEL_FILE]),
        ({"path": "policies"}, []),
        ({"path": "tickets.jsonl"}, [LATE, EARLY]),
        ({"path": "tickets.jsonl#2"}, [EARLY]),
        ({"path": ["policies/2025/", LATE]}, [LEAVE_FILE, LATE]),
        ({"title": "Travel policy"}, [TRAVEL_FILE]),
        ({"title": "travel policy"}, []),
        ({"title": {"prefix": "Trav"}}, [TRAVEL_FILE]),
        ({"tags": "leave"}, [LEAVE_FILE]),
        ({"tags": ["leave", "money, and more"]}, [LEAVE_FILE, TRAVEL_FILE]),
        ({"owner": "Ada", "path": "policies/"}, [TRAVEL_FILE]),
        ({"owner": "Ada", "path": "policies/2025/"}, []),
        ({"draft": True}, [LEAVE_FILE]),
        ({"priority": 3}, [EARLY]),
        ({"priority": [2, 3]}, [LATE, EARLY]),
        ({"open": True}, [EARLY]),
        ({"date": {"after": "2025-06-30"}}, [TRAVEL_FILE]),
        ({"date": {"before": "2026-03-01"}}, [LEAVE_FILE]),
        ({"date": {"after": "2025-06-29", "before": "2025-07-01"}}, [LEAVE_FILE]),
        ({"day": {"after": "2026-01-30"}}, [LATE]),
        ({"day": {"after": "2026-01-31"}}, []),
    ],
)
def test_only_the_documents_that_are_wanted_are_found(collection, wanted, documents):
    assert found(collection, wanted) == documents


def test_a_filter_changes_which_passages_are_found_and_not_their_scores(collection):
    question = "Who approves a flight?"
    all_of_them = {hit.passage.document: hit for hit in collection.search(question, 20)}
    for hit in collection.search(question, 20, {"path": ["policies/", LATE]}):
        assert hit == all_of_them[hit.passage.document]


@pytest.mark.parametrize("name", ["departmnet", "id", "text", "no", "path\0policies"])
def test_a_field_that_no_document_has_is_named_with_those_that_there_are(collection, name):
    with pytest.raises(InvalidRequestError, match=r"no document .* has the field") as error:
        collection.search("?", 5, {name: "x"})
    assert str(error.value).endswith(
        "there are: date, day, draft, open, owner, path, priority, tags, title"
    )


def test_front_matter_has_values_and_lists():
    yaml = (
        "---\nauthor: 'O''Neil'\ntags:\n  - one\n  - \"two\"\nmap:\n  inner: 1\nempty:\n---\nText."
    )
    assert front_fields(yaml) == {"author": ("O'Neil",), "tags": ("one", "two")}
    assert front_fields("+++\nbroken = \n+++\n") == front_fields("Text.") == {}
    many = "".join(f"f{n}: {n}\n" for n in range(100))
    assert len(front_fields(f"---\n{many}---\n")) == 64


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({}, "length >= 1"),
        ("policies/", "object"),
        ({"path": None}, "null"),
        ({"date": {}}, "`date` needs `prefix`, `after` or `before`"),
        ({"date": {"after": "yesterday"}}, "regex"),
        ({"date": {"after": "2026-02-30"}}, "there is no day 2026-02-30"),
        ({"date": {"since": "2026-02-03"}}, "since"),
        ({"a": ["x"] * 101}, "length <= 100"),
        ({f"f{n}": 1 for n in range(17)}, "length <= 16"),
    ],
)
def test_a_bad_filter_is_an_invalid_request(wanted, why):
    body = json.dumps({"question": "Who?", "collection": "a", "filter": wanted}).encode()
    with pytest.raises(RejectedError, match=why) as rejected:
        parse_request(body)
    assert rejected.value.error.code == "invalid_request"


def test_a_filter_is_for_a_collection():
    body = json.dumps({"question": "Who?", "text": "Ada.", "filter": {"path": "a"}}).encode()
    with pytest.raises(RejectedError, match="`filter` is for a `collection`"):
        parse_request(body)


def either(*clauses: dict) -> list[dict]:
    return [{"bool": {"should": [*clauses], "minimum_should_match": 1}}]


@pytest.mark.parametrize(
    ("wanted", "clauses"),
    [
        ({"owner": "Ada"}, [{"terms": {"owner.keyword": ["Ada"]}}]),
        ({"priority": [2, 3]}, [{"terms": {"priority": [2, 3]}}]),
        ({"title": {"prefix": "Tr"}}, [{"prefix": {"title.keyword": "Tr"}}]),
        (
            {"date": {"after": "2026-01-30", "before": "2026-02-03"}},
            [{"range": {"date": {"gte": "2026-01-30||+1d", "lt": "2026-02-03"}}}],
        ),
        ({"date": "2026-01-30"}, either({"terms": {"date.keyword": ["2026-01-30"]}},
                                        {"terms": {"date": ["2026-01-30"]}})),
        ({"path": ["a/", "b.md"]}, either({"terms": {"document.keyword": ["a/", "b.md"]}},
                                          {"prefix": {"document.keyword": "a/"}})),
    ],
)  # fmt: skip
def test_a_cluster_is_asked_for_the_documents_that_are_wanted(wanted, clauses):
    pytest.importorskip("opensearchpy")
    with closing(Cluster()) as cluster:
        wanted = msgspec.convert(wanted, Filter)
        OpenSearchIndex(f"{cluster.url}/handbook").search("Who?", 5, wanted)
        ((*_, body),) = cluster.asked
    assert body["query"]["bool"]["filter"] == clauses
    assert body["query"]["bool"]["must"]["multi_match"]["query"] == "Who?"
