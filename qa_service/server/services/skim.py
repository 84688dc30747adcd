"""A service that reads only the best windows of a long text, if the request has `skim`.

    submit ──without `skim`, or short──▶ the next service
       └──`skim`──▶ windows ranked in a search process ──▶ the best, read as parts ▸ merged

An index of this one text ranks its windows as a collection ranks its passages. The scores are what
they would be if the text had no other windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from qa_service.errors import QaError
from qa_service.instance.messages import ModelFacts
from qa_service.server.scheduling.call import Call
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.services.parts import Part, read_parts
from qa_service.server.services.retrieval import Retrieval
from qa_service.server.services.service import Service
from qa_service.wire.messages import Answer, Request
from qa_service.wire.sections import Section
from qa_service.wire.spans import SegmentResult, merge, to_answers


class Skim:
    """Skims texts; passes on those to be read whole, or with no more windows than `skim`."""

    def __init__(self, service: Service, dispatcher: Dispatcher, retrieval: Retrieval) -> None:
        self._service = service
        self._dispatcher = dispatcher
        self._retrieval = retrieval

    def submit(self, call: Call) -> None:
        """Passes a text on, or ranks its windows."""
        model = self._dispatcher.pool.model
        request = call.request
        if request.skim is None or len(request.text) <= model.window_tokens:
            self._service.submit(call)
            return
        try:
            self._retrieval.rank(call, model, partial(self._on_ranked, call, model))
        except QaError as error:
            call.fail(error)

    def _on_ranked(self, call: Call, model: ModelFacts, best: Sequence[Section] | None) -> None:
        if best is None:
            self._service.submit(call)
            return
        parts = [_part_of(call.request, section) for section in best]
        answers = partial(_merge, call.request, best, model)
        read_parts(call, parts, answers, self._dispatcher)


def _part_of(request: Request, section: Section) -> Part:
    text = request.text[section.start : section.end]
    return msgspec.structs.replace(request, text=text, skim=None), section.core


def _merge(
    request: Request, best: Sequence[Section], model: ModelFacts, found: Sequence[SegmentResult]
) -> list[Answer]:
    merged = merge([(section.start, its) for section, its in zip(best, found, strict=True)])
    return to_answers(request.text, merged, model.reading.null_log_score, request.top_k)
