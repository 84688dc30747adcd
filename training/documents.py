r"""Makes training questions of documents: passages as the server cuts, finds and reads them.

    python -m training.documents DATA/docs_train --work work/ --output docs.json.gz \
        --sections docs_sections.json.gz --unanswered docs_none.json.gz

A question file names a tree, a document and the answers. The passage of that document that has the
first answer becomes a question with an answer, and so does its section, which is what a client
gives as a text: the question's `context`, or else the passages around it up to the next headings.
Passages that a search in the tree's collection finds for it, and that have none of the answers,
become questions without one: most of what a reader is given is of this kind. All files are SQuAD
JSON, for `finetune_model --train`; `--passages` writes one for `--train_passages`: question by
question, the passage with the answer and the best ones without, as many as a server reads. The
search is the server's, with embeddings if `qa-prepare-model` has prepared the encoder.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from qa_service.child_program import turn_off_telemetry
from qa_service.command_line import make_parser
from qa_service.data.squad import normalize_answer
from qa_service.evaluation.measures import words_of
from qa_service.retrieval.documents import Document, Passage
from qa_service.retrieval.formats import markup_of
from qa_service.retrieval.search_messages import read_text
from training.table_questions import place_in, row_with, tables
from training.trees import FOUND, Tree, Trees, missing_trees, render_fragment

_LOG = logging.getLogger(__name__)
_UNANSWERED = 2
"""How many of these, drawn, a question that has an answer is put to; any other is put to all."""
_COMPETING = 4
"""How many of these, the best, compete with the passage that has the answer."""
_OF_TABLES = frozenset({"table", "spreadsheet"})
"""Kinds of questions that a cell answers."""
_SHORT_CELL_CHARS = 8
"""A cell no longer than this says nothing without its row: 12, yes, 2024."""
_SECTION_SIZES = (300, 2_000)
"""Characters of a section that is joined from passages; drawn evenly between these."""


class DocumentQuestion(msgspec.Struct, frozen=True):
    """A line of a question file.

    Attributes:
        document: Its path in the tree.
        answers: Spans of the document, the best first; none if it does not answer.
        heading: One above the answer.
        context: The section that has the answer, as it stands in the file; "" to look for it.
        row: The row of a table that has the answer, as it stands in the document's text.
    """

    tree: str
    document: str
    question: str
    answers: tuple[str, ...]
    kind: str = ""
    heading: str = ""
    context: str = ""
    row: str = ""


class Asked(msgspec.Struct, frozen=True):
    """A question put to a text, without an answer if `start` is negative."""

    question: DocumentQuestion
    text: str
    answer: str = ""
    start: int = -1


class Located(msgspec.Struct, frozen=True):
    """Where the answer of a question stands.

    Attributes:
        passages: Those of the document, in its order.
        at: Which of them has the answer.
        answer: As it stands there.
        start: Its first character's place in the document's text.
    """

    document: Document
    passages: Sequence[Passage]
    at: int
    answer: str
    start: int


def locate(question: DocumentQuestion, tree: Tree) -> Located | None:
    """Finds the passage that has a question's best answer; None if no passage has one.

    Of several passages with an answer, the one that shares most words with the context, or with the
    heading and the question.
    """
    if not question.answers:
        return None
    documents = tree.documents(question.document)
    if row := _row_of(question, documents):
        document = next(its for its in documents if row in its.text)
        return _located_in_row(question, document, row)
    markup = markup_of(question.document) or "text"
    context = render_fragment(question.context, markup) if question.context else ""
    wanted = set(words_of(context or f"{question.heading} {question.question}"))
    for answer in question.answers:
        found = [
            (_share(f"{its.heading} {text}", wanted), document, at, match)
            for document in documents
            for at, its in enumerate(document.passages)
            if (text := document.text[its.start : its.end])
            and (match := _find(answer, markup, text, question.question))
        ]
        if found:
            _, document, at, match = max(found, key=lambda one: one[0])
            start = document.passages[at].start + match.start()
            return Located(document, document.passages, at, match[0], start)
    return None


def _row_of(question: DocumentQuestion, documents: Sequence[Document]) -> str:
    if question.row or question.kind not in _OF_TABLES:
        return question.row
    asked = f"{question.heading} {question.question}"
    markup = markup_of(question.document)
    shown = [render_fragment(its, markup) if markup else its for its in question.answers]
    return row_with(
        shown, asked, (row for its in documents for rows in tables(its) for row in rows)
    )


def _located_in_row(question: DocumentQuestion, document: Document, row: str) -> Located | None:
    begin = document.text.index(row)
    markup, passages = markup_of(question.document), document.passages
    for answer in question.answers:
        shown = render_fragment(answer, markup) if markup and not question.row else answer
        if found := place_in(row, shown, question.question):
            start, end = begin + found[0], begin + found[1]
            at = next(n for n, its in enumerate(passages) if its.start <= start < its.end)
            if end <= passages[at].end:
                return Located(document, passages, at, document.text[start:end], start)
    return None


def answered(question: DocumentQuestion, located: Located) -> Asked:
    """Puts a question to the passage that has its answer, as a reader is given it."""
    passage = located.passages[located.at]
    text = located.document.text[passage.start : passage.end]
    read = read_text(located.document.title, passage.heading, text)
    return Asked(question, read.text, located.answer, read.start + located.start - passage.start)


def in_section(question: DocumentQuestion) -> Asked | None:
    """Puts a question to the section that it was asked of; None if that lacks its answers."""
    markup = markup_of(question.document) or "text"
    text = render_fragment(question.context, markup)
    if not question.answers:
        return Asked(question, text)
    found = (_find(answer, markup, text, question.question) for answer in question.answers)
    match = next(filter(None, found), None)
    return Asked(question, text, match[0], match.start()) if match else None


def around_answer(question: DocumentQuestion, located: Located, rng: random.Random) -> Asked:
    """Puts a question to the passage of its answer with those around it, up to the next headings.

    How many characters around it is drawn.
    """
    document, own = located.document, located.passages[located.at]
    size = rng.uniform(*_SECTION_SIZES)
    begin = own.start - rng.uniform(0, size)
    headings = [heading.start for heading in document.headings]
    begin = max([begin, *(start for start in headings if start <= own.start)])
    end = min([begin + size, *(start for start in headings if start >= own.end)])
    section = [its for its in located.passages if begin <= its.start and its.end <= end]
    start = min(its.start for its in [own, *section])
    text = document.text[start : max(its.end for its in [own, *section])]
    return Asked(question, text, located.answer, located.start - start)


def _share(text: str, wanted: set[str]) -> float:
    words = words_of(text)
    return sum(word in wanted for word in words) / max(1, len(words))


def _find(answer: str, markup: str, text: str, question: str) -> re.Match[str] | None:
    """Finds an answer, as it is or without its markup, whatever white space is in it.

    Of several places, the first in a line that shares most words with the question.
    """
    asked = set(words_of(question))
    for words in (answer, render_fragment(answer, markup)):
        pattern = r"\s+".join(map(re.escape, words.split()))
        places = list(re.finditer(rf"(?<!\w){pattern}(?!\w)", text)) if pattern else []
        if places:
            return max(places, key=lambda place: len(asked.intersection(words_of(_line(place)))))
    return None


def _line(place: re.Match[str]) -> str:
    """The line in which a match begins."""
    begin = place.string.rfind("\n", 0, place.start()) + 1
    return place.string[begin:].partition("\n")[0]


def unanswered(question: DocumentQuestion, tree: Tree, right: Asked | None = None) -> list[Asked]:
    """Puts a question to the passages found for it that have none of its answers, best first.

    Args:
        right: What has the answer. If that is a table's short cell, which others may be like, a
            passage with the answer is left out only if it shares as many of the question's words.
    """
    answers = [f" {normalize_answer(answer)} " for answer in question.answers]
    asked = set(words_of(question.question))
    shared = len(asked.intersection(words_of(right.text))) if right else 0
    is_cell = right is not None and len(right.answer) <= _SHORT_CELL_CHARS
    is_cell = is_cell and question.kind in _OF_TABLES

    def answers_it(text: str) -> bool:
        if is_cell and len(asked.intersection(words_of(text))) < shared:
            return False
        return any(answer in f" {normalize_answer(text)} " for answer in answers)

    return [Asked(question, text) for text in tree.found(question.question) if not answers_it(text)]


def beside(question: DocumentQuestion, located: Located, rng: random.Random) -> list[Asked]:
    """Puts a question about a table to the passage before or after that of its answer."""
    if question.kind not in _OF_TABLES:
        return []
    document, here = located.document, located.passages[located.at]
    near = located.passages[max(0, located.at - 1) : located.at + 2]
    others = [its for its in near if its != here and here.heading.startswith(its.heading)]
    return [
        Asked(
            question,
            read_text(document.title, its.heading, document.text[its.start : its.end]).text,
        )
        for its in rng.sample(others, min(1, len(others)))
    ]


def _distinct(asked: Sequence[Asked]) -> list[Asked]:
    return list({its.text: its for its in asked}.values())


def read_lines(path: Path) -> Iterator[DocumentQuestion]:
    with path.open("rb") as file:
        for line in file:
            yield msgspec.json.decode(line, type=DocumentQuestion)


def generator_flags(doc: str | None) -> argparse.ArgumentParser:
    parser = make_parser(doc)
    add = parser.add_argument
    add("--output", type=Path, required=True, help="for the questions with their passages")
    add("--count", type=int, default=2000, help="how many questions to ask")
    add("--seed", type=int, default=0)
    return parser


def write_groups(groups: list[list[Asked]], flags: argparse.Namespace, rng: random.Random) -> None:
    """Writes as many questions as the flags of a generator say, each with its passages."""
    rng.shuffle(groups)
    write_squad([asked for group in groups[: flags.count] for asked in group], flags.output)


def write_squad(asked: Sequence[Asked], path: Path) -> None:
    data = []
    for number, one in enumerate(asked):
        has_answer = one.start >= 0
        answers = [{"text": one.answer, "answer_start": one.start}] if has_answer else []
        qa = {
            "id": f"{one.question.tree}/{number}",
            "question": one.question.question,
            "answers": answers,
            "is_impossible": not has_answer,
        }
        paragraph = {"context": one.text, "qas": [qa]}
        data.append({"title": one.question.kind, "paragraphs": [paragraph]})
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"data": data}, file, ensure_ascii=False)


def make_flags() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("data", type=Path, help="a folder of groups: questions.jsonl and docs_TREE.tar.gz in each")
    add("--questions", type=Path, nargs="*", default=[], metavar="GROUP.jsonl", help="more")
    add("--only", action="store_true", help="those of --questions, not those in DATA")
    add("--work", type=Path, required=True, help="for unpacked trees and their collections")
    add("--output", type=Path, required=True, help="for questions with an answer")
    add("--sections", type=Path, help="for questions of whole sections")
    add("--unanswered", type=Path, required=True, help="for questions without one")
    add("--passages", type=Path, help="for questions with all their passages")
    add("--seed", type=int, default=0)
    return parser


def main() -> None:
    turn_off_telemetry()
    flags = make_flags().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    rng = random.Random(flags.seed)
    trees = Trees(flags.data, flags.work)
    with_answer: list[Asked] = []
    in_sections: list[Asked] = []
    without: list[Asked] = []
    passages: list[Asked] = []
    own = [] if flags.only else sorted(flags.data.glob("*/questions.jsonl"))
    for path in [*own, *flags.questions]:
        group = path.parent.name if path.stem == "questions" else path.stem
        lines = list(read_lines(path))
        missing = missing_trees((its.tree for its in lines), flags.data, group)
        for name, count in missing.items():
            _LOG.warning("%s: %d questions left out, no %s", path, count, name)
        for question in lines:
            tree = trees.of(question.tree, question.document, group)
            if not tree:
                continue
            located = locate(question, tree)
            right = answered(question, located) if located else None
            found = unanswered(question, tree, right)
            count = _UNANSWERED if question.answers else FOUND
            without += rng.sample(found, min(count, len(found)))
            if located and right:
                with_answer.append(right)
                others = _distinct([*beside(question, located, rng), *found])
                others = [its for its in others if its.text != right.text]
                passages += [right, *others[:_COMPETING]]
            elif question.answers:
                _LOG.warning("%s: no passage has the answer to %r", path, question.question)
            else:
                passages += found[: _COMPETING + 1]
            if question.context:
                in_sections += [asked] if (asked := in_section(question)) else []
            elif located:
                in_sections.append(around_answer(question, located, rng))
    write_squad(with_answer, flags.output)
    if flags.sections:
        write_squad(in_sections, flags.sections)
    write_squad(without, flags.unanswered)
    if flags.passages:
        write_squad(passages, flags.passages)
    counts = len(with_answer), len(in_sections), len(without)
    _LOG.info("%d with an answer, %d in sections, %d without", *counts)


if __name__ == "__main__":
    main()
