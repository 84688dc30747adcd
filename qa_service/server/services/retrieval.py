"""Searches in collections, in separate processes.

    in one       searched ──▶ passages
    in several   words counted in each that is here ──all──▶ searched in each, a word worth the same
                 in all ──all──▶ passages

Each client has its share of each process, however much it asks at once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from qa_service.errors import InvalidRequestError, QaError, UnavailableError, UnknownCollectionError
from qa_service.retrieval.search_messages import (
    BM25_WEIGHT,
    COSINE_WEIGHT,
    Count,
    Counted,
    Found,
    FoundPassage,
    Refused,
    Result,
    Search,
    WordCounts,
    Work,
)
from qa_service.server.scheduling.call import Call
from qa_service.server.services.collection_set import CollectionSet
from qa_service.server.services.served_collection import ServedCollection
from qa_service.server.telemetry.services import ServiceCounts
from qa_service.wire.messages import MAX_PASSAGES, Request

SHORT_PASSAGE_CHARS = 500
"""Where a question does not say how many passages are read, up to twice as many as usual are, while
they have no more characters than this on average: rows of a table are short and much alike."""
MAX_POINTS_BEHIND = 8.0
"""How far behind the best, in points of the search, such a further passage may be."""

OnFound = Callable[[Sequence[FoundPassage] | QaError], None]
Results = Mapping[ServedCollection, Result]


class Retrieval:
    def __init__(self, collections: CollectionSet, counts: ServiceCounts) -> None:
        self.collections = collections
        self._counts = counts

    def edition(self, request: Request) -> str:
        """What the answers depend on besides question and text: a part of the cache's key."""
        collections = [self.collections.get(name) for name in request.collections]
        found = [its for its in collections if its]
        if not found:
            return ""
        editions = ",".join(f"{its.edition}" for its in found)
        max_passages = request.max_passages or f"{_usual(found)}+"
        wanted = msgspec.json.encode(request.filter, order="sorted").decode()
        return f"{editions}/{max_passages}/{request.passages}/{wanted}"

    def search(self, call: Call, on_found: OnFound) -> None:
        """Searches the collections that a request names; `on_found` is called later.

        Raises:
            UnknownCollectionError: No collection has this name.
            QueueFullError: As many searches wait as may.
            UnavailableError: The collection cannot be searched now.
        """
        request = call.request
        collections = []
        for name in request.collections:
            if (its := self.collections.get(name)) is None:
                raise UnknownCollectionError(f"there is no collection {name}")
            if its.state == "UNAVAILABLE":
                raise _unavailable(its)
            collections.append(its)
        wanted, usual = request.max_passages, _usual(collections)
        on_results = partial(self._on_searched, on_found, wanted or usual)
        search = partial(
            Search, question=request.question, max_passages=wanted or min(2 * usual, MAX_PASSAGES),
            wanted=request.filter,
        )  # fmt: skip
        if len(collections) == 1:
            [its] = collections
            its.searches.submit(call, search(its.name), lambda result: on_results({its: result}))
            return

        def on_counted(results: Results) -> None:
            refused = {its: it for its, it in results.items() if isinstance(it, Refused)}
            if refused:
                on_results(refused)
                return
            counts = _summed([it for it in results.values() if isinstance(it, Counted)])
            _each(call, {its: search(its.name, counts=counts) for its in collections}, on_results)

        here = [its for its in collections if not its.is_remote]
        _each(call, {its: Count(its.name, request.question) for its in here}, on_counted)

    def _on_searched(self, on_found: OnFound, usual: int, results: Results) -> None:
        found = {its: self._noted(its, result) for its, result in results.items()}
        errors = [one for one in found.values() if isinstance(one, QaError)]
        # There are several cases: a field of the filter may be unknown in some collections; any
        # other error is the question's.
        unknown = [error for error in errors if isinstance(error, InvalidRequestError)]
        if len(unknown) < len(errors) or len(unknown) == len(found):
            on_found(next((error for error in errors if error not in unknown), errors[0]))
            return
        hits = {its.name: one for its, one in found.items() if not isinstance(one, QaError)}
        if len(results) > 1:
            passages = _to_be_read(joined(hits), usual)
            read = Counter(its.passage.collection for its in passages)
        else:
            [(name, alone)] = hits.items()
            passages = _to_be_read(alone, usual)
            read = Counter({name: len(passages)})
        for name, number in read.items():
            if counts := self._counts.collections.get(name):
                counts.passages_total += number
        on_found(passages)

    def _noted(self, served: ServedCollection, result: Result) -> Sequence[FoundPassage] | QaError:
        """Counts a search, and takes note of its fault; what it has found."""
        if isinstance(result, Found):
            served.note_success()
            if counts := self._counts.collections.get(served.name):
                counts.search_ms.observe(result.took_ms)
                counts.left_out_total += result.left_out
            return result.passages
        assert isinstance(result, Refused)
        if result.kind == "request":
            return InvalidRequestError(result.reason)
        if result.kind == "unavailable":
            self.collections.note_unavailable(served, result.reason)
        elif served.state != "UNAVAILABLE":  # else it waited while it could not be opened
            self.collections.note_damage(served, result.reason)
        return _unavailable(served)


def _each(
    call: Call, works: Mapping[ServedCollection, Work], then: Callable[[Results], None]
) -> None:
    """Has each piece of work done for a call; `then` takes the results when all are there."""
    results = dict[ServedCollection, Result]()

    def on_result(served: ServedCollection, result: Result) -> None:
        results[served] = result
        if len(results) == len(works):
            then(results)

    if not works:
        then({})
    try:
        for served, work in works.items():
            served.searches.submit(call, work, partial(on_result, served))
    except QaError as error:
        call.fail(error)


def _summed(counted: Sequence[Counted]) -> WordCounts:
    by_word = Counter[str]()
    for its in counted:
        by_word.update(its.counts.by_word)
    return WordCounts(sum(its.counts.passages for its in counted), dict(by_word))


def joined(found: Mapping[str, Sequence[FoundPassage]]) -> list[FoundPassage]:
    """The passages of several collections, the best first.

    One that was found by words alone is compared with others as if it were as similar to the
    question as the least similar of these.
    """
    cosines = [hit.cosine for hits in found.values() for hit in hits if hit.cosine is not None]
    passages = [
        msgspec.structs.replace(
            hit,
            score=BM25_WEIGHT * hit.score + COSINE_WEIGHT * min(cosines)
            if cosines and hit.cosine is None
            else hit.score,
            passage=msgspec.structs.replace(hit.passage, collection=name),
        )
        for name, hits in found.items()
        for hit in hits
    ]
    return sorted(passages, key=lambda hit: -hit.score)


def _usual(collections: Sequence[ServedCollection]) -> int:
    """How many passages are read for a question that does not say so."""
    return max(its.options.max_passages for its in collections)


def _to_be_read(found: Sequence[FoundPassage], usual: int) -> Sequence[FoundPassage]:
    """The first passages, as many as are usual, and further ones as long as all are short.

    What scores much less than the best is not read beyond the usual number: it answers nothing.
    """
    chars = itertools.accumulate(len(its.passage.text) for its in found)
    fitting = sum(
        total <= usual * SHORT_PASSAGE_CHARS and its.score > found[0].score - MAX_POINTS_BEHIND
        for its, total in zip(found, chars, strict=True)
    )
    return found[: max(usual, fitting)]


def _unavailable(served: ServedCollection) -> UnavailableError:
    return UnavailableError(f"the collection {served.name} cannot be searched now")
