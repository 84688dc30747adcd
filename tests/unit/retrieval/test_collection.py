"""Folders become collections, which are searched while the next index is made."""

import json
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from harness.collections import all_found, run_index
from qa_service.errors import SetupError
from qa_service.retrieval import writing
from qa_service.retrieval.build import PACKAGES, Reporter
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.manifest import INDEX, MANIFEST_FILE, PROGRESS_FILE, load_manifest
from qa_service.retrieval.tantivy_index import MAX_QUESTION_WORDS
from qa_service.wire.messages import Passage
from tests.programs import run_python

pytestmark = pytest.mark.usefixtures("reads_here")

NILE = "# The Nile\n\nThe Nile rises near Lake Victoria. It is 6650 kilometres long.\n"
RHINE = "# The Rhine\n\nThe Rhine rises in the Swiss Alps. Ships go from Basel to Rotterdam.\n"


KILLED_WHILE_OPENING = """
import os, pathlib, signal, sys
from qa_service.retrieval import collection

collection.open_index = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
collection.Collection(pathlib.Path(sys.argv[1]))
"""


class Told(Reporter):
    """Remembers the reports."""

    def __init__(self):
        self.lines, self.passages, self.size_bytes, self.done_bytes = [], 0, 0, 0

    def on_note(self, line):
        self.lines.append(line)

    on_fault = on_note

    def on_files(self, size_bytes):
        self.size_bytes = size_bytes

    def on_passages(self, number):
        self.passages += number

    def on_file_done(self, size_bytes):
        self.done_bytes += size_bytes


@pytest.fixture
def docs(tmp_path) -> Path:
    folder = tmp_path / "docs"
    (folder / "africa").mkdir(parents=True)
    (folder / "africa" / "nile.md").write_text(NILE)
    (folder / "rhine.md").write_text(RHINE)
    return folder


@pytest.fixture
def output(tmp_path) -> Path:
    return tmp_path / "collections" / "rivers"


def indexes(output: Path) -> set[str]:
    return {path.name for path in output.glob(f"{INDEX}*")}


def test_a_passage_is_found_with_its_place(docs, output):
    told = Told()
    summary = run_index(docs, output, told)
    assert (summary.documents, summary.passages, summary.faulty) == (2, 2, 0)
    assert (told.passages, told.done_bytes, told.lines) == (2, told.size_bytes, [])
    found, *_ = Collection(output).search("How long is the Nile?", 10)
    name, text = "The Nile", NILE.split("\n\n")[1].strip()
    start = len("The Nile\n\n")
    end = start + len(text)
    assert found.passage == Passage("africa/nile.md", name, name, start, end, text, line=3)
    assert found.score > 0


def test_a_document_is_found_by_its_files_name(docs, output):
    (docs / "report_2026.md").write_text("# Danube\n\nShips go to the sea.\n")
    run_index(docs, output)
    assert all_found(Collection(output), "the report of 2026")[0] == "report_2026.md"


def test_a_copy_takes_no_place_among_the_passages(docs, output):
    for number in range(3):  # a chapter of its own, and the whole, whose headings are more
        (docs / f"whole_{number}.md").write_text(f"# Rivers of {number}\n\n#{NILE}")
    run_index(docs, output)
    collection = Collection(output)
    assert len(collection.search("How long is the Nile?", 10)) == 1
    assert set(all_found(collection, "Lake Victoria, or ships from Basel")) == {
        *("africa/nile.md", "rhine.md"),
    }


def test_words_are_found_by_their_stems_and_stop_words_are_not_asked_for(docs, output):
    (docs / "thames.txt").write_text("Is it the one? The other one is it.")
    run_index(docs, output)
    collection = Collection(output)
    found = all_found(collection, "Which river is rising in an alp?")
    assert found == ["rhine.md", "africa/nile.md"]
    assert all_found(collection, "Who is it?")[0] == "thames.txt", "unless no other is found"
    assert all_found(collection, "zebra") == all_found(collection, "?!") == []


def test_titles_and_headings_are_searched_too(docs, output):
    words = "".join(f"Some words of no use are in sentence {number}. " for number in range(200))
    (docs / "long.md").write_text(f"# Danube\n\n{words}")
    run_index(docs, output)
    assert len(all_found(Collection(output), "danube")) > 5


def test_a_question_is_never_a_query_language(docs, output):
    run_index(docs, output)
    collection = Collection(output)
    for question in ('nile" AND (', "title:nile^5", "*", "[a TO b]", "-rhine nile", "\0"):
        collection.search(question, 10)
    assert all_found(collection, "-rhine") == ["rhine.md"]


def test_a_long_question_costs_a_bounded_number_of_words(docs, output):
    run_index(docs, output)
    words = " ".join(f"word{number}" for number in range(MAX_QUESTION_WORDS))
    assert all_found(Collection(output), f"nile {words}") == ["africa/nile.md"]
    assert all_found(Collection(output), f"{words} nile") == []
    assert all_found(Collection(output), " " * 5000 + "nile") == []


def test_an_update_reads_what_has_changed(docs, output):
    (docs / "bad.txt").write_bytes(b"\xff")
    assert run_index(docs, output).faulty == 1
    collection, before = Collection(output), load_manifest(output)
    (docs / "rhine.md").write_text(RHINE.replace("Rotterdam", "Hoek"))
    (docs / "africa" / "nile.md").unlink()
    (docs / "seine.txt").write_text("The Seine flows through Paris.")
    told = Told()
    summary = run_index(docs, output, told, update=True)
    assert (summary.read, summary.kept, summary.removed) == (3, 0, 1)
    assert told.lines == ["bad.txt: not UTF-8: byte 0 is 0xff"]
    assert all_found(collection, "Nile Rotterdam") == ["africa/nile.md", "rhine.md"], "not yet"
    collection = collection.refreshed()
    assert all_found(collection, "Nile Rotterdam") == []
    assert all_found(collection, "Hoek Paris") == ["seine.txt", "rhine.md"]
    assert indexes(output) == {before.index, load_manifest(output).index}


def test_an_update_works_where_files_cannot_be_linked(docs, output, monkeypatch):
    run_index(docs, output)
    (docs / "elbe.md").write_text("# The Elbe\n\nThe Elbe flows through Hamburg.\n")

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    run_index(docs, output, update=True)
    collection = Collection(output)
    assert all_found(collection, "Hamburg") == ["elbe.md"]
    assert all_found(collection, "Basel") == ["rhine.md"]


def test_an_update_without_changes_leaves_everything_as_it_is(docs, output):
    run_index(docs, output)
    collection = Collection(output)
    before = (output / MANIFEST_FILE).stat().st_ino
    summary = run_index(docs, output, update=True)
    assert (summary.read, summary.kept) == (0, 2)
    assert (output / MANIFEST_FILE).stat().st_ino == before
    assert collection.refreshed() is collection


def test_an_update_reports_skipped_files_again(docs, output):
    (docs / "notes.jsonl").write_text('{"text": "Some words."}\nnone\n')
    first, second = Told(), Told()
    assert (
        run_index(docs, output, first).faulty
        == run_index(docs, output, second, update=True).faulty
        == 1
    )
    assert first.lines == second.lines
    assert first.lines[0].startswith("notes.jsonl, line 2: ")


def test_an_update_keeps_the_settings_and_other_settings_rebuild_the_index(docs, output):
    run_index(docs, output, language="german", passage_tokens=40)
    told = Told()
    assert run_index(docs, output, told, update=True).kept == 2
    assert run_index(docs, output, told, update=True, language="english").read == 2
    assert told.lines == ["other settings or versions than before: all files are read again"]
    settings = load_manifest(output).settings
    assert (settings.language, settings.passage_tokens) == ("english", 40)


def test_only_the_previous_index_is_kept(docs, output):
    made = []
    for _ in range(3):
        run_index(docs, output)
        made.append(load_manifest(output).index)
    assert indexes(output) == set(made[1:])
    assert not (output / PROGRESS_FILE).exists()


def test_an_open_collection_works_after_its_files_are_removed(docs, output):
    run_index(docs, output)
    collection = Collection(output)
    shutil.rmtree(output)
    assert all_found(collection, "Nile") == ["africa/nile.md"]
    with pytest.raises(SetupError, match="no collection"):
        collection.refreshed()
    assert all_found(collection, "Nile") == ["africa/nile.md"]
    run_index(docs, output)
    assert collection.refreshed() is not collection


def test_a_collection_is_searched_while_it_is_replaced(docs, output):
    run_index(docs, output)
    collection = Collection(output)
    stop, found = threading.Event(), []

    def search() -> None:
        while not stop.is_set():
            found.append(all_found(collection, "Nile"))

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        run_index(docs, output)
        collection = collection.refreshed()
    stop.set()
    for thread in threads:
        thread.join()
    assert found
    assert {tuple(names) for names in found} == {("africa/nile.md",)}


def test_an_open_collection_leaves_nothing_outside_its_folder(docs, output, tmp_path, monkeypatch):
    """A server that is killed cannot remove it."""
    run_index(docs, output)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    collection = Collection(output)
    assert set(tmp_path.iterdir()) == before
    assert all_found(collection, "Nile") == ["africa/nile.md"]


def test_other_folders_are_left_alone(docs, output):
    output.mkdir(parents=True)
    (output / "thesis.txt").write_text("years of work")
    with pytest.raises(SetupError, match="is no collection"):
        run_index(docs, output)
    with pytest.raises(SetupError, match="is no collection: make one"):
        Collection(output)
    assert [path.name for path in output.iterdir()] == ["thesis.txt"]


def test_an_empty_source_leaves_the_served_index(docs, output):
    run_index(docs, output)
    for path in docs.rglob("*.md"):
        path.unlink()
    for update in (False, True):
        with pytest.raises(SetupError, match="no passage"):
            run_index(docs, output, update=update)
        assert all_found(Collection(output), "Nile") == ["africa/nile.md"]
    with pytest.raises(SetupError, match="not there"):
        run_index(docs / "none", output)


def test_a_second_run_at_the_same_time_is_refused(docs, output):
    with writing.locked(output), pytest.raises(SetupError, match="another run"):
        run_index(docs, output)


def test_several_sources_keep_their_names(docs, output, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.txt").write_text("The Elbe.")
    sources = (docs, tmp_path / "more", docs / "rhine.md")
    with pytest.raises(SetupError, match="two files are called rhine"):
        (docs.parent / "rhine.md").write_text(RHINE)
        run_index(docs, output, sources=(docs / "rhine.md", docs.parent / "rhine.md"))
    run_index(docs, output, sources=sources)
    names = [entry.name for entry in load_manifest(output).files]
    assert names == ["docs/africa/nile.md", "docs/rhine.md", "more/a.txt", "rhine.md"]


def test_hidden_files_and_non_files_are_skipped(docs, tmp_path):
    (docs / ".git").mkdir()
    (docs / ".git" / "a.txt").write_text("hidden")
    (docs / "code.py").write_text("pass")
    os.mkfifo(docs / "pipe.txt")
    (docs / "loop").symlink_to(docs)
    (docs / "gone.txt").symlink_to(docs / "nowhere")
    output = docs / "collection"
    for _ in range(2):
        summary = run_index(docs, output)
        assert (summary.documents, summary.others) == (2, 3)


def test_empty_files_are_counted_and_those_of_other_kinds_named(docs, output):
    for name in ("nothing.txt", "nothing.md", "nothing.html"):
        (docs / name).write_text("")
    for number in range(7):
        (docs / f"{number}.bin").write_text("x")
    summary = run_index(docs, output)
    assert (summary.documents, summary.empty, summary.others) == (5, 3, 7)
    assert summary.first_others == [f"{number}.bin" for number in range(5)]


def test_names_that_are_not_utf8_are_shown(docs, output):
    name = os.fsencode(docs) + b"/caf\xe9.txt"
    with open(name, "w") as file:  # noqa: PTH123
        file.write("The Loire.")
    run_index(docs, output)
    assert all_found(Collection(output), "Loire") == ["caf\\xe9.txt"]


@pytest.mark.parametrize("manifest", [b"", b"{}", b"[1]", b"\xff", b'{"index": "../x"}'])
def test_a_broken_manifest_is_reported_and_rebuilt(docs, output, manifest):
    run_index(docs, output)
    (output / MANIFEST_FILE).write_bytes(manifest)
    with pytest.raises(SetupError):
        Collection(output)
    with pytest.raises(SetupError):
        run_index(docs, output, update=True)
    run_index(docs, output)
    assert all_found(Collection(output), "Nile") == ["africa/nile.md"]


def test_a_damaged_index_is_reported_and_rebuilt(docs, output):
    run_index(docs, output)
    for path in (output / load_manifest(output).index).iterdir():
        path.unlink()
    with pytest.raises(SetupError, match="cannot be opened"):
        Collection(output)
    run_index(docs, output)
    Collection(output)


def test_what_a_process_killed_while_it_opens_leaves_is_removed(
    docs, output, tmp_path, monkeypatch
):
    run_index(docs, output)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    done = run_python("-c", KILLED_WHILE_OPENING, output)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("qa-collection-*"))
    Collection(output)
    assert not list(tmp_path.glob("qa-collection-*"))


def test_the_manifest_names_its_sources(docs, output):
    run_index(docs, output)
    manifest = json.loads((output / MANIFEST_FILE).read_text())
    assert manifest["settings"]["language"] == "english"
    assert set(manifest["versions"]) == {"qa-server", "python", *PACKAGES}
    assert [(file["name"], len(file["sha256"])) for file in manifest["files"]] == [
        ("africa/nile.md", 64),
        ("rhine.md", 64),
    ]


def test_an_update_of_an_older_formats_index_reads_all_files_again(docs, output):
    run_index(docs, output, language="german")
    path = output / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"settings": manifest["settings"] | {"format": 1}}))
    with pytest.raises(SetupError, match="another version"):
        Collection(output)
    assert run_index(docs, output, update=True).read == 2
    assert Collection(output).head.settings.language == "german"


@pytest.mark.parametrize("named", ["..", ".", "", "index-1/../..", "docs"])
def test_a_manifest_that_names_no_index_of_its_folder_is_refused(docs, output, named):
    run_index(docs, output)
    manifest = json.loads((output / MANIFEST_FILE).read_text())
    (output / MANIFEST_FILE).write_text(json.dumps(manifest | {"index": named}))
    with pytest.raises(SetupError, match="another version"):
        Collection(output)
