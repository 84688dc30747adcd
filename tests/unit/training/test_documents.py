"""Training questions of documents, and of the tables that offices keep."""

import random
import tarfile
from itertools import islice

import pytest

from qa_service.data.squad import read_squad
from qa_service.retrieval.documents import Block, Document, Kind, Passage
from tests.support import present
from training import documents, office_pages
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
from training.office_tables import make_document, put
from training.table_questions import Asker, Table, cells, place_in, row_with, tables
from training.trees import Tree, Trees, missing_trees, render_document

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
TOWNS = """# Offices

| Town | Telephone | Open |
| --- | --- | --- |
| Ulm | 0731 505 | 9 to 5 |
| Bonn | 0228 77 | 9 to 5 |
| Kiel | 0431 901 | daily |

| Plan | Price |
| --- | --- |
| Solo | 5 EUR |
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
        Block(Kind.HEADING, words, level=1, start=start)
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


def test_a_tree_without_a_file_that_is_read_has_no_document(tmp_path, caplog):
    (tmp_path / "group").mkdir()
    with tarfile.open(tmp_path / "group/docs_old.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("old/page.njk"))
    trees = Trees(tmp_path, tmp_path / "work")
    assert trees.of("old", "page.njk", "group") is None
    assert "no passage was found" in caplog.text


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


def rows_of_towns():
    return next(tables(render_document(TOWNS, "markdown")))


def test_a_row_is_read_back_into_its_cells():
    assert [tuple(cell[:2]) for cell in cells("Town: Ulm; 0731 505; Open: 9 to 5")] == [
        ("Town", "Ulm"),
        ("", "0731 505"),
        ("Open", "9 to 5"),
    ]


def test_each_table_has_its_rows():
    found = list(tables(render_document(TOWNS, "markdown")))
    assert [len(rows) for rows in found] == [3, 1]
    assert found[1] == ["Plan: Solo; Price: 5 EUR"]


@pytest.mark.parametrize(
    ("asked", "answer", "expected"),
    [
        ("When is Bonn open?", "9 to 5", "Town: Bonn; Telephone: 0228 77; Open: 9 to 5"),
        ("When is Ulm open?", "9 to 5", "Town: Ulm; Telephone: 0731 505; Open: 9 to 5"),
        ("When is Kiel open?", "8 to 9", ""),
    ],
)
def test_of_rows_with_an_answer_the_one_that_the_question_names_is_found(asked, answer, expected):
    assert row_with([answer], asked, rows_of_towns()) == expected


def test_of_equal_cells_the_one_below_the_column_that_is_asked_for_is_the_answer():
    row = "Team: Ulm; Home: 3; Away: 3"
    start, end = place_in(row, "3", "How many away?") or (0, 0)
    assert (row[:start], row[start:end]) == ("Team: Ulm; Home: 3; Away: ", "3")
    assert place_in(row, "l", "Which?") is None


def test_questions_made_of_a_table_are_answered_by_a_cell_of_their_row_or_by_none():
    rows = rows_of_towns()
    asker = Asker(random.Random(3))
    next(asker.ask(Table(["Plan: Solo; Price: 5 EUR", "Plan: Team; Price: 8 EUR"])))
    made = list(islice(asker.ask(Table(rows)), 300))
    answered = [one for one in made if one.answer]
    assert len(answered) > 100
    for one in answered:
        assert one.row in rows
        assert one.answer in [cell.value for cell in cells(one.row)]
    without = [one for one in made if one.question and not one.answer]
    assert without
    assert not any(one.row for one in without)


def test_questions_of_office_tables_are_put_to_one_passage_with_their_answer_at_most():
    rng = random.Random(7)
    elsewhere = ["Report > Other\nTown: Lagos; Telephone: 1"]
    for number in range(20):
        document, asked = make_document(number, rng)
        for one in asked:
            passages = put(one, document, elsewhere, rng)
            with_answer = [its for its in passages if its.start >= 0]
            assert len(with_answer) == bool(one.answer)
            for its in with_answer:
                assert its.text[its.start :].startswith(one.answer)
            others = [its.text.lower() for its in passages[bool(one.row) :]]
            assert not any(one.label.lower() in text for text in others)


def test_questions_of_office_pages_have_their_answer_in_one_passage_at_most():
    rng = random.Random(5)
    kinds = set()
    for number in range(40):
        document, asked = office_pages.make_page(number, rng)
        for one in asked:
            passages = office_pages.put(one, document, ["Other\nNothing."] * 4, rng)
            with_answer = [its for its in passages if its.start >= 0]
            assert len(with_answer) <= 1
            assert bool(with_answer) == bool(one.answer and passages)
            for its in with_answer:
                assert its.text[its.start :].startswith(one.answer)
            kinds.add(bool(one.answer))
    assert kinds == {True, False}
