"""Questions to several collections, and which of them a token may ask. Sans-IO."""

from pathlib import Path

import pytest

from qa_service.retrieval.search_messages import (
    BM25_WEIGHT,
    COSINE_WEIGHT,
    Count,
    Found,
    Refused,
    Search,
    WordCounts,
)
from qa_service.server.services.collections import edition, joined
from qa_service.server.services.service import Access
from qa_service.server.services.service_options import CollectionOptions
from qa_service.wire.error_codes import status_of
from tests.unit.calls import make_call
from tests.unit.server.services.test_collections import Asking, passage

OPTIONS = {
    "a": CollectionOptions(path=Path("a"), max_passages=2),
    "b": CollectionOptions(path=Path("b"), max_passages=3),
    "c": CollectionOptions(url="http://cluster/c", tokens=["ada", "ida"]),
}


class Setting(Asking):
    def __init__(self, max_processes=16):
        super().__init__(OPTIONS, max_processes=max_processes)
        self.service = Access(self.service, self.collections)

    def reply(self, found):
        """Has the processes reply until none is asked: counts, and passages by collection."""
        while waiting := [its for its in self.processes.values() if its.waiting]:
            for process in waiting:
                work = process.waiting[0]
                if isinstance(work, Count):
                    number = len(work.collection)
                    process.reply(WordCounts(10 * number, {"ada": number}))
                elif isinstance(work, Search):
                    result = found[work.collection]
                    process.reply(Found(result, 0.5) if isinstance(result, list) else result)
                else:
                    process.settle()

    @property
    def searches(self):
        works = [work for its in self.processes.values() for work in its.works]
        return [work for work in works if isinstance(work, Search)]

    @property
    def read(self):
        return [ticket.call.request.text for ticket in self.dispatcher.submitted]


@pytest.fixture(params=[16, 1], ids=["a process each", "one process"])
def setting(request):
    return Setting(request.param)


FOUND = {
    "a": [passage(9.0, "1.md", "First." * 90), passage(1.0, "2.md", "Last." * 90)],
    "b": [passage(5.0, "1.md", "Second." * 90)],
    "c": [passage(7.0, "3.md", "Cluster." * 90)],
}


def test_the_best_passages_of_all_are_read(setting):
    setting.ask(collection=["a", "b"])
    setting.reply(FOUND)
    words = [text.split("\n")[1].split(".")[0] for text in setting.read]
    assert words == ["First", "Second", "Last"]
    counts = WordCounts(20, {"ada": 2})
    assert {(work.collection, work.max_passages) for work in setting.searches} == {
        ("a", 3),
        ("b", 3),
    }
    assert all(work.counts == counts for work in setting.searches)
    numbers = {name: its.passages_total for name, its in setting.counts.collections.items()}
    assert numbers == {"a": 2, "b": 1, "c": 0}


@pytest.mark.parametrize("names", ["a,b", "a, b", ["a", "b", "a"]])
def test_names_may_be_a_list_or_have_commas(setting, names):
    setting.ask(collection=names)
    setting.reply(FOUND)
    assert len(setting.read) == 3


def test_one_of_a_list_is_searched_as_by_its_name(setting):
    setting.ask(collection=["a"])
    assert [work.counts for work in setting.searches] == [None]


@pytest.mark.parametrize(
    ("token", "asked"), [("ada", {"a", "b", "c"}), ("", {"a", "b"}), ("bob", {"a", "b"})]
)
def test_all_are_those_that_the_token_may_ask(setting, token, asked):
    setting.ask(collection="*", flow=token)
    setting.reply(FOUND)
    assert {work.collection for work in setting.searches} == asked


@pytest.mark.parametrize("names", ["c", "a,c", ["c"]])
def test_a_collection_for_other_tokens_is_as_if_it_were_not_there(setting, names):
    for token in ("", "bob"):
        setting.ask(collection=names, flow=token)
        error = setting.outcomes.pop()
        assert (error.code, status_of(error)) == ("unknown_collection", 404)
        setting.ask(collection="d", flow=token)
        assert error.message == setting.outcomes.pop().message.replace("d;", "c;")
        assert error.message == "there is no collection c; there are a, b"
        assert set(setting.collections.states(token)) == {"a", "b"}
    assert setting.searches == []
    setting.ask(collection=names, flow="ida")
    setting.reply(FOUND)
    assert setting.read


def test_an_unknown_name_is_an_error_that_does_not_name_what_is_for_others(setting):
    setting.ask(collection="a,x")
    assert setting.outcomes[0].message == "there is no collection x; there are a, b"


def test_the_cache_keeps_the_collections_apart(setting):
    editions = {
        edition(setting.collections, make_call(collection=names, text="").request)
        for names in ("a", "b", ["a", "b"], ["b", "a"])
    }
    assert len(editions) == 4


def test_an_error_of_one_is_the_questions(setting):
    setting.ask(collection=["a", "b"])
    setting.reply({**FOUND, "b": Refused("damaged", "damaged")})
    assert [outcome.code for outcome in setting.outcomes] == ["unavailable"]


def test_a_field_that_only_one_has_finds_nothing_in_the_other(setting):
    unknown = Refused("no document has the field `x`", "request")
    setting.ask(collection=["a", "b"], filter={"x": 1})
    setting.reply({**FOUND, "b": unknown})
    assert (len(setting.read), setting.outcomes) == (2, [])
    setting.ask(collection=["a", "b"], filter={"x": 1})
    setting.reply({"a": unknown, "b": unknown})
    assert [outcome.code for outcome in setting.outcomes] == ["invalid_request"]


def test_a_field_that_none_has_is_an_error_that_says_what_each_has(setting):
    setting.ask(collection=["b", "a"], filter={"x": 1})
    setting.reply({"b": Refused("there is title", "request"), "a": Refused("path", "request")})
    assert [outcome.message for outcome in setting.outcomes] == ["a: path; b: there is title"]


def test_what_is_found_by_words_alone_is_compared_as_the_least_similar():
    similar = [passage(30.0, "1.md", "A", cosine=0.7), passage(20.0, "2.md", "B", cosine=0.5)]
    hits = joined({"a": similar, "b": [passage(9.0, "1.md", "C")]})
    assert [(hit.passage.collection, hit.passage.text) for hit in hits] == [
        ("a", "A"), ("a", "B"), ("b", "C"),
    ]  # fmt: skip
    assert hits[2].score == BM25_WEIGHT * 9.0 + COSINE_WEIGHT * 0.5
