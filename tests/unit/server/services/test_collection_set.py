"""Which collections are served: how they come, are opened and go, and what is said of them."""

import logging
from pathlib import Path

import pytest

from qa_service.errors import SetupError
from qa_service.retrieval.search_messages import Close, List, Listed, Open, Opened, Refused, Search
from qa_service.server.services.collection_set import LIST_AGAIN_S, REMOTE_SEARCHES
from qa_service.server.services.searches import DIED, HUNG
from qa_service.server.services.served_collection import FAULT_KEPT_S, LOG_AGAIN_S, MAX_RETRY_S
from qa_service.server.services.service_options import CollectionOptions
from tests.support import present
from tests.unit.server.services.search_processes import Searching

FOLDER = Path("folder")
DAMAGED = Refused("the manifest is no JSON", "damaged")
DOCS = {"docs": CollectionOptions(path=Path("docs"))}


class Setting(Searching):
    def use(self, options=DOCS, folder=None):
        self.collections.use(options, folder)

    def use_and_settle(self, options=DOCS):
        self.use(options)
        self.settle()

    def list(self, *names):
        self.processes["folder"].reply(Listed({name: f"folder/{name}" for name in names}))


@pytest.fixture
def setting():
    return Setting()


def test_a_collection_is_served_when_it_is_open(setting):
    setting.use()
    assert setting.collections.states() == {"docs": "LOADING"}
    assert not setting.collections.has_started
    setting.settle()
    assert setting.collections.states() == {"docs": "READY"}
    assert setting.collections.has_started
    assert setting.collections.faults() == {}


def test_collections_have_separate_processes_up_to_the_limit():
    setting = Setting(max_processes=2)
    options = {name: CollectionOptions(path=Path(name)) for name in "abcd"}
    setting.use_and_settle({**options, "far": CollectionOptions(url="http://cluster:9200/x")})
    assert set(setting.processes) == {"a", "b", "far"}
    assert {work.collection for work in setting.processes["a"].works} == {"a", "c"}
    assert setting.processes["a"].concurrency == 1
    assert setting.processes["far"].concurrency == REMOTE_SEARCHES


def test_a_collection_that_cannot_be_opened_is_tried_again_until_it_can(setting, caplog):
    setting.use()
    process = setting.processes["docs"]
    waits = []
    for _ in range(8):
        process.reply(DAMAGED)
        assert setting.collections.states() == {"docs": "UNAVAILABLE"}
        waited_s = 0
        while not process.waiting:
            setting.clock.advance(1.0)
            waited_s += 1
        waits.append(waited_s)
    assert waits == [1, 2, 4, 8, 16, 32, MAX_RETRY_S, MAX_RETRY_S]
    assert setting.collections.faults() == {"docs": "the manifest is no JSON"}
    assert [r.levelno for r in caplog.records].count(logging.ERROR) == 1
    process.settle()
    assert setting.collections.states() == {"docs": "READY"}
    assert setting.collections.faults() == {}


def test_an_unopenable_collection_does_not_block_the_others(setting):
    setting.use({**DOCS, "bad": CollectionOptions(path=Path("bad"))})
    setting.processes["bad"].reply(DAMAGED)
    setting.settle()
    assert setting.collections.has_started
    assert setting.collections.failure == ""
    assert setting.collections.states() == {"docs": "READY", "bad": "UNAVAILABLE"}


def test_a_collection_that_needs_setup_is_reported_as_failed(setting):
    setting.use()
    setting.processes["docs"].reply(Refused("docs is no collection", "setup"))
    assert setting.collections.failure == "[collections.docs]: docs is no collection"


def test_an_index_that_cannot_be_opened_leaves_the_open_one(setting, caplog):
    setting.use_and_settle()
    for _ in range(2):
        setting.use()
        setting.processes["docs"].reply(Refused("it is a FIFO", "damaged", is_open=True))
    assert setting.collections.states() == {"docs": "READY"}
    assert setting.collections.faults() == {"docs": "it is a FIFO"}
    assert [r.levelno for r in caplog.records].count(logging.ERROR) == 1


def test_a_new_process_opens_what_was_open(setting):
    setting.use_and_settle()
    process = setting.processes["docs"]
    process.die()
    assert setting.collections.states() == {"docs": "LOADING"}
    assert setting.counts.search_process_deaths_total == 1
    process.start()
    assert process.waiting == [Open("docs", "docs")]
    process.settle()
    assert setting.collections.states() == {"docs": "READY"}


def test_a_collection_that_kills_its_process_is_opened_later(setting):
    setting.use()
    process = setting.processes["docs"]
    process.die()
    process.start()
    assert process.waiting == []
    assert setting.collections.faults() == {"docs": DIED}
    setting.clock.advance(1.0)
    assert process.waiting == [Open("docs", "docs")]


def test_a_failed_search_is_reported_for_a_while(setting):
    setting.use_and_settle()
    work = Search("docs", "Who?", 3)
    setting.collections._on_fault(work, DIED)
    assert setting.collections.faults() == {"docs": f"a search failed: {DIED}"}
    setting.clock.advance(FAULT_KEPT_S + 1)
    assert setting.collections.faults() == {}
    setting.collections._on_fault(work, DIED)
    setting.processes["docs"].identity = "two"
    setting.use_and_settle()
    assert setting.collections.faults() == {}
    assert setting.counts.collections["docs"].failed_total == 2


def test_a_search_that_took_too_long_is_no_fault_once_another_is_made(setting):
    setting.use_and_settle()
    served = setting.collections.get("docs")
    setting.collections._on_fault(Search("docs", "Who?", 3), HUNG)
    assert setting.collections.faults() == {"docs": f"a search failed: {HUNG}"}
    served.note_success()
    assert setting.collections.faults() == {}
    setting.collections._on_fault(Search("docs", "Who?", 3), DIED)
    served.note_success()
    assert setting.collections.faults() == {"docs": f"a search failed: {DIED}"}, "another place"


def test_a_cluster_that_fails_and_recovers_by_turns_is_logged_now_and_then(setting, caplog):
    setting.use_and_settle()
    served = setting.collections.get("docs")
    for _ in range(100):
        served.note_fault("connection refused", ends_with_success=True)
        served.note_success()
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    setting.clock.advance(LOG_AGAIN_S + 0.1)
    served.note_fault("connection refused", ends_with_success=True)
    assert [record.levelname for record in caplog.records].count("ERROR") == 2


def test_an_open_index_with_a_fault_is_looked_at_again_until_it_has_none(setting, caplog):
    setting.use()
    process = setting.processes["docs"]
    process.reply(Opened("one", "its cluster does not answer"))
    assert setting.collections.states() == {"docs": "READY"}
    assert setting.collections.faults() == {"docs": "its cluster does not answer"}
    for wait_s in (1.0, 2.0):
        setting.clock.advance(wait_s)
        process.reply(Opened("one", "its cluster does not answer"))
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    setting.clock.advance(4.0)
    process.reply(Opened("one"))
    assert setting.collections.faults() == {}
    setting.clock.advance(2 * MAX_RETRY_S)
    assert process.waiting == []


def test_collections_are_added_and_removed(setting):
    setting.use_and_settle()
    setting.use_and_settle({"more": CollectionOptions(path=Path("more"))})
    assert setting.processes["docs"].is_killed
    assert setting.collections.get("docs") is None
    assert list(setting.counts.collections) == ["more"]


def test_a_removed_collection_is_closed_in_its_shared_process():
    setting = Setting(max_processes=1)
    options = {name: CollectionOptions(path=Path(name)) for name in "ab"}
    setting.use_and_settle(options)
    setting.use_and_settle({"b": options["b"]})
    assert Close("a") in setting.processes["a"].works
    assert not setting.processes["a"].is_killed


def test_another_folder_is_opened_in_place_of_the_first(setting):
    setting.use_and_settle()
    setting.use({"docs": CollectionOptions(path=Path("other"))})
    assert setting.processes["docs"].waiting == [Open("docs", "other")]


def test_a_folder_that_is_named_while_another_is_opened_is_opened_next(setting):
    setting.use()
    setting.use({"docs": CollectionOptions(path=Path("other"))})
    setting.processes["docs"].reply(Opened("one"))
    assert setting.processes["docs"].waiting == [Open("docs", "other")]


def test_a_collection_moved_to_a_cluster_gets_a_new_process(setting):
    setting.use_and_settle()
    first = setting.processes["docs"]
    setting.use_and_settle({"docs": CollectionOptions(url="http://cluster:9200/docs")})
    assert first.is_killed
    assert setting.processes["docs"] is not first


# A folder of collections.


def test_the_collections_of_a_folder_are_served(setting):
    setting.use({}, FOLDER)
    assert setting.processes["folder"].waiting == [List("folder")]
    assert not setting.collections.has_started
    setting.list("a", "b", "no name")
    setting.settle()
    assert setting.collections.states() == {"a": "READY", "b": "READY"}
    assert setting.collections.has_started
    setting.use({}, FOLDER)
    setting.list("b")
    assert list(setting.collections.states()) == ["b"]


def test_a_folder_without_a_collection_is_said_once(setting, caplog):
    for _ in range(2):
        setting.use({}, FOLDER)
        setting.list()
    words = f"there is no collection in {FOLDER}: qa-index makes them"
    assert caplog.messages.count(words) == 1
    setting.use({}, FOLDER)
    setting.list("docs")
    setting.use({}, FOLDER)
    setting.list()
    assert caplog.messages.count(words) == 2
    setting.use({}, None)


def test_what_is_wrong_with_a_folder_is_said_once_until_it_is_well(setting, caplog):
    for _ in range(2):
        setting.use({}, FOLDER)
        setting.list("no name")
    for _ in range(2):
        setting.use({}, FOLDER)
        setting.processes["folder"].reply(Refused("there is no such folder", "setup"))
    assert [message.partition(": ")[0] for message in caplog.messages] == [
        "the collection in the folder 'no name' is not served",
        "the collections are unchanged",
    ]
    setting.use({}, FOLDER)
    setting.list("docs")
    setting.use({}, FOLDER)
    setting.list("no name")
    assert caplog.messages[-1] == caplog.messages[0]


def test_a_configured_collection_overrides_the_folders_of_its_name(setting):
    setting.use({"a": CollectionOptions(path=Path("elsewhere"))}, FOLDER)
    setting.list("a")
    assert setting.processes["a"].waiting == [Open("a", "elsewhere")]


def test_a_folder_that_is_not_there_is_a_failure(setting):
    setting.use({}, FOLDER)
    setting.processes["folder"].reply(Refused("there is no such folder", "setup"))
    assert setting.collections.failure == "there is no such folder"


def test_a_hanging_folder_is_retried_and_open_collections_serve(setting):
    setting.use({}, FOLDER)
    setting.list("a")
    setting.settle()
    setting.use({}, FOLDER)
    setting.settle()
    process = setting.processes["folder"]
    process.die()
    process.start()
    assert setting.collections.states() == {"a": "READY"}
    assert setting.collections.failure == ""
    setting.clock.advance(LIST_AGAIN_S)
    assert process.waiting == [List("folder")]


def test_new_indexes_and_collections_are_looked_for_now_and_then():
    setting = Setting(look_interval_s=2.0)
    setting.use({**DOCS, "far": CollectionOptions(url="http://cluster:9200/x")}, FOLDER)
    setting.list()
    setting.settle()
    for _ in range(3):
        setting.clock.advance(2.0)
        assert setting.processes["folder"].waiting == [List("folder")]
        assert setting.processes["docs"].waiting == [Open("docs", "docs")]
        assert setting.processes["far"].waiting == []
        setting.list("docs")
        setting.settle()
    edition = present(setting.collections.get("docs")).edition
    setting.processes["docs"].identity = "two"
    setting.clock.advance(2.0)
    setting.settle()
    assert present(setting.collections.get("docs")).edition != edition


def test_what_could_not_be_opened_waits_longer_than_for_the_next_look():
    setting = Setting(look_interval_s=2.0)
    setting.use(DOCS, FOLDER)
    for wait_s in (1, 2, 4, 8):
        setting.processes["docs"].reply(DAMAGED)
        setting.clock.advance(wait_s - 0.5)
        assert setting.processes["docs"].waiting == []
        setting.clock.advance(0.5)
        assert setting.processes["docs"].waiting == [Open("docs", "docs")]
    folder = setting.processes["folder"]
    folder.reply(Refused("it hangs", "damaged"))
    setting.clock.advance(LIST_AGAIN_S - 1)
    assert folder.waiting == []
    setting.clock.advance(1)
    assert folder.waiting == [List("folder")]


# What may be said of them.


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("a/b", {"path": Path("docs")}, "a name has letters, digits, _, . and -"),
        ("docs", {}, "needs either path or url"),
        ("docs", {"path": Path("docs"), "url": "http://cluster:9200/docs"},
         "needs either path or url"),
        ("docs", {"path": Path("caf\udce9")}, r"path: 'caf\udce9' is no UTF-8"),
    ],
)  # fmt: skip
def test_a_collection_has_a_plain_name_and_is_in_one_place(setting, name, fields, why):
    setting.use_and_settle()
    with pytest.raises(SetupError) as raised:
        setting.use({name: CollectionOptions(**fields)})
    assert str(raised.value) == f"[collections.{name}]: {why}"
    assert setting.collections.states() == {"docs": "READY"}
