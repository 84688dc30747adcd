"""The retriever over OpenSearch, against an HTTP server that speaks as a cluster does."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

import pytest

from qa_service.errors import SetupError, UnavailableError
from qa_service.retrieval.open_search import OpenSearchIndex
from qa_service.retrieval.search_messages import FoundPassage
from qa_service.wire.messages import Passage

pytestmark = pytest.mark.skipif(find_spec("opensearchpy") is None, reason="no opensearch-py")

HITS = [
    {
        "_id": "7",
        "_score": 2.5,
        "_source": {"text": "The Nile is long.", "document": "a.md", "title": "Nile", "start": 40},
    },
    {"_id": "8", "_score": 1, "_source": {"text": "🦊 The Rhine."}},
]


WHOLE: Any = {
    "took": 3,
    "timed_out": False,
    "_shards": {"total": 5, "successful": 5, "skipped": 0, "failed": 0},
    "hits": {"total": {"value": 2, "relation": "eq"}, "max_score": 2.5, "hits": HITS},
}


class Cluster:
    """Answers every search with the same reply; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, dict]] = []
        self.status, self.reply = 200, WHOLE
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                cluster.asked.append(
                    (self.path, self.headers.get("Authorization"), json.loads(body))
                )
                reply = cluster.reply
                reply = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(cluster.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def cluster():
    found = Cluster()
    yield found
    found.close()


def test_a_question_becomes_a_search_and_hits_become_passages(cluster):
    index = OpenSearchIndex(f"{cluster.url}/handbook")
    assert index.search("How long is the Nile?", 5) == [
        FoundPassage(2.5, Passage("a.md", "Nile", "", 40, 57, "The Nile is long.")),
        FoundPassage(1.0, Passage("8", "", "", 0, 12, "🦊 The Rhine.")),
    ]
    ((path, authorization, body),) = cluster.asked
    assert path.split("?")[0] == "/handbook/_search"
    assert authorization is None
    assert body["size"] == 5
    assert body["query"]["multi_match"]["query"] == "How long is the Nile?"
    assert index.refreshed() is index


def test_a_copy_of_a_passage_is_left_out(cluster):
    copy = {**HITS[0], "_id": "9", "_source": {"text": "The Nile is long.", "document": "b.md"}}
    cluster.reply = WHOLE | {"hits": WHOLE["hits"] | {"hits": [HITS[0], copy, HITS[1]]}}
    found = OpenSearchIndex(f"{cluster.url}/docs").search("How long?", 3)
    assert [its.passage.document for its in found] == ["a.md", "8"]


def test_the_user_is_sent_to_the_cluster(cluster):
    url = cluster.url.replace("//", "//reader:p%40ss@")
    OpenSearchIndex(f"{url}/handbook").search("?", 1)
    assert cluster.asked[0][1] == "Basic cmVhZGVyOnBAc3M="


@pytest.mark.parametrize(
    ("status", "reply"),
    [
        (503, {"error": "no shard"}),
        (404, {"error": "no such index"}),
        (200, {}),
        (200, {"hits": {"hits": [{"_id": "1", "_score": 1, "_source": {}}]}}),
        (200, {"hits": {"hits": [{"_id": "1", "_score": None, "_source": {"text": "x"}}]}}),
        (200, {"hits": {"hits": None}}),
        (200, []),
        (200, b"\xff"),
        (200, b"[" * 100_000),
    ],
)
def test_a_malformed_reply_is_unavailable(cluster, status, reply):
    cluster.status, cluster.reply = status, reply
    with pytest.raises(UnavailableError):
        OpenSearchIndex(f"{cluster.url}/handbook").search("?", 1)
    assert len(cluster.asked) == 1, "it is not asked again"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"timed_out": True}, "its search timed out"),
        ({"_shards": {"total": 5, "successful": 4, "failed": 1}}, "4 of 5 shards have answered"),
        ({"_shards": {"total": 5, "successful": 4, "failed": 0}}, "4 of 5 shards have answered"),
        ({"_shards": {"total": 5, "successful": 0, "failed": 5}}, "0 of 5 shards have answered"),
        ({"_shards": {"total": 0, "successful": 0, "failed": 0}}, "0 of 0 shards have answered"),
        ({"_clusters": {"total": 2, "successful": 1, "skipped": 1}}, "1 of 2 clusters have"),
    ],
)
@pytest.mark.parametrize("hits", [HITS, []])
def test_a_part_of_an_answer_is_unavailable(cluster, fields, why, hits):
    cluster.reply = {"hits": {"hits": hits}, **fields}
    index = OpenSearchIndex(f"{cluster.url}/handbook")
    with pytest.raises(UnavailableError, match=why):
        index.search("?", 1)
    assert index.fault.startswith(f"{cluster.url}/handbook: {why}")


def test_an_answer_of_all_shards_is_whole(cluster):
    shards = {"total": 5, "successful": 5, "skipped": 3, "failed": 0}
    cluster.reply = {"hits": {"hits": HITS}, "timed_out": False, "_shards": shards}
    assert len(OpenSearchIndex(f"{cluster.url}/handbook").search("?", 2)) == 2
    assert "allow_partial_search_results=false" in cluster.asked[0][0]


@pytest.mark.parametrize(
    ("status", "reply", "fault"),
    [
        (401, b"Unauthorized", "HTTP 401: Unauthorized"),
        (404, {"error": {"type": "index_not_found_exception", "root_cause": []}, "status": 404},
         "HTTP 404: index_not_found_exception"),
        (503, {"error": {"type": "search_phase_execution_exception"}}, "HTTP 503: search_phase"),
        (200, {"hits": []}, "its reply is none of a search"),
    ],
)  # fmt: skip
def test_a_cluster_that_refuses_is_a_fault_until_it_answers(cluster, status, reply, fault):
    index = OpenSearchIndex(cluster.url.replace("//", "//me:secret@") + "/handbook")
    assert index.fault == ""
    whole = cluster.reply
    cluster.status, cluster.reply = status, reply
    index.refreshed()
    assert index.fault.startswith(f"{cluster.url}/handbook: {fault}".replace("//", "//me:***@"))
    cluster.status, cluster.reply = 200, whole
    index.refreshed()
    assert index.fault == ""
    assert [body.get("size") for _, _, body in cluster.asked] == [0, 0]
    index.refreshed()
    assert len(cluster.asked) == 2, "a cluster that answers is not asked without a question"


def test_an_unreachable_cluster_is_unavailable(cluster):
    cluster.close()
    index = OpenSearchIndex(f"{cluster.url}/handbook")
    for _ in range(2):
        with pytest.raises(UnavailableError):
            index.search("?", 1)
        assert index.fault == f"{cluster.url}/handbook: Connection refused"


BAD = {
    "half a surrogate pair": {"text": "The Nile \ud83e is long."},
    "half a pair in its name": {"text": "The Nile is long.", "document": "\udc00.md"},
    "a large start": {"text": "The Nile is long.", "start": 2**70},
    "a negative start": {"text": "The Nile is long.", "start": -5},
    "no title": {"text": "The Nile is long.", "title": None},
    "no text": {"document": "a.md"},
    "an empty text": {"text": ""},
    "text of numbers": {"text": 5},
}


@pytest.mark.parametrize("source", BAD.values(), ids=BAD)
def test_a_document_that_is_no_passage_is_left_out_and_counted(cluster, source, caplog):
    bad = {"_id": "bad", "_score": 3, "_source": source}
    cluster.reply = {"hits": {"hits": [bad, *HITS, bad]}}
    index = OpenSearchIndex(f"{cluster.url}/handbook")
    found = index.search("?", 4)
    assert [its.passage.document for its in found] == ["a.md", "8"]
    assert [index.take_left_out(), index.take_left_out()] == [2, 0]
    index.search("?", 4)
    assert len(caplog.records) == 1, "the first is named"
    assert "'bad'" in caplog.text


@pytest.mark.parametrize(
    "hit",
    [
        None,
        {"_id": "1", "_score": float("nan"), "_source": {"text": "x"}},
        {"_id": "1", "_score": float("inf"), "_source": {"text": "x"}},
        {"_id": "\ud800", "_score": 1, "_source": {"text": "x"}},
    ],
)
def test_a_hit_that_cannot_be_sent_is_left_out(cluster, hit):
    cluster.reply = {"hits": {"hits": [hit, *HITS]}}
    index = OpenSearchIndex(f"{cluster.url}/handbook")
    assert len(index.search("?", 4)) == 2
    assert index.take_left_out() == 1


@pytest.mark.parametrize(
    "url",
    [
        "handbook",
        "ftp://a/b",
        "http://a",
        "http://a/b/c",
        "http:///b",
        "http://a:b/c",
        "http://[a/b",
    ],
)
def test_a_url_that_names_no_index_is_refused(url):
    with pytest.raises(SetupError, match="HOST"):
        OpenSearchIndex(url)


@pytest.mark.parametrize("password", ["secret", "sec/ret", "sec@ret", "sec:ret"])
def test_a_password_is_not_shown(password):
    with pytest.raises(SetupError, match=re.escape("http://me:***@host:9200")) as caught:
        OpenSearchIndex(f"http://me:{password}@host:9200/")
    assert "ret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["me:secret@host/i", "http:me:secret@host/i", "http://me:a\nsecret@h/"]
)
def test_a_password_in_a_malformed_url_is_not_shown(url):
    with pytest.raises(SetupError, match=r":\*\*\*@h") as caught:
        OpenSearchIndex(url)
    assert "secret" not in str(caught.value)


def test_a_passage_has_the_place_that_its_document_says(cluster):
    source = {"text": "The Nile is long.", "line": 7, "page": 3, "place": "page 3"}
    cluster.reply = {"hits": {"hits": [{"_id": "1", "_score": 1.0, "_source": source}]}}
    (found,) = OpenSearchIndex(f"{cluster.url}/handbook").search("?", 1)
    assert (found.passage.line, found.passage.page, found.passage.place) == (7, 3, "page 3")
