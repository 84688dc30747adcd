"""Passages in an OpenSearch cluster, for collections that outgrow one machine.

Each document of the index is a passage, with the fields of `_Source`. A search waits for the
network, so it never runs in the loop.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from qa_service.errors import SetupError, UnavailableError
from qa_service.installation import install_hint
from qa_service.logs import hide_password
from qa_service.retrieval.retriever import FoundPassage
from qa_service.wire.messages import Passage

if TYPE_CHECKING:
    import opensearchpy

MAX_QUESTION_CHARS = 1000
"""Words of a question that are searched for: clusters refuse queries of very many words."""

SEARCH_TIMEOUT_S = 5  # for so long a cluster that does not answer holds a thread
FIELDS = ("title", "heading", "text")
"""Those that are searched."""


class _Source(msgspec.Struct, frozen=True):
    """A passage as the index has it; the fields are those of `Passage`.

    Attributes:
        document: Without it, the passage's own id is taken.
    """

    text: str
    document: str = ""
    title: str = ""
    heading: str = ""
    start: int = 0


class OpenSearchIndex:
    """A `Retriever` over `http://host:9200/index`, which may hold a user and a password.

    `search` may be called by any number of threads at once.
    """

    def __init__(self, url: str) -> None:
        """Asks the cluster nothing yet.

        Raises:
            SetupError: The URL does not name an index, or opensearch-py is not installed.
        """
        try:
            parts = urlsplit(url)
            is_one = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:  # a malformed address or port
            is_one = False
        self._index = parts.path.strip("/") if is_one else ""
        if not is_one or "/" in self._index:
            raise SetupError(f"{hide_password(url)} is not http[s]://HOST:PORT/INDEX")
        if not self._index:
            raise SetupError(f"{hide_password(url)} names no index: http[s]://HOST:PORT/INDEX")
        package = _load()
        self._errors = package.exceptions.OpenSearchException
        self._client: opensearchpy.OpenSearch = package.OpenSearch(
            hosts=[urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))],
            http_auth=(unquote(parts.username), unquote(parts.password or ""))
            if parts.username
            else None,
            timeout=SEARCH_TIMEOUT_S,
            max_retries=0,
        )

    def search(self, question: str, max_passages: int) -> list[FoundPassage]:
        """The passages that match a question best, the best first.

        Raises:
            UnavailableError: The cluster does not answer, or not with passages.
        """
        fields = [*_Source.__struct_fields__]
        match = {"query": question[:MAX_QUESTION_CHARS], "fields": FIELDS, "type": "most_fields"}
        body = {"size": max_passages, "_source": fields, "query": {"multi_match": match}}
        try:
            reply: Any = self._client.search(index=self._index, body=body)
            return [_passage(hit) for hit in reply["hits"]["hits"]]
        except (self._errors, msgspec.ValidationError, LookupError, TypeError) as error:
            raise UnavailableError("the collection cannot be searched now") from error

    def refresh(self) -> bool:
        """Does nothing: a cluster refreshes itself."""
        return False


def _load() -> ModuleType:
    try:
        return importlib.import_module("opensearchpy")
    except ModuleNotFoundError:
        raise SetupError(
            f"this collection needs the package opensearch-py: {install_hint('opensearch')}"
        ) from None


def _passage(hit: dict[str, Any]) -> FoundPassage:
    source = msgspec.convert(hit["_source"], _Source)
    document = source.document or str(hit["_id"])
    end = source.start + len(source.text)
    its = Passage(document, source.title, source.heading, source.start, end, source.text)
    return FoundPassage(float(hit["_score"]), its)
