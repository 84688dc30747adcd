"""A service that answers a question from the passages of a collection that match it best.

    submit ──a text──▶ the next service
       └──a collection──▶ search ──▶ passages, a child call each ──findings──▶ merged ▸ resolved

A passage is read below a line with its document's title and headings, in which no answer lies. One
softmax over the answers and the null answers of all passages makes the scores. The passage's score
in the search, times the model's `passage_weight`, is added to the log score of each. What speaks
for an answer lowers the log score of the null answers: how similar a passage's embedding is to the
question's, and how far the best passage leads. What speaks against one raises it: how many names
of the question are missing even in the passage with most of them.

    in one       searched ──▶ passages
    in several   words counted in each that is here ──all──▶ searched in each, a word worth the same
                 in all ──all──▶ passages
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from qa_service.errors import InvalidRequestError, QaError, UnavailableError, UnknownCollectionError
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.retrieval.search_messages import (
    BM25_WEIGHT,
    COSINE_WEIGHT,
    MAX_LEAD,
    TYPICAL_COSINE,
    Count,
    Found,
    FoundPassage,
    ReadText,
    Refused,
    Result,
    Search,
    WordCounts,
    Work,
    distinct,
    read_text,
)
from qa_service.server.scheduling.call import Call, Outcome
from qa_service.server.services.asked_names import asked_names, count_missing
from qa_service.server.services.collection_set import CollectionSet
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.services.segments import read_parts
from qa_service.server.services.served_collection import ServedCollection
from qa_service.server.services.service import Service
from qa_service.wire.messages import (
    MAX_UNSURE,
    Answer,
    Answered,
    Passage,
    Request,
    Timings,
)
from qa_service.wire.spans import NO_ANSWER, ReadPassage, SegmentResult, answers_from_passages

MIN_PASSAGES = 3
"""What is read for a question that does not say how many passages: this number, and further ones
that are nearly as good as the best."""
MAX_POINTS_BEHIND = 10.0
"""How far behind the best, in points of the search, such a further passage may be."""
_MAX_NAMED = 5
"""Collections whose fields an error's message has."""

Results = Mapping[ServedCollection, Result]


@dataclass(frozen=True, eq=False)
class Collections:
    service: Service
    dispatcher: Dispatcher
    collections: CollectionSet

    def submit(self, call: Call) -> None:
        if call.request.collection is None:
            self.service.submit(call)
            return
        try:
            self._search(call)
        except QaError as error:
            call.fail(error)

    def _search(self, call: Call) -> None:
        """Searches the collections that a request names; raises a `QaError` if one cannot be."""
        request = call.request
        collections = []
        for name in request.collections:
            if (its := self.collections.get(name)) is None:
                raise UnknownCollectionError(f"there is no collection {name}")
            if its.state == "UNAVAILABLE":
                raise _unavailable(its)
            collections.append(its)
        on_results = partial(self._on_searched, call)
        search = partial(
            Search, question=request.question, wanted=request.filter,
            max_passages=request.max_passages or _most(collections),
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
            counts = _summed([it for it in results.values() if isinstance(it, WordCounts)])
            _each(call, {its: search(its.name, counts=counts) for its in collections}, on_results)

        here = [its for its in collections if not its.is_remote]
        _each(call, {its: Count(its.name, request.question) for its in here}, on_counted)

    def _on_searched(self, call: Call, results: Results) -> None:
        """Has what was found read; or fails the call.

        A field of the filter may be unknown in some collections; any other error is the question's.
        """
        found = {its: self._noted(its, result) for its, result in results.items()}
        errors = [one for one in found.values() if isinstance(one, QaError)]
        unknown = [error for error in errors if isinstance(error, InvalidRequestError)]
        if len(unknown) < len(errors):
            call.fail(next(error for error in errors if error not in unknown))
            return
        if len(unknown) == len(found):
            call.fail(_unknown_field(found, unknown))
            return
        hits = {its.name: one for its, one in found.items() if not isinstance(one, QaError)}
        wanted = call.request.max_passages
        if len(results) > 1:
            passages: Sequence[FoundPassage] = distinct(joined(hits), wanted or _most(list(found)))
        else:
            [passages] = hits.values()
        if not wanted:  # fewer are read where the search is surer
            near = sum(its.score >= passages[0].score - MAX_POINTS_BEHIND for its in passages)
            passages = passages[: max(MIN_PASSAGES, near)]
        for served in found:
            own = {"", served.name}  # one that was asked alone is not named
            served.counts.passages_total += sum(its.passage.collection in own for its in passages)
        if passages:
            self._read(call, passages)
        else:
            call.resolve([NO_ANSWER], Timings(0.0, 0.0))

    def _read(self, call: Call, found: Sequence[FoundPassage]) -> None:
        merge = partial(_merge, call.request, found, self.dispatcher.pool.model.reading)
        call.then(partial(_completed, found, call.request))
        ask = partial(
            msgspec.structs.replace, call.request, collection=None, max_passages=None, filter=None
        )
        read = [_read_text(its.passage) for its in found]
        parts = [(ask(text=its.text), (its.start, len(its.text))) for its in read]
        read_parts(call, parts, merge, self.dispatcher)

    def _noted(self, served: ServedCollection, result: Result) -> Sequence[FoundPassage] | QaError:
        """Counts a search, and takes note of its fault; what it has found."""
        if isinstance(result, Found):
            served.note_success()
            served.counts.search_ms.observe(result.took_ms)
            served.counts.left_out_total += result.left_out
            return result.passages
        assert isinstance(result, Refused)
        if result.kind == "request":
            return InvalidRequestError(result.reason)
        if result.kind == "unavailable":
            served.note_fault(result.reason, ends_with_success=True)
        elif served.state != "UNAVAILABLE":  # else it waited while it could not be opened
            served.note_fault(result.reason)
            served.open(is_fresh=True)
        return _unavailable(served)


def _completed(found: Sequence[FoundPassage], request: Request, outcome: Outcome) -> Outcome | None:
    """Leaves as many answers as are wanted; without one, adds what a person may find it in."""
    if not isinstance(outcome, Answered):
        return None
    answers, is_known = outcome.answers, outcome.answers[0].start is not None
    wanted = request.passages
    if wanted is None:
        wanted = 0 if is_known else len(found)
    source = msgspec.structs.replace(
        outcome.source,
        passages=tuple(its.passage for its in found[:wanted]),
        unsure=() if is_known else tuple(answers[1 : 1 + MAX_UNSURE]),
    )
    return msgspec.structs.replace(outcome, answers=answers[: request.top_k], source=source)


def _merge(
    request: Request,
    passages: Sequence[FoundPassage],
    reading: ReadingConfig,
    found: Sequence[SegmentResult],
) -> list[Answer]:
    # Relative to the best passage: only differences within one search mean something.
    read = [
        ReadPassage(
            its.passage,
            reading.passage_weight * (its.score - passages[0].score),
            spans.moved(-_read_text(its.passage).start),
        )
        for its, spans in zip(passages, found, strict=True)
    ]
    count = max(request.top_k, 1 + MAX_UNSURE)
    null_log_score = _null_log_score(request.question, passages, reading)
    answers = answers_from_passages(read, null_log_score, count, reading.score_margin)
    return [_placed(answer, passages) for answer in answers]


def _placed(answer: Answer, passages: Sequence[FoundPassage]) -> Answer:
    """An answer whose passage has the page and the place of the answer."""
    if answer.start is None:
        return answer
    (passage,) = {its.passage_at(answer.start) for its in passages if its.passage is answer.passage}
    return msgspec.structs.replace(answer, passage=passage)


def _null_log_score(
    question: str, passages: Sequence[FoundPassage], reading: ReadingConfig
) -> float | None:
    """Of the null answer: lower if a passage is similar or leads, higher if names are missing."""
    null_log_score = reading.collection_null_log_score
    if null_log_score is None:
        return None
    cosines = [its.cosine for its in passages if its.cosine is not None]
    similarity = max(cosines) - TYPICAL_COSINE if cosines else 0.0
    lead = min(MAX_LEAD, passages[0].score - passages[1].score) if len(passages) > 1 else 0.0
    names = asked_names(question) if reading.name_weight else set()
    missing = min(count_missing(names, its.passage) for its in passages)
    signs = reading.similarity_weight * similarity + reading.lead_weight * lead
    return null_log_score - signs + reading.name_weight * missing


def _read_text(passage: Passage) -> ReadText:
    return read_text(passage.title, passage.heading, passage.text)


def edition(collections: CollectionSet, request: Request) -> str:
    """What the answers depend on besides question and text: a part of the cache's key."""
    found = [its for name in request.collections if (its := collections.get(name))]
    if not found:
        return ""
    editions = ",".join(f"{its.edition}" for its in found)
    max_passages = request.max_passages or f"{_most(found)}-"
    wanted = msgspec.json.encode(request.filter, order="sorted").decode()
    return f"{editions}/{max_passages}/{request.passages}/{wanted}"


def _unknown_field(
    found: Mapping[ServedCollection, object], errors: Sequence[InvalidRequestError]
) -> InvalidRequestError:
    """Of several collections, which fields each of the first few has."""
    if len(errors) == 1:
        return errors[0]
    said = sorted(f"{its.name}: {error.message}" for its, error in zip(found, errors, strict=True))
    return InvalidRequestError("; ".join(said[:_MAX_NAMED]) + "; …" * (len(said) > _MAX_NAMED))


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


def _summed(counted: Sequence[WordCounts]) -> WordCounts:
    by_word = Counter[str]()
    for its in counted:
        by_word.update(its.by_word)
    return WordCounts(sum(its.passages for its in counted), dict(by_word))


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


def _most(collections: Sequence[ServedCollection]) -> int:
    """The maximum of passages that are read for a question that does not say how many."""
    return max(its.options.max_passages for its in collections)


def _unavailable(served: ServedCollection) -> UnavailableError:
    return UnavailableError(f"the collection {served.name} cannot be searched now")
