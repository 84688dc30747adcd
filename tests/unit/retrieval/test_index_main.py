"""The program qa-index: what it prints, its exit code, and what --watch indexes."""

import itertools
import os
import shutil
import sys
from pathlib import Path

import pytest

from qa_service.errors import SetupError
from qa_service.installation import install_hint
from qa_service.retrieval import index_main
from qa_service.retrieval.build import IndexArgs, Reporter, build, list_files
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.index_main import INTERVAL_S, MAX_CHANGE_S, MAX_RETRY_S, Watcher, main
from qa_service.retrieval.manifest import load_manifest
from qa_service.retrieval.writing import locked
from tests.programs import run_python

FULL_DISK = """
import resource, sys
from qa_service.retrieval import index_main
from qa_service.retrieval.index_main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.exit(main())
"""


@pytest.fixture
def docs(tmp_path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "nile.txt").write_text("The Nile is long.")
    (folder / "more.py").write_text("")
    return folder


@pytest.fixture
def output(tmp_path) -> Path:
    return tmp_path / "collections" / "rivers"


def test_a_run_prints_what_it_did(docs, output, capsys):
    assert main([str(docs), "--no-embeddings", "--output", str(output)]) == 0
    counts = "1 documents, 1 passages (files: 1 read, 1 of other kinds (more.py))"
    assert capsys.readouterr() == (f"{output}: {counts}\n", "")
    assert main([str(docs), "--no-embeddings", "--output", str(output), "--update"]) == 0
    assert "1 unchanged" in capsys.readouterr().out


def test_a_bad_file_is_named_and_sets_the_exit_code(docs, output, capsys):
    (docs / "a\x1b[2J\n.txt").write_bytes(b"\xff")
    assert main([str(docs), "--no-embeddings", "--output", str(output)]) == 1
    printed = capsys.readouterr()
    assert printed.err == "left out: a\\x1b[2J\\n.txt: not UTF-8: byte 0 is 0xff\n"
    assert "1 with faults" in printed.out


@pytest.mark.parametrize("sources", [["none"], []])
def test_an_impossible_output_is_reported_in_one_line(docs, output, capsys, sources):
    (docs / "nile.txt").unlink()
    paths = [str(docs / source) for source in sources] or [str(docs)]
    assert main([*paths, "--no-embeddings", "--output", str(output)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_tantivy_the_package_to_install_is_named(docs, output, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tantivy", None)
    assert main([str(docs), "--no-embeddings", "--output", str(output)]) == 2
    assert install_hint("collections") in capsys.readouterr().err


def test_a_full_disk_is_reported_and_the_next_run_continues(docs, output, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # else modules are cut too, for later runs
    for number in range(200):
        (docs / f"{number}.txt").write_text(" ".join(f"{number}x{n}" for n in range(200)))
    done = run_python("-c", FULL_DISK, docs, "--no-embeddings", "--output", output)
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert done.stderr.endswith(": File too large\n")
    assert "Traceback" not in done.stderr
    assert main([str(docs), "--no-embeddings", "--output", str(output)]) == 0


def test_modules_among_the_documents_are_not_imported(docs, output):
    for module in ("csv", "gzip", "html", "zlib", "zipfile"):
        (docs / f"{module}.py").write_text("open('ran', 'w')")
    program = ("-P", "-m", "qa_service.retrieval.index_main")
    done = run_python(*program, ".", "--no-embeddings", "--output", output, cwd=docs)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (docs / "ran").exists()


@pytest.mark.parametrize(
    "flags", [["--language", "klingon"], ["--passage_tokens", "3"], ["--max_file_bytes", "0"]]
)
def test_values_out_of_bounds_are_refused(docs, output, flags):
    with pytest.raises(SystemExit) as caught:
        main([str(docs), "--no-embeddings", "--output", str(output), *flags])
    assert caught.value.code == 2


def test_text_prints_the_text_that_offsets_refer_to(docs, capsys):
    (docs / "a.md").write_text("# Top\n\n*One* [link](x).\n")
    assert main(["--text", str(docs / "a.md")]) == 0
    assert capsys.readouterr().out == "Top\n\nOne link.\n"


def test_without_output_or_text_the_missing_flag_is_named(docs, capsys):
    with pytest.raises(SystemExit):
        main([str(docs)])
    assert "--output" in capsys.readouterr().err


def test_a_file_that_may_not_be_looked_at_is_named(docs, output, capsys):
    (docs / "loop.txt").symlink_to("loop.txt")
    assert main([str(docs), "--no-embeddings", "--output", str(output)]) == 1
    assert "left out: loop.txt: Too many levels" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--follow_links"]])
def test_a_link_out_of_the_folder_is_followed_only_where_asked_for(
    docs, output, capsys, tmp_path, flags
):
    (tmp_path / "secret.txt").write_text("The word is swordfish.")
    (docs / "link.txt").symlink_to(tmp_path / "secret.txt")
    (docs / "inside.txt").symlink_to(docs / "nile.txt")
    (docs / "zero.txt").symlink_to("/dev/zero")
    os.mkfifo(docs / "pipe.txt")
    assert main([str(docs), "--output", str(output), *flags]) == (0 if flags else 1)
    names = {entry.name for entry in load_manifest(output).files}
    assert names == {"nile.txt", "inside.txt"} | ({"link.txt"} if flags else set())
    assert ("--follow_links" in capsys.readouterr().err) == (not flags)


def test_passages_are_embedded_by_a_thread_a_cpu(monkeypatch):
    monkeypatch.setattr(index_main, "num_cpus", lambda: 3)
    assert index_main._parser().get_default("num_threads") == 3


class Setting:
    """A watcher of a folder, looked with as the test says."""

    def __init__(self, folder: Path):
        self.docs, self.output = folder / "docs", folder / "collection"
        self.docs.mkdir()
        self.args = IndexArgs(
            sources=(self.docs,), output=self.output, embeddings=False, update=True
        )
        self.summaries, self.now_s, self.during = [], 0.0, lambda: None
        self.watcher = Watcher(self.args, self.index, lambda: self.now_s)
        self.write("nile.txt", "The Nile is long.")
        self.look(2)

    def index(self, found, seen):
        during, self.during = self.during, lambda: None
        during()
        self.summaries.append(build(self.args, Reporter(), found, seen))

    def write(self, name, text):
        (self.docs / name).parent.mkdir(exist_ok=True)
        (self.docs / name).write_text(text)

    def look(self, times=1, seconds=INTERVAL_S):
        for _ in range(times):
            self.now_s += seconds
            self.watcher.look()

    def found(self, question):
        return {its.passage.document for its in Collection(self.output).search(question, 9)}


@pytest.fixture
def setting(tmp_path):
    return Setting(tmp_path)


def test_files_are_indexed_once_they_are_still(setting):
    assert setting.found("Nile") == {"nile.txt"}
    for part in ("The Rhine", "The Rhine is", "The Rhine is shorter."):
        setting.write("rhine.txt", part)
        setting.look()
    assert len(setting.summaries) == 1
    setting.look(5)
    assert len(setting.summaries) == 2, "thousands of changes are one"
    assert setting.found("Rhine") == {"rhine.txt"}
    (setting.docs / "rhine.txt").rename(setting.docs / "rhein.txt")
    (setting.docs / "nile.txt").unlink()
    setting.look(3)
    assert (setting.found("Rhine"), setting.found("Nile")) == ({"rhein.txt"}, set())


def test_what_changes_all_the_time_is_indexed_now_and_then(setting):
    for number in range(int(2.5 * MAX_CHANGE_S)):
        setting.write("log.txt", f"Line {number} of a log that grows.")
        setting.look()
    assert len(setting.summaries) == 3
    assert setting.found("log") == {"log.txt"}


def test_only_what_has_changed_is_read(setting):
    (setting.docs / "bad.txt").write_bytes(b"\xff")
    setting.look(2)
    assert (setting.summaries[-1].read, setting.summaries[-1].faulty) == (1, 1)
    setting.write("rhine.txt", "The Rhine is shorter.")
    setting.look(2)
    assert (setting.summaries[-1].read, setting.summaries[-1].kept) == (1, 2)
    os.utime(setting.docs / "rhine.txt")
    setting.look(2)
    assert (setting.summaries[-1].read, setting.summaries[-1].is_new) == (0, False)
    (setting.docs / "other.py").touch()
    setting.look(3)
    assert len(setting.summaries) == 4, "a file of another kind is nothing to be indexed"


def test_a_file_that_is_written_while_it_is_read_is_read_again(setting):
    setting.write("rivers.txt", "The Rhine falls.")
    setting.during = lambda: setting.write("rivers.txt", "The Rhone falls.")
    setting.look(2)
    assert load_manifest(setting.output).files[1].sha256 == ""
    setting.look(3)
    assert load_manifest(setting.output).files[1].sha256 != ""
    assert (setting.found("Rhone"), setting.found("Rhine")) == ({"rivers.txt"}, set())


def test_files_that_vanish_while_they_are_read_are_gone(setting):
    setting.write("sea/baltic.txt", "The Baltic is a sea.")
    setting.look(2)
    setting.write("sea/baltic.txt", "The Baltic is shallow.")
    setting.write("sea/black.txt", "The Black Sea is a sea.")
    setting.during = lambda: shutil.rmtree(setting.docs / "sea")
    setting.look(4)
    assert [its.removed for its in setting.summaries[2:]] == [1, 0]
    assert sum(its.faulty for its in setting.summaries) == 0
    assert (setting.found("sea"), setting.found("Nile")) == (set(), {"nile.txt"})


def test_a_folder_that_is_deleted_and_made_again_loses_nothing(setting, capsys):
    shutil.rmtree(setting.docs)
    setting.look(5)
    assert setting.found("Nile") == {"nile.txt"}
    setting.docs.mkdir()
    setting.look(5)
    assert setting.found("Nile") == {"nile.txt"}
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in said] == [
        f"{setting.docs} is not there: the collection stays as it is",
        "no passage was found in these files: the index is unchanged",
    ]
    setting.write("rhine.txt", "The Rhine is shorter.")
    setting.look(3)
    assert (setting.found("Rhine"), setting.found("Nile")) == ({"rhine.txt"}, set())


def test_what_fails_is_tried_again_less_and_less_often_and_said_once(setting, capsys):
    setting.write("rhine.txt", "The Rhine is shorter.")
    setting.summaries.clear()
    with locked(setting.output):
        tries = []
        setting.during = count = lambda: tries.append(setting.now_s)
        for _ in range(int(3 * MAX_RETRY_S)):
            setting.look()
            setting.during = count
    waits = [after - before for before, after in itertools.pairwise(tries)]
    assert waits == [1, 2, 4, 8, 16, 32, 60]
    said = f": another run writes {setting.output}\n"
    assert capsys.readouterr().err.count(said) == 1
    setting.look(int(MAX_RETRY_S))
    assert setting.found("Rhine") == {"rhine.txt"}
    assert len(setting.summaries) == 1


def test_a_collection_that_is_deleted_is_made_again(setting):
    shutil.rmtree(setting.output)
    setting.look(2)
    assert setting.found("Nile") == {"nile.txt"}


def test_what_cannot_be_made_at_the_beginning_is_an_error(setting):
    with locked(setting.output), pytest.raises(SetupError, match="another run"):
        setting.watcher.index(list_files(setting.args))


def test_a_path_that_may_not_be_looked_at_is_an_error_of_one_line(tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    flags = ["--no-embeddings", "--output"]
    assert main(["y" * 300, *flags, str(tmp_path / "out")]) == 2
    assert main([str(tmp_path), *flags, str(tmp_path / "loop")]) == 2
    long, loop = capsys.readouterr().err.splitlines()
    assert ": the files cannot be listed: [Errno 36] File name too long" in long
    assert ": the files cannot be listed: Symlink loop" in loop


def test_help_gives_no_embeddings_no_default(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "find passages by their words alone: no encoder is needed --encoder" in words
