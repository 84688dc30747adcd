"""Passages in an OpenSearch cluster, for collections that outgrow one machine.

Each document of the index is a passage, with the fields of `_Source`. A search waits for the
network, so it never runs in the loop.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from qa_service.errors import SetupError, UnavailableError, hide_password
from qa_service.installation import load
from qa_service.logs import printable
from qa_service.retrieval.filters import PATH, day_of
from qa_service.retrieval.search_messages import FoundPassage, WordCounts, distinct
from qa_service.wire.messages import Bounds, Condition, Filter, Passage

if TYPE_CHECKING:
    import opensearchpy

MAX_QUESTION_CHARS = 1000
"""Words of a question that are searched for: clusters refuse queries of very many words."""

SEARCH_TIMEOUT_S = 5.0
"""For so long a cluster that does not answer holds a thread."""
PROBE_TIMEOUT_S = 1.0
"""So that searches, which wait meanwhile, hardly wait."""
MAX_START = 2**53 - 1
"""The largest integer that all clients' JSON has; with the text's length it fits into 64 bits."""
MAX_REASON_CHARS = 300
"""A log line's worth."""
FIELDS = ("title", "heading", "text")
"""Those that are searched."""

logger = logging.getLogger(__name__)


class _Source(msgspec.Struct, frozen=True):
    """A passage as the index has it; the fields are those of `Passage`.

    Attributes:
        document: Without it, the passage's own id is taken.
    """

    text: Annotated[str, msgspec.Meta(min_length=1)]
    document: str = ""
    title: str = ""
    heading: str = ""
    start: Annotated[int, msgspec.Meta(ge=0, le=MAX_START)] = 0
    line: Annotated[int, msgspec.Meta(ge=0, le=MAX_START)] = 0
    page: Annotated[int, msgspec.Meta(ge=0, le=MAX_START)] = 0
    place: str = ""


class _Hit(msgspec.Struct, frozen=True, rename=lambda name: f"_{name}"):
    """A document that matches."""

    id: str | int
    score: float
    source: _Source


class _Parts(msgspec.Struct, frozen=True):
    """How many shards, or clusters, were asked, and how many have answered."""

    total: int = 1
    successful: int = 1
    failed: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all have; a shard without a node is neither successful nor failed."""
        return self.total > 0 and self.successful >= self.total and not self.failed


class _Hits(msgspec.Struct, frozen=True):
    hits: list[Any]


class _Reply(msgspec.Struct, frozen=True, rename={"shards": "_shards", "clusters": "_clusters"}):
    """The reply to a search: https://docs.opensearch.org/latest/api-reference/search-apis/search/."""

    hits: _Hits
    timed_out: bool = False
    shards: _Parts = _Parts()
    clusters: _Parts = _Parts()

    def why_partial(self) -> str:
        """Why hits may be missing; empty if none are."""
        if self.timed_out:
            return "its search timed out"
        for name, parts in (("shards", self.shards), ("clusters", self.clusters)):
            if not parts.is_whole:
                return f"{parts.successful} of {parts.total} {name} have answered"
        return ""


class OpenSearchIndex:
    """An open index over `http://host:9200/index`, which may hold a user and a password.

    `search` may be called by any number of threads at once.

    Attributes:
        identity: Of what is searched: a cluster's index changes without a sign.
        fault: Why the last search failed; empty if it did not, or there was none.
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
        self._shown = hide_password(url)
        self._index = parts.path.strip("/") if is_one else ""
        if not is_one or "/" in self._index:
            raise SetupError(f"{self._shown} is not http[s]://HOST:PORT/INDEX")
        if not self._index:
            raise SetupError(f"{self._shown} names no index: http[s]://HOST:PORT/INDEX")
        package = load("opensearchpy", "this collection needs", "opensearch-py", "opensearch")
        self._client: opensearchpy.OpenSearch = package.OpenSearch(
            hosts=[urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))],
            http_auth=(unquote(parts.username), unquote(parts.password or ""))
            if parts.username
            else None,
            max_retries=0,
        )
        self.identity, self.fault = url, ""
        self._is_known = False
        self._lock = threading.Lock()
        self._left_out = 0
        self._names_left_out = True

    def search(
        self,
        question: str,
        max_passages: int,
        wanted: Filter | None = None,
        counts: WordCounts | None = None,
    ) -> list[FoundPassage]:
        """As of `Collection`; a document that is no passage is left out.

        Raises:
            UnavailableError: The cluster does not answer, not from all shards, or not with
                passages.
        """
        fields = [*_Source.__struct_fields__]
        match = {"query": question[:MAX_QUESTION_CHARS], "fields": FIELDS, "type": "most_fields"}
        query: dict[str, Any] = {"multi_match": match}
        if wanted:
            clauses = [
                clause
                for name, condition in wanted.items()
                for clause in _clauses_of("document" if name == PATH else name, condition)
            ]
            query = {"bool": {"must": query, "filter": clauses}}
        body = {"size": max_passages, "_source": fields, "query": query}
        hits = self._ask(body, SEARCH_TIMEOUT_S)
        found = [passage for hit in hits if (passage := self._passage(hit))]
        if hits and not found:
            raise self._failed("none of the documents found is a passage")
        return distinct(found, max_passages)

    def count_words(self, question: str) -> WordCounts:
        """Nothing: a cluster weighs words by its own counts."""
        return WordCounts(0, {})

    def refreshed(self) -> OpenSearchIndex:
        """This one, after the cluster was asked whether it answers, unless it did so at last.

        What is wrong then is in `fault`, and nothing is raised.
        """
        if self.fault or not self._is_known:
            with suppress(UnavailableError):
                self._ask({"size": 0}, PROBE_TIMEOUT_S)
        return self

    def take_left_out(self) -> int:
        """How many documents were left out since the last call, as they are no passages."""
        with self._lock:
            taken, self._left_out = self._left_out, 0
        return taken

    def _ask(self, body: dict[str, Any], timeout_s: float) -> list[Any]:
        """The hits of a search that all shards have answered."""
        try:
            found: Any = self._client.search(
                index=self._index,
                body=body,
                params={"allow_partial_search_results": "false", "request_timeout": timeout_s},
            )
            reply = msgspec.convert(found, _Reply)
        except msgspec.ValidationError as error:
            raise self._failed(f"its reply is none of a search: {error}") from error
        except Exception as error:  # its client raises what HTTP, JSON and UTF-8 do, too
            raise self._failed(_reason(error)) from error
        if why := reply.why_partial():
            raise self._failed(why)
        self.fault, self._is_known = "", True
        return reply.hits.hits

    def _failed(self, why: str) -> UnavailableError:
        self.fault, self._is_known = f"{self._shown}: {why}", True
        return UnavailableError(self.fault)

    def _passage(self, hit: object) -> FoundPassage | None:
        try:
            return _passage(hit)
        except ValueError as error:
            with self._lock:
                self._left_out += 1
                is_first, self._names_left_out = self._names_left_out, False
            if is_first:
                name = hit.get("_id") if isinstance(hit, dict) else None
                logger.warning("%s: the document %.300a is left out, as others like it will be: %s",
                               self._shown, name, error)  # fmt: skip
            return None


def _clauses_of(name: str, condition: Condition) -> Iterator[dict[str, Any]]:
    """A filter's condition as the cluster has it: strings are matched whole, as a `keyword`."""
    keyword = f"{name}.keyword"
    if isinstance(condition, Bounds):
        if condition.prefix is not None:
            yield {"prefix": {keyword: condition.prefix}}
        days = {"gte": condition.after and f"{condition.after}||+1d", "lt": condition.before}
        if any(days.values()):
            yield {"range": {name: {sign: day for sign, day in days.items() if day}}}
        return
    values = condition if isinstance(condition, list) else [condition]
    is_text = any(isinstance(value, str) for value in values)
    parts: list[dict[str, Any]] = [{"terms": {keyword if is_text else name: values}}]
    if name == "document":
        folders = [value for value in values if str(value).endswith("/")]
        parts += [{"prefix": {keyword: folder}} for folder in folders]
    elif all(isinstance(value, str) and day_of(value) for value in values):
        parts.append({"terms": {name: values}})  # a cluster makes dates of days: without a keyword
    yield {"bool": {"should": parts, "minimum_should_match": 1}} if len(parts) > 1 else parts[0]


def _passage(hit: object) -> FoundPassage:
    """A hit as a passage.

    Raises:
        ValueError: It is none, or cannot be sent: it has half of a surrogate pair.
    """
    its = msgspec.convert(hit, _Hit)
    if not math.isfinite(its.score):
        raise ValueError(f"its score is {its.score}")
    source = its.source
    name, end = source.document or str(its.id), source.start + len(source.text)
    "".join((name, source.title, source.heading, source.text, source.place)).encode()
    fields = msgspec.structs.asdict(source) | {"document": name, "end": end}
    return FoundPassage(its.score, Passage(**fields))


def _reason(error: Any) -> str:  # noqa: ANN401 - opensearch-py has no types
    """Why a search failed, equal for equal causes: the status, or what the system says."""
    status, kind, detail = (*error.args, "", "", "")[:3]
    if isinstance(status, int):
        words = f"HTTP {status}: {kind}"
    elif isinstance(detail, BaseException):  # whose cause has no addresses of objects
        while before := detail.__cause__ or detail.__context__:
            detail = before
        words = getattr(detail, "strerror", None) or f"{type(detail).__name__}: {detail}"
    else:
        words = f"{type(error).__name__}: {status or kind}"
    return printable(words)[:MAX_REASON_CHARS]
