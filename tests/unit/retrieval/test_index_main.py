"""The program qa-index: what it prints, and its exit code."""

import os
import sys
from pathlib import Path

import pytest

from qa_service.installation import install_hint
from qa_service.retrieval import index_main
from qa_service.retrieval.index_main import main
from qa_service.retrieval.manifest import load_manifest
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


def test_a_full_disk_is_reported_and_the_next_run_continues(docs, output):
    for number in range(200):
        (docs / f"{number}.txt").write_text(" ".join(f"{number}x{n}" for n in range(200)))
    done = run_python("-c", FULL_DISK, docs, "--no-embeddings", "--output", output)
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert main([str(docs), "--no-embeddings", "--output", str(output)]) == 0


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
