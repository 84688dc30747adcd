"""Questions to collections: a real server, a real model, real indexes."""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from contextlib import ExitStack, closing

import pytest

from harness.collections import ANSWERS, DOCUMENTS, index, write_documents
from harness.process import LoggingProcess, wait_until
from harness.server import INSTANT, ONE_INSTANCE, running_server
from qa_service.aio.client import AsyncQaClient
from qa_service.client import Answer, QaClient
from tests.programs import fail_to_start, run_python
from tests.support import all_of, present, skip_without
from tests.unit.retrieval.test_open_search import HITS, Cluster

TELEPHONE = "Alexander Bell patented the telephone in 1876. It carried speech over a wire.\n"


class Folders:
    """Documents, the collection made of them, and a configuration that serves it."""

    def __init__(self, folder):
        self.documents = write_documents(folder / "documents")
        self.collection = index(self.documents, folder / "collection")
        self.file = folder / "server.toml"
        self.write()

    def write(self, more=""):
        self.file.write_text(
            f'[collections.machines]\npath = "{self.collection}"\n{more}'
            "[cache]\ncache_bytes = 1048576\n"
        )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return Folders(tmp_path_factory.mktemp("collections"))


@pytest.fixture(scope="module")
def server(quick_model, folders):
    """Its engine is fixed: what it answers to one passage must not depend on the batch."""
    with running_server(quick_model, "--config", str(folders.file), *ONE_INSTANCE) as running:
        yield running


@pytest.mark.parametrize(("question", "expected"), ANSWERS.items())
def test_the_answer_names_its_document_and_its_place_in_it(server, question, expected):
    reply = server.ask(question=question, collection="machines")
    passage = reply["passage"]
    assert (reply["answer"], passage["document"]) == expected
    text = DOCUMENTS[passage["document"]]
    if passage["document"].endswith(".txt"):
        assert text[reply["start"] : reply["end"]] == reply["answer"]
        assert text[passage["start"] : passage["end"]] == passage["text"]
    at = passage["start"]
    assert passage["text"][reply["start"] - at : reply["end"] - at] == reply["answer"]


def test_an_equal_question_is_answered_from_the_cache(server):
    asked = {"question": "Who found a moth in a relay?", "collection": "machines", "top_k": 2}
    first, second = server.ask(**asked), server.ask(**asked)
    assert second["cached"] is True
    assert second["answers"] == first["answers"]
    assert "cached" not in server.ask(**asked, max_passages=1)


def test_a_watched_folder_is_answered_from_as_it_is_now(quick_model, tmp_path):
    docs, output = write_documents(tmp_path / "docs"), tmp_path / "all" / "machines"
    program = "import sys; from qa_service.entry import index; sys.exit(index())"
    flags = (str(docs), "--output", str(output), "--watch", "--no-embeddings")
    command = (sys.executable, "-c", program, *flags)
    where = ("--collections_dir", str(output.parent), *INSTANT)
    with ExitStack() as stack:

        def follow():
            return stack.enter_context(closing(LoggingProcess(command, ("stdout",))))

        def wait_for(question, answer):
            asked = {"question": question, "collection": "machines"}
            wait_until(lambda: running.ask(**asked)["answer"], lambda found: found == answer)

        first = follow()
        first.wait_for_log(f"{output}: 3 documents")
        running = stack.enter_context(running_server(quick_model, *where))
        (docs / "bell.txt").write_text(TELEPHONE)
        wait_for("Who patented the telephone?", "Alexander")
        first.process.kill()
        first.process.wait()
        (docs / "bell.txt").rename(docs / "gray.txt")
        (docs / "gray.txt").write_text(TELEPHONE.replace("Alexander Bell", "Elisha Gray"))
        (docs / "people" / "hopper.txt").unlink()
        second = follow()
        wait_for("Who patented the telephone?", "Elisha")
        asked = {"question": "Who wrote the first compiler?", "collection": "machines"}
        read = running.ask(**asked, passages=9)["passages"]
        assert "people/hopper.txt" not in {passage["document"] for passage in read}
        second.process.terminate()
        assert second.process.wait() == 0
        line = f"{output}: 3 documents, 4 passages (files: 1 read, 2 unchanged, 2 gone)\n"
        assert second.log == line


def test_a_collection_indexed_while_serving_is_served(quick_model, tmp_path):
    folders = Folders(tmp_path)
    asked = {"question": "Who patented the telephone?", "collection": "machines"}
    with running_server(quick_model, "--config", str(folders.file), *INSTANT) as server:
        assert server.ask(**asked)["answer"] != "Alexander"
        write_documents(folders.documents, {"people/bell.txt": TELEPHONE})
        index(folders.documents, folders.collection, update=True)
        server.wait_for_log("collection machines: the new index is served")
        reply = server.ask(**asked)
        assert reply["answer"] == "Alexander"
        assert reply["passage"]["document"] == "people/bell.txt"

        folders.write(f'[collections.more]\npath = "{folders.collection}"\nmax_passages = 1\n')
        server.signal(signal.SIGHUP)
        server.wait_for_log("collection more is served")
        assert server.ask(**{**asked, "collection": "more"})["answer"] == "Alexander"

        folders.write('[collections.more]\npath = "nowhere"\n')
        server.signal(signal.SIGHUP)
        server.wait_for_log("collection more stays as it is: nowhere is no collection")
        assert server.ask(**{**asked, "collection": "more"})["answer"] == "Alexander"


BOUND_BY_MODES = ("setpriv", "--bounding-set=-dac_override") if os.getuid() == 0 else ()
"""Starts a program that may write only where the files' modes let it, also as root."""


def let_write(folder, *, may_write):
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | 0o200 if may_write else mode & ~0o222)


def test_a_collection_that_cannot_be_written_is_served_and_opened_again(quick_model, tmp_path):
    folders, name = Folders(tmp_path), "machines"
    let_write(folders.collection, may_write=False)
    touch = [*BOUND_BY_MODES, "touch", str(folders.collection / "new")]
    assert os.spawnvp(os.P_WAIT, touch[0], touch) == 1
    flags = ("--config", str(folders.file), *INSTANT)
    with running_server(quick_model, *flags, wrapper=BOUND_BY_MODES) as server:
        reply = server.ask(question="Who wrote the first compiler?", collection=name)
        assert reply["answer"] == "Grace"
        let_write(folders.collection, may_write=True)
        write_documents(folders.documents, {"people/bell.txt": TELEPHONE})
        index(folders.documents, folders.collection, update=True)
        let_write(folders.collection, may_write=False)
        server.signal(signal.SIGHUP)
        server.wait_for_log("collection machines: the new index is served")
        reply = server.ask(question="Who patented the telephone?", collection=name)
        assert reply["answer"] == "Alexander"


def test_the_collections_of_a_folder_are_served_by_their_names(quick_model, tmp_path):
    folders, place = Folders(tmp_path), tmp_path / "collections"
    index(folders.documents, place / "handbook")
    where = ("--config", str(folders.file), "--collections_dir", str(place))
    asked = {"question": "Who patented the telephone?", "collection": "bell"}
    with running_server(quick_model, *where, *INSTANT) as server:
        assert server.ask(**asked)["error"]["code"] == "unknown_collection"
        for name in ("handbook", "machines"):
            question, (_, document) = next(iter(ANSWERS.items()))
            reply = server.ask(question=question, collection=name)
            assert reply["passage"]["document"] == document
        write_documents(tmp_path / "people", {"people/bell.txt": TELEPHONE})
        index(tmp_path / "people", place / "bell")
        server.wait_for_log("collection bell is served")
        assert server.ask(**asked)["answer"] == "Alexander"


# The programs.


QUESTION, (ANSWER, DOCUMENT) = next(iter(ANSWERS.items()))


def run(server, *words, text=""):
    return run_python(*words, "--port", server.port, input=text)


def test_the_client_asks_a_collection_once(server):
    ran = run(server, "client.py", "--collection", "machines", "--question", QUESTION)
    assert (ran.returncode, ran.stdout) == (0, f"{ANSWER}\n")
    sentence, place, score = ran.stderr.splitlines()
    assert sentence == "**Ada Lovelace** wrote the notes on it in 1843."
    assert re.match(rf"{re.escape(DOCUMENT)}:\d+, character ", place)
    assert place.endswith("The Analytical Engine")
    assert score.startswith("score ")


def test_the_client_converses_with_a_collection(server):
    ran = run(server, "client.py", "--collection", "machines", text=f"{QUESTION}\n\nWho?\n")
    assert ran.returncode == 0
    assert f"Answer: {ANSWER}\n        **{ANSWER}** wrote the notes" in ran.stdout
    assert DOCUMENT in ran.stdout


def test_the_client_libraries_ask_a_collection(server):
    with QaClient("localhost", server.port) as client:
        answer = client.ask(QUESTION, collection="machines", top_k=2, max_passages=3)
        passage = present(answer.passage)
        assert (answer.answer, passage.document) == (ANSWER, DOCUMENT)
        words = slice(present(answer.start) - passage.start, present(answer.end) - passage.start)
        assert passage.text[words] == ANSWER
        assert answer.alternatives[0].passage == answer.passage
        many = client.ask_many([(question, None) for question in ANSWERS], collection="machines")
        answers = [one.answer for one in all_of(Answer, many)]
        assert answers == [words for words, _ in ANSWERS.values()]
        assert client.ask("Who?", "It was Ada.").passage is None

    async def ask():
        async with AsyncQaClient("localhost", server.port) as client:
            one = await client.ask(QUESTION, collection="machines")
            pairs = [(question, None) for question in ANSWERS]
            return one, await client.ask_many(pairs, collection="machines")

    one, many = asyncio.run(ask())
    assert one.passage.document == DOCUMENT
    assert [each.answer for each in many] == [words for words, _ in ANSWERS.values()]


def test_jobs_ask_a_file_of_questions_without_texts(server, tmp_path):
    file, output = tmp_path / "questions.csv", tmp_path / "answers.jsonl"
    file.write_text("question\n" + "".join(f"{question}\n" for question in ANSWERS))
    words = ("run", str(file), "--output", str(output), "--collection", "machines")
    ran = run(server, "jobs.py", *words)
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    found = [(line["answer"], line["passage"]["document"]) for line in lines]
    assert found == list(ANSWERS.values())


def test_the_load_generator_asks_a_collection(server):
    words = ("--num_total_clients", "4", "--num_request_per_client", "2")
    ran = run(server, "stress_test.py", "--collection", "machines", *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture
def cluster():
    skip_without("opensearchpy", "the extra `opensearch` is not installed")
    found = Cluster()
    yield found
    found.close()


RIVERS = {"question": "What is long?", "collection": "rivers"}


def test_an_opensearch_index_answers(quick_model, tmp_path, cluster):
    config = tmp_path / "server.toml"
    config.write_text(f'[collections.rivers]\nurl = "{cluster.url}/rivers"\n')
    with running_server(quick_model, "--config", str(config), *ONE_INSTANCE) as server:
        reply = server.ask(**RIVERS)
        assert (reply["answer"], reply["passage"]["document"]) == ("Nile", "a.md")
        assert reply["start"] == 44
        bad = {"text": "The Nile is long \ud83e.", "start": 2**70}
        cluster.reply = {"hits": {"hits": [{"_id": "bad", "_score": 9, "_source": bad}, *HITS]}}
        for question in ("Is the Nile long?", "Is the Rhine long?"):
            assert server.ask(question=question, collection="rivers")["score"]
        assert server.stats()["collections"]["rivers"]["left_out_total"] == 2
        assert server.health()["collection_faults"] == {}


STAFF = {
    "leave.txt": "Employees are given twenty-five days of vacation each year.\n",
    "parking.txt": "Cars stand in the garage behind the building.\n",
    "rain.txt": "It rained during the whole of Tuesday.\n",
}


@pytest.fixture(scope="module")
def staff(tmp_path_factory, encoder):
    folder = tmp_path_factory.mktemp("staff")
    output = folder / "collections" / "staff"
    index(write_documents(folder / "documents", STAFF), output, encoder=encoder)
    return output.parent


def test_a_passage_without_a_word_of_the_question_is_read(quick_model, staff, encoder):
    flags = ("--collections_dir", str(staff), "--encoder", str(encoder), *ONE_INSTANCE)
    with running_server(quick_model, *flags) as server:
        reply = server.ask(question="How much holiday does staff get?", collection="staff")
        assert (reply["answer"], reply["passage"]["document"]) == (
            "twenty-five days",
            "leave.txt",
        )
        assert server.health()["collection_faults"] == {}


def test_without_the_encoder_words_are_searched_until_it_is_prepared_and_sighup_comes(
    quick_model, staff, encoder, tmp_path
):
    folder = tmp_path / "encoder"
    meant = {"question": "How much holiday does staff get?", "collection": "staff"}
    flags = ("--collections_dir", str(staff), "--encoder", str(folder), *INSTANT)
    with running_server(quick_model, *flags) as server:
        health = server.health()
        assert health["collections"] == {"staff": "READY"}
        fault = health["collection_faults"]["staff"]
        assert f"there is no encoder in {folder}: --encoder names its folder" in fault
        assert "words alone" in fault
        assert server.ask(question="Who gets vacation?", collection="staff")["answer"]
        assert server.ask(**meant)["answer"] == "", "no passage has a word of it"
        shutil.copytree(encoder, tmp_path / "new").rename(folder)
        server.signal(signal.SIGHUP)
        assert wait_until(lambda: server.health()["collection_faults"] == {})
        assert server.ask(**meant)["passage"]["document"] == "leave.txt"


def test_a_demo_has_a_collection_to_ask(quick_model, encoder, tmp_path):
    for prepared in (quick_model, encoder):
        (tmp_path / prepared.name).symlink_to(prepared)
    flags = ("--demo", "--saved_models", str(tmp_path), *ONE_INSTANCE)
    asked = {"question": "How much may a hotel cost?", "collection": "handbook"}
    with running_server(quick_model, *flags) as server:
        reply = server.ask(**asked)
        assert reply["answer"] == "140 euros"
    with running_server(quick_model, *flags, *INSTANT) as server:  # it finds it made
        assert server.ask(**asked)["passage"] == reply["passage"]
    ended = fail_to_start(*flags, "--collections_dir", str(tmp_path), "--model", quick_model)
    assert "--demo serves its own collection" in ended.stderr
