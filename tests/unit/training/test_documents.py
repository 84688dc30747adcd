"""Training questions made of documents: which passage, where the answer is, what has none."""

from __future__ import annotations

import random

import pytest

from qa_service.data.squad import read_squad
from qa_service.retrieval.documents import Document, Heading, Passage
from tests.support import present
from training import documents
from training.documents import (
    Asked,
    DocumentQuestion,
    Located,
    answered,
    around_answer,
    in_section,
    locate,
    read_lines,
    unanswered,
    write_squad,
)
from training.trees import Tree, missing_trees

GUIDE = """# Guide

## Ports

The server listens on several ports.

| Port | Use |
| --- | --- |
| 5672 | clients |
| 15672 | the management page |

## Retries

A client tries *three times*. It waits 5 s before the first retry, and 10 s before the others.
"""


@pytest.fixture
def tree(tmp_path):
    pytest.importorskip("tantivy")
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "guide.md").write_text(GUIDE)
    (folder / "other.md").write_text(
        "# Other\n\nThe management page has no port of its own here.\n"
    )
    return Tree(folder, tmp_path / "index", tmp_path / "no_encoder")


def test_a_question_is_located_in_any_file_that_the_server_reads(tree, tmp_path):
    (tmp_path / "docs" / "ports.csv").write_text("Port,Use\n5672,clients\n15672,pages\n")
    asked = DocumentQuestion("docs", "ports.csv", "Which port is for clients?", ("5672",))
    located = present(locate(asked, tree))
    assert located.document.text[located.start :].startswith("5672")


def question(words, *answers, **fields):
    return DocumentQuestion("docs", "guide.md", words, answers, **fields)


def test_an_answer_is_found_in_its_passage_below_title_and_headings(tree):
    about_tries = question("How often does a client try?", "*three times*")
    asked = answered(about_tries, present(locate(about_tries, tree)))
    assert asked.answer == "three times"
    assert asked.text[asked.start :].startswith("three times")
    assert asked.text.startswith("Guide")
    assert asked.text.index("\n") < asked.start


def test_of_several_places_the_line_that_shares_the_questions_words_has_the_answer(tree):
    about_ports = question("Which port has the management page?", "15672", "5672")
    asked = answered(about_ports, present(locate(about_ports, tree)))
    line = asked.text[asked.start :].partition("\n")[0]
    assert line == "15672; Use: the management page"


def test_an_answer_that_no_passage_has_gives_nothing(tree):
    assert locate(question("Who wrote it?", "Ada"), tree) is None


def test_a_question_without_an_answer_needs_no_document(tree):
    assert locate(DocumentQuestion("docs", "", "Why?", ()), tree) is None


def test_an_answer_is_no_part_of_a_longer_word(tree):
    assert locate(question("Which port?", "672"), tree) is None


def test_passages_without_the_answer_are_what_the_search_finds(tree):
    found = unanswered(question("Which port has the management page?", "15672"), tree)
    assert [one.start for one in found] == [-1]
    assert "has no port of its own" in found[0].text


def test_a_question_that_no_document_answers_is_put_to_all_passages_found(tree):
    assert len(unanswered(question("Which port has a printer?"), tree)) == 2


def test_a_section_is_a_text_without_headings_from_elsewhere():
    context = "A client tries *three times*. It waits 5 s."
    asked = in_section(question("How often does it try?", "*three times*", context=context))
    assert asked
    assert asked.text == "A client tries three times. It waits 5 s."
    assert asked.text[asked.start :].startswith("three times")
    assert in_section(question("Who wrote it?", "Ada", context=context)) is None
    assert present(in_section(question("Who wrote it?", context=context))).start == -1


def located_in(*passages, at):
    """An answer "b" in one of a document's passages; "#" begins a heading."""
    text = "\n".join(passages)
    starts = [text.index(words) for words in passages]
    headings = tuple(
        Heading(start, 1, words)
        for start, words in zip(starts, passages, strict=True)
        if words.startswith("#")
    )
    cut = [
        Passage(start, start + len(words))
        for start, words in zip(starts, passages, strict=True)
        if not words.startswith("#")
    ]
    start = text.index("b")
    return Located(Document("guide.md", "", text, headings), cut, at, "b", start)


@pytest.mark.parametrize(("size", "section"), [(100, "two\nb\nthree"), (1, "b")])
def test_a_section_is_the_passages_between_headings_up_to_a_size(monkeypatch, size, section):
    monkeypatch.setattr(documents, "_SECTION_SIZES", (size, size))
    located = located_in("one", "# x", "two", "b", "three", "# y", "four", at=2)
    asked = [around_answer(question("What?", "b"), located, random.Random(n)) for n in range(9)]
    assert max((one.text for one in asked), key=len) == section
    assert all(one.text[one.start] == "b" for one in asked)


def test_a_written_file_is_read_as_squad(tmp_path):
    one = question("Which port?", "15672", kind="table")
    write_squad(
        [Asked(one, "Port: 15672", "15672", 6), Asked(one, "no")], tmp_path / "made.json.gz"
    )
    with_answer, without = read_squad(tmp_path / "made.json.gz")
    assert (with_answer.answers, with_answer.answer_starts) == (("15672",), (6,))
    assert without.is_impossible


def test_questions_of_trees_that_are_not_there_are_counted(tmp_path):
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "docs_here.tar.gz").touch()
    assert missing_trees(("here", "gone", "gone"), tmp_path, "another") == {"docs_gone.tar.gz": 2}


def test_the_kept_question_files_are_whole():
    from pathlib import Path

    folders = Path("training/questions"), Path("benchmarks/questions")
    files = [file for folder in folders for file in folder.glob("*.jsonl")]
    assert files
    for file in files:
        for one in read_lines(file):
            assert one.tree
            assert one.question
            assert bool(one.answers) == (one.kind != "none")
            assert one.kind
