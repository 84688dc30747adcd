"""One question's search in several collections. Sans-IO.

    words counted in each ──all──▶ searched for in each, worth the same in all ──all──▶ results

Searches of collections that are elsewhere are made with the second step alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from qa_service.errors import QaError
from qa_service.retrieval.retriever import WordCounts
from qa_service.retrieval.search_messages import Count, Counted, Refused, Result, Search, Work
from qa_service.server.scheduling.call import Call
from qa_service.server.services.served_collection import ServedCollection

Results = Mapping[ServedCollection, Result]


class JointSearch:
    """Searches collections for a call, and fails it if there is no room for that.

    Args:
        on_done: Takes the searches' results, or those with which counting was refused.
    """

    def __init__(
        self,
        call: Call,
        collections: Sequence[ServedCollection],
        max_passages: int,
        on_done: Callable[[Results], None],
    ) -> None:
        self._call = call
        self._collections = collections
        self._max_passages = max_passages
        self._on_done = on_done

    def begin(self) -> None:
        """Counts the words."""
        question = self._call.request.question
        here = [its for its in self._collections if not its.is_remote]
        self._each({its: Count(its.name, question) for its in here}, self._on_counted)

    def _on_counted(self, results: Results) -> None:
        if refused := {its: it for its, it in results.items() if isinstance(it, Refused)}:
            self._on_done(refused)
            return
        passages, by_word = 0, Counter[str]()
        for result in results.values():
            if isinstance(result, Counted):
                passages += result.counts.passages
                by_word.update(result.counts.by_word)
        request, counts = self._call.request, WordCounts(passages, dict(by_word))
        search = partial(
            Search, question=request.question, max_passages=self._max_passages,
            wanted=request.filter, counts=counts,
        )  # fmt: skip
        self._each({its: search(its.name) for its in self._collections}, self._on_done)

    def _each(
        self, works: Mapping[ServedCollection, Work], then: Callable[[Results], None]
    ) -> None:
        """Has each piece of work done; `then` takes the results when all are there."""
        results = dict[ServedCollection, Result]()

        def on_result(served: ServedCollection, result: Result) -> None:
            results[served] = result
            if len(results) == len(works):
                then(results)

        if not works:
            then({})
        try:
            for served, work in works.items():
                served.searches.submit(self._call, work, partial(on_result, served))
        except QaError as error:
            self._call.fail(error)
