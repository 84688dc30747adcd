"""A service that answers a question from the passages of a collection that match it best.

    submit ──a text──▶ the next service
       └──a collection──▶ search ──▶ passages, a child call each ──findings──▶ merged ▸ resolved

A passage is read below a line with its document's title and headings, in which no answer lies. One
softmax over the spans and the null answers of all passages makes the scores. The passage's score in
the search, times the model's `passage_weight`, is added to the log score of each. The more similar
a passage's embedding is to the question's, the less the null answer scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from qa_service.errors import QaError
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.retrieval.search_messages import (
    MAX_LEAD,
    TYPICAL_COSINE,
    FoundPassage,
    ReadText,
    read_text,
)
from qa_service.server.scheduling.call import Call, Outcome
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.services.parts import read_parts
from qa_service.server.services.retrieval import Retrieval
from qa_service.server.services.service import Service
from qa_service.wire.messages import MAX_UNSURE, Answer, Answered, Passage, Request, Timings
from qa_service.wire.spans import NO_ANSWER, ReadPassage, SegmentResult, answers_from_passages


class Collections:
    def __init__(self, service: Service, dispatcher: Dispatcher, retrieval: Retrieval) -> None:
        self._service = service
        self._dispatcher = dispatcher
        self._retrieval = retrieval

    def submit(self, call: Call) -> None:
        if call.request.collection is None:
            self._service.submit(call)
            return
        try:
            self._retrieval.search(call, partial(self._on_found, call))
        except QaError as error:
            call.fail(error)

    def _on_found(self, call: Call, found: Sequence[FoundPassage] | QaError) -> None:
        if call.is_settled:
            return
        if isinstance(found, QaError):
            call.fail(found)
        elif not found:
            call.resolve([NO_ANSWER], Timings(0.0, 0.0))
        else:
            merge = partial(_merge, found, self._dispatcher.pool.model.reading, call.request.top_k)
            call.then(partial(_completed, found, call.request))
            ask = partial(
                msgspec.structs.replace, call.request,
                collection=None, max_passages=None, filter=None,
            )  # fmt: skip
            read = [_read_text(its.passage) for its in found]
            parts = [(ask(text=its.text), (its.start, len(its.text))) for its in read]
            read_parts(call, parts, merge, self._dispatcher)


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
    passages: Sequence[FoundPassage],
    reading: ReadingConfig,
    top_k: int,
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
    count = max(top_k, 1 + MAX_UNSURE)
    null_log_score = _null_log_score(passages, reading)
    answers = answers_from_passages(read, null_log_score, count, reading.score_margin)
    return [_placed(answer, passages) for answer in answers]


def _placed(answer: Answer, passages: Sequence[FoundPassage]) -> Answer:
    """An answer whose passage has the page and the place of the answer."""
    if answer.start is None:
        return answer
    (passage,) = {its.passage_at(answer.start) for its in passages if its.passage is answer.passage}
    return msgspec.structs.replace(answer, passage=passage)


def _null_log_score(passages: Sequence[FoundPassage], reading: ReadingConfig) -> float | None:
    """Of the null answer: higher if no passage is similar to the question, or none leads."""
    null_log_score = reading.collection_null_log_score
    if null_log_score is None:
        return None
    cosines = [its.cosine for its in passages if its.cosine is not None]
    similarity = max(cosines) - TYPICAL_COSINE if cosines else 0.0
    lead = min(MAX_LEAD, passages[0].score - passages[1].score) if len(passages) > 1 else 0.0
    return null_log_score - reading.similarity_weight * similarity - reading.lead_weight * lead


def _read_text(passage: Passage) -> ReadText:
    return read_text(passage.title, passage.heading, passage.text)
