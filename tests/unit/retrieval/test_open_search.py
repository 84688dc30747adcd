"""The retriever over OpenSearch, against an HTTP server that speaks as a cluster does."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from qa_service.errors import SetupError, UnavailableError
from qa_service.retrieval.open_search import OpenSearchIndex
from qa_service.retrieval.retriever import FoundPassage
from qa_service.wire.messages import Passage

pytest.importorskip("opensearchpy")

HITS = [
    {
        "_id": "7",
        "_score": 2.5,
        "_source": {"text": "The Nile is long.", "document": "a.md", "title": "Nile", "start": 40},
    },
    {"_id": "8", "_score": 1, "_source": {"text": "🦊 The Rhine."}},
]


class Cluster:
    """Answers every search with the same reply; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, dict]] = []
        self.status, self.reply = 200, {"hits": {"hits": HITS}}
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                cluster.asked.append(
                    (self.path, self.headers.get("Authorization"), json.loads(body))
                )
                reply = json.dumps(cluster.reply).encode()
                self.send_response(cluster.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
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
    assert not index.refresh()


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
    ],
)
def test_a_malformed_reply_is_unavailable(cluster, status, reply):
    cluster.status, cluster.reply = status, reply
    with pytest.raises(UnavailableError):
        OpenSearchIndex(f"{cluster.url}/handbook").search("?", 1)
    assert len(cluster.asked) == 1, "it is not asked again"


def test_an_unreachable_cluster_is_unavailable(cluster):
    cluster.server.server_close()
    with pytest.raises(UnavailableError):
        OpenSearchIndex(f"{cluster.url}/handbook").search("?", 1)


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
