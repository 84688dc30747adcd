"""Answers from collections: the search, the passages, and how they are merged. Sans-IO."""

import math
from pathlib import Path
from typing import cast

import msgspec
import pytest

from qa_service.errors import QueueFullError, WorkerCrashedError
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.worker_messages import ModelFacts
from qa_service.retrieval.search_messages import (
    MAX_LEAD,
    TYPICAL_COSINE,
    Found,
    FoundPassage,
    Open,
    Refused,
    read_text,
)
from qa_service.server.scheduling.call import SegmentRead
from qa_service.server.services.collections import Collections, edition
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.services.service import Service
from qa_service.server.services.service_options import CollectionOptions
from qa_service.wire.messages import Passage, Place
from qa_service.wire.spans import ReadPassage, ScoredSpan, SegmentResult, answers_from_passages
from tests.unit.calls import make_call
from tests.unit.server.fake_services import TIMINGS, FakeDispatcher, FakeService
from tests.unit.server.services.search_processes import Searching

# Were the threshold of given texts taken, "no answer" would always be the first.
MODEL = ModelFacts(
    "a model",
    window_tokens=384,
    reading=ReadingConfig(
        null_threshold=99.0, collection_threshold=0.5, passage_weight=0.5,
        similarity_weight=10.0, lead_weight=0.25, name_weight=2.0,
    ),
)  # fmt: skip


def passage(score, document, text, start=100, cosine=None):
    read = Passage(document, "Title", "", start, start + len(text), text)
    return FoundPassage(score, read, cosine)


FOUND = [
    passage(9.0, "a.txt", "Ada wrote it."),
    passage(7.0, "b.txt", "Bob wrote it."),
    passage(5.0, "a.txt", "Ann wrote it.", start=500),
]


class Asking(Searching):
    """Questions to open collections, and what they came to."""

    def __init__(self, options, **bounds):
        super().__init__(**bounds)
        self.dispatcher, self.texts, self.outcomes = FakeDispatcher(MODEL), FakeService(), []
        self.collections.use(options)
        self.settle()
        dispatcher = cast(Dispatcher, self.dispatcher)
        self.service: Service = Collections(self.texts, dispatcher, self.collections)

    def ask(self, **fields):
        given = {"collection": "docs", "text": "", **fields}
        call = make_call(on_settled=self.outcomes.append, **given)
        self.service.submit(call)
        return call


class Setting(Asking):
    options, found = {"docs": CollectionOptions(path=Path("docs"), max_passages=5)}, FOUND

    def __init__(self):
        super().__init__(self.options)
        self.process = self.processes["docs"]

    def ask_and_search(self, **fields):
        call = self.ask(**fields)
        for work in self.process.waiting:
            self.process.find(self.found[: work.max_passages])
        return call

    def read(self, number, log_score):
        """Says that the first word of a passage is its best span."""
        ticket = self.dispatcher.submitted[number]
        begin = ticket.core[0]
        spans = [ScoredSpan(log_score, begin, begin + 3)]
        result = SegmentResult(spans, log_score, 10)
        ticket.call.settle(SegmentRead((), TIMINGS, segment=result))


@pytest.fixture
def setting():
    return Setting()


# The service.


def test_a_request_with_a_text_passes_unchanged(setting):
    call = setting.ask(collection=None, text="Ada wrote it.")
    assert setting.texts.submitted == [call]


@pytest.mark.parametrize(
    ("title", "heading", "line"),
    [
        ("Guide", "", "Guide\n"),
        ("", "Install > Linux", "Install > Linux\n"),
        ("Guide", "Install > Linux", "Guide > Install > Linux\n"),
        ("Guide", "Guide > Linux", "Guide > Linux\n"),
        ("Guide", "Guidelines", "Guide > Guidelines\n"),
        ("", "", ""),
    ],
)
def test_a_passage_is_read_below_its_title_and_headings(title, heading, line):
    read = read_text(title, heading, "Ada wrote it.")
    assert read.text == f"{line}Ada wrote it."
    assert read.text[read.start :] == "Ada wrote it."


def test_each_passage_is_read_with_the_turn_of_one_text(setting):
    setting.ask_and_search(question="Who?", top_k=2, priority=3)
    tickets = setting.dispatcher.submitted
    texts = [ticket.call.request.text for ticket in tickets]
    assert texts == [f"Title\n{its.passage.text}" for its in FOUND]
    assert [ticket.core for ticket in tickets] == [(6, 19)] * 3
    assert all(ticket.call.request.collection is None for ticket in tickets)
    assert setting.dispatcher.reserved == 0.0
    assert setting.outcomes == []


@pytest.mark.parametrize(
    ("scores", "wanted", "num_read"),
    [
        ([9.0, -1.0, -1.0, -1.0, -1.1, -3.0], None, 4),  # the last two are over ten points behind
        ([9.0] * 9, None, 5),
        ([19.0, 0.0, 0.0, 0.0], None, 3),
        ([19.0, 0.0], None, 2),
        ([19.0, 0.0, 0.0, 0.0], 4, 4),
        ([9.0] * 9, 2, 2),
        ([9.0] * 9, 7, 7),
    ],
)
def test_passages_nearly_as_good_as_the_best_are_read(setting, scores, wanted, num_read):
    setting.found = [passage(score, "a.txt", "Ada") for score in scores]
    setting.ask_and_search(max_passages=wanted)
    assert len(setting.dispatcher.submitted) == num_read
    assert setting.counts.collections["docs"].passages_total == num_read


def test_an_answers_offsets_are_of_its_document(setting):
    setting.ask_and_search()
    for number, log_score in enumerate((2.0, 1.0, 1.0)):
        setting.read(number, log_score)
    [outcome] = setting.outcomes
    [answer] = outcome.answers
    assert (answer.answer, answer.start, answer.end) == ("Ada", 100, 103)
    assert (document_of(answer), answer.passage.start) == ("a.txt", 100)
    assert (outcome.timings.queue, outcome.timings.inference) == (1.0, 60.0)


@pytest.mark.parametrize(
    ("wanted", "log_score", "num_shown"),
    [(None, 2.0, 0), (None, -9.0, 3), (0, -9.0, 0), (2, 2.0, 2), (2, -9.0, 2), (100, 2.0, 3)],
)
def test_the_passages_that_were_read_are_shown(setting, wanted, log_score, num_shown):
    setting.ask_and_search(passages=wanted)
    for number in range(3):
        setting.read(number, log_score)
    [outcome] = setting.outcomes
    assert (outcome.answers[0].start is None) == (log_score < 0)
    assert outcome.source.passages == tuple(its.passage for its in FOUND[:num_shown])


@pytest.mark.parametrize("top_k", [1, 2, 20])
def test_without_an_answer_the_best_ones_are_shown_as_not_sure_enough(setting, top_k):
    setting.found = [passage(9.0, f"{n}.txt", f"A{n} wrote it.") for n in range(7)]
    setting.ask_and_search(max_passages=7, top_k=top_k)
    for number in range(7):
        setting.read(number, -9.0 - number)
    [outcome] = setting.outcomes
    unsure = outcome.source.unsure
    assert [document_of(answer) for answer in unsure] == [f"{n}.txt" for n in range(5)]
    assert sorted(unsure, key=lambda answer: -answer.score) == [*unsure]
    assert (outcome.answers[0].start, len(outcome.answers)) == (None, min(top_k, 8))


def test_with_an_answer_none_is_not_sure_enough(setting):
    setting.ask_and_search()
    for number in range(3):
        setting.read(number, 2.0 - number)
    assert setting.outcomes[0].source.unsure == ()


@pytest.mark.parametrize(
    ("field", "values"), [("passages", (None, 0, 2)), ("max_passages", (None, 3))]
)
def test_the_cache_keeps_replies_with_other_passages_apart(setting, field, values):
    asked = [setting.ask(**{field: value}).request for value in values]
    assert len({edition(setting.collections, request) for request in asked}) == len(values)


def test_the_search_score_is_part_of_an_answers_score(setting):
    """The second passage's span is better by 0.9, and its passage worse by 0.5 times 2."""
    setting.ask_and_search(max_passages=2)
    setting.read(1, 2.9)
    setting.read(0, 2.0)
    assert setting.outcomes[0].answers[0].answer == "Ada"


@pytest.mark.parametrize(
    ("cosines", "shift"),
    [((None, None), 0.0), ((0.32, 0.02), 3.0), ((0.52, 0.82), -2.0), ((TYPICAL_COSINE, None), 0.0)],
)
def test_the_less_similar_the_passages_are_the_more_no_answer_scores(setting, cosines, shift):
    setting.found = [
        passage(9.0, f"{cosine}", "Ada wrote it.", cosine=cosine) for cosine in cosines
    ]
    null_log_score = 0.5 + math.log(2) + shift
    for difference, answer in ((-0.01, ""), (0.01, "Ada")):
        setting.ask_and_search(max_passages=2)
        setting.read(-2, null_log_score + difference)
        setting.read(-1, -99.0)
        assert setting.outcomes[-1].answers[0].answer == answer


@pytest.mark.parametrize("cosine", [None, TYPICAL_COSINE])
@pytest.mark.parametrize(
    ("scores", "shift"), [((9.0,), 0.0), ((9.0, 7.0), -0.5), ((9.0, -9.0), -0.25 * MAX_LEAD)]
)
def test_the_more_the_best_passage_leads_the_less_no_answer_scores(setting, scores, shift, cosine):
    setting.found = [passage(score, f"{score}", "Ada wrote it.", cosine=cosine) for score in scores]
    # A worse passage's null answer is less by half of what its search has less.
    nulls = sum(math.exp(0.5 * (score - scores[0])) for score in scores)
    null_log_score = 0.5 + math.log(nulls) + shift
    for difference, answer in ((-0.01, ""), (0.01, "Ada")):
        setting.ask_and_search(max_passages=len(scores))
        setting.read(-len(scores), null_log_score + difference)
        for worse in range(1, len(scores)):
            setting.read(-worse, -99.0)
        assert setting.outcomes[-1].answers[0].answer == answer


@pytest.mark.parametrize(
    ("question", "missing"),
    [
        ("Who wrote it in ohio?", 0),
        ("Who wrote it in Ohio?", 0),
        ("Who wrote it in Guam?", 1),
        ("Who wrote it in Guam, Ohio, in 1998?", 2),
    ],
)
def test_names_that_no_passage_has_speak_for_no_answer(setting, question, missing):
    setting.found = [passage(9.0, "a.txt", "Ada wrote it."), passage(9.0, "b.txt", "Bob of Ohio")]
    for difference, answer in ((-0.1, ""), (0.1, "Ada")):
        setting.ask_and_search(question=question, max_passages=2)
        setting.read(-2, 0.5 + math.log(2) + 2.0 * missing + difference)
        setting.read(-1, -99.0)
        assert setting.outcomes[-1].answers[0].answer == answer


def test_a_failed_passage_fails_the_question_and_drops_the_others(setting):
    setting.ask_and_search()
    setting.dispatcher.submitted[1].call.fail(WorkerCrashedError())
    assert [outcome.code for outcome in setting.outcomes] == ["worker_crashed"]
    assert setting.dispatcher.cancelled == [
        setting.dispatcher.submitted[0], setting.dispatcher.submitted[2]
    ]  # fmt: skip


def test_a_cancelled_question_cancels_its_passages(setting):
    setting.ask_and_search().cancel()
    assert setting.dispatcher.cancelled == setting.dispatcher.submitted
    assert setting.dispatcher.reserved == 0.0


def test_a_refused_question_reads_no_passage(setting):
    setting.dispatcher.refuse = QueueFullError()
    setting.ask_and_search()
    assert [outcome.code for outcome in setting.outcomes] == ["queue_full"]
    assert setting.dispatcher.submitted == []


def test_without_a_passage_there_is_no_answer(setting):
    setting.found = []
    setting.ask_and_search()
    [outcome] = setting.outcomes
    assert (outcome.answers[0].start, outcome.answers[0].score) == (None, 1.0)


# The search.


def test_an_unknown_collection_is_an_error(setting):
    setting.ask(collection="books")
    assert setting.outcomes[0].message == "there is no collection books"


def test_as_many_passages_as_asked_for_or_configured(setting):
    setting.ask(question="Who?")
    setting.process.find()
    setting.ask(question="Who?", max_passages=1)
    assert [work.max_passages for work in setting.process.works[-2:]] == [5, 1]


def test_searches_and_documents_that_are_no_passages_are_counted(setting):
    setting.ask()
    setting.process.reply(Found(FOUND, 5.0, 3))
    counts = setting.counts.collections["docs"]
    assert (counts.search_ms.sum, counts.passages_total, counts.failed_total) == (5.0, 3, 0)
    assert counts.left_out_total == 3


def test_a_cancelled_search_reads_no_passage(setting):
    setting.ask().cancel()
    setting.process.find(FOUND)
    assert setting.dispatcher.submitted == []


def test_a_cluster_that_does_not_answer_is_an_error_and_a_fault_until_it_does(setting, caplog):
    counts = setting.counts.collections["docs"]
    for total in (1, 2):
        setting.ask()
        setting.process.reply(Refused("http://cluster/docs: HTTP 401", "unavailable"))
        error = setting.outcomes[-1]
        assert (error.code, error.retryable) == ("unavailable", True)
        assert "cluster/" not in error.message, "a client is not told where it is"
        assert counts.failed_total == total
    assert [record.levelname for record in caplog.records] == ["ERROR"], "said once"
    faults = setting.collections.faults
    assert faults() == {"docs": "a search failed: http://cluster/docs: HTTP 401"}
    assert setting.process.waiting == [], "its index is not damaged"
    setting.ask()
    setting.process.find(FOUND)
    assert faults() == {}


def test_a_damaged_index_is_an_error_and_opened_afresh(setting):
    setting.ask()
    setting.process.reply(Refused("PanicException: /secret/path", "damaged"))
    [error] = setting.outcomes
    assert (error.code, error.retryable) == ("unavailable", True)
    assert "secret" not in error.message
    assert setting.process.waiting == [Open("docs", "docs", "", is_fresh=True)]
    assert setting.counts.collections["docs"].failed_total == 1
    assert "PanicException" in setting.collections.faults()["docs"]


def test_questions_to_a_collection_that_is_removed_are_refused_at_once(setting):
    for _ in range(2):  # one is searched for, one waits
        setting.ask()
    setting.collections.use({})
    assert [outcome.code for outcome in setting.outcomes] == ["unavailable"] * 2
    setting.process.die()
    assert len(setting.outcomes) == 2


def test_a_removed_collection_is_not_opened_again_for_a_question_that_comes_too_late():
    more = {"more": CollectionOptions(path=Path("more"))}
    setting = Asking({**Setting.options, **more}, max_processes=1)
    setting.ask()
    setting.collections.use(more)
    process = setting.processes["docs"]
    process.reply(Refused("it is not open", "damaged"))
    assert [outcome.code for outcome in setting.outcomes] == ["unavailable"]
    process.works.clear()
    process.settle()
    assert {work.collection for work in process.works if isinstance(work, Open)} <= {"more"}


def test_a_collection_that_is_not_open_is_not_searched(setting):
    setting.collections.use(setting.options)
    setting.process.reply(Refused("it is gone", "damaged"))
    setting.ask()
    assert [outcome.code for outcome in setting.outcomes] == ["unavailable"]
    assert setting.process.waiting == []


def test_a_new_index_changes_the_edition(setting):
    request = make_call(collection="docs", text="").request
    before = edition(setting.collections, request)
    setting.collections.use(setting.options)
    setting.process.settle()
    assert edition(setting.collections, request) == before
    setting.process.identity = "two"
    setting.collections.use(setting.options)
    setting.process.settle()
    assert edition(setting.collections, request) != before


# The merge.


WORDS = "one two ten six"


def read(document, log_prior, *log_scores, words=WORDS):
    """A passage at 10 of a document, whose words of three letters have these log scores."""
    its = Passage(document, "", "", 10, 10 + len(words), words)
    spans = [ScoredSpan(score, 4 * n, 4 * n + 3) for n, score in enumerate(log_scores)]
    log_total = math.log(sum(map(math.exp, log_scores))) if log_scores else -math.inf
    return ReadPassage(its, log_prior, SegmentResult(spans, log_total, 6))


def document_of(answer):
    assert answer.passage
    return answer.passage.document


def test_scores_are_one_softmax_over_all_spans_and_null_answers():
    answers = answers_from_passages(
        [read("a", 0.0, 2.0), read("b", -1.0, 2.5, words="two")], 0.5, 3
    )
    masses = [math.exp(2.0), math.exp(1.5), math.exp(0.5) + math.exp(-0.5)]
    assert [document_of(answer) for answer in answers] == ["a", "b"]
    for answer, mass in zip(answers, masses, strict=False):
        assert answer.score == pytest.approx(mass / sum(masses), abs=1e-4)


def test_there_is_no_answer_if_no_span_is_above_all_null_answers_together():
    passages = [read("a", 0.0, 1.0), read("b", 0.0, 0.0, words="two")]
    answers = answers_from_passages(passages, 0.5, 2)
    assert [answer.start for answer in answers] == [None, 10]
    assert answers_from_passages(passages, None, 1)[0].start == 10
    assert answers_from_passages(passages[:1], 0.5, 1)[0].start == 10


def test_a_margin_lowers_scores_of_answers_near_none_and_decides_nothing():
    passages = [read("a", 0.0, 1.0), read("b", 0.0, 0.0, words="two")]
    null = math.log(0.5)
    plain, doubted = (answers_from_passages(passages, null, 2, margin) for margin in (0.0, 3.0))
    assert [its.answer for its in plain] == [its.answer for its in doubted] == ["one", "two"]
    masses = [math.exp(1.0), 1.0, 2 * 0.5 * math.exp(3.0)]
    for answer, mass in zip(doubted, masses, strict=False):
        assert answer.score == pytest.approx(mass / sum(masses), abs=1e-4)
    none, told = (answers_from_passages(passages, 0.5, 1, margin) for margin in (0.0, 3.0))
    assert none == told
    sure = [read("a", 0.0, 12.0)]
    assert answers_from_passages(sure, null, 1, 3.0)[0].score > 0.999


def test_other_bounds_of_an_answer_take_nothing_from_its_score():
    span = ScoredSpan(1.0, 0, 3)
    passages = [
        msgspec.structs.replace(read("a", 0.0), found=SegmentResult([span], log_total, 6))
        for log_total in (1.0, 5.0)
    ]
    sure, spread = (answers_from_passages([one], 0.5, 1) for one in passages)
    assert sure == spread
    assert sure[0].score == pytest.approx(1 / (1 + math.exp(-0.5)), abs=1e-4)


def test_equal_answers_of_all_passages_are_one_with_the_sum_of_their_scores():
    passages = [
        read(name, 0.0, 1.0, words=words)
        for name, words in zip("abc", ("one", "One", "six"), strict=True)
    ]
    [one, six] = answers_from_passages(passages, None, 3)
    assert (one.answer, document_of(one), one.score) == ("one", "a", 0.6667)
    assert one.places == (Place(10, 13, "a"), Place(10, 13, "b"))
    assert (six.answer, six.score, six.places) == ("six", 0.3333, ())


def test_equal_answers_together_are_compared_with_no_answer():
    passages = [read(name, 0.0, 0.0) for name in "ab"]
    null = math.log(0.9)  # 1.8 of both passages, against 2 of both answers and 1 of one
    assert answers_from_passages(passages, null, 1)[0].answer == "one"
    assert (
        answers_from_passages([passages[0], read("b", 0.0, 0.0, words="six")], null, 1)[0].start
        is None
    )


def test_one_document_has_several_answers():
    answers = answers_from_passages([read("a", 0.0, 3.0, 2.0, 1.0), read("a", 0.0, 1.5)], None, 2)
    assert [(answer.answer, document_of(answer)) for answer in answers] == [
        ("one", "a"),
        ("two", "a"),
    ]


def test_a_place_in_two_passages_is_named_once():
    [answer] = answers_from_passages([read("a", 0.0, 1.0), read("a", 0.0, 1.0)], None, 1)
    assert (answer.score, answer.places) == (1.0, ())


def test_passages_without_a_span_give_no_answer():
    [answer] = answers_from_passages([read("a", 0.0), read("b", 0.0)], 0.5, 3)
    assert (answer.start, answer.score) == (None, 1.0)
    answers = answers_from_passages([read("a", 0.0), read("b", 0.0, 2.0)], None, 3)
    assert [document_of(answer) for answer in answers] == ["b"]
