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
import functools
import gzip
import json
import logging
import random
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from qa_service.child_program import turn_off_telemetry
from qa_service.command_line import make_parser
from qa_service.data.squad import normalize_answer
from qa_service.evaluation.unanswerable import words_of
from qa_service.retrieval.build import IndexArgs, Reporter, build
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.documents import Document, Passage, ReadLimits
from qa_service.retrieval.encoder import SharedEncoder
from qa_service.retrieval.encoder_folder import DEFAULT_ENCODER
from qa_service.retrieval.files import format_of
from qa_service.retrieval.formats import FORMATS, read_markup
from qa_service.retrieval.formats.markups import markup_of
from qa_service.retrieval.manifest import MANIFEST_FILE
from qa_service.retrieval.passages import cut
from qa_service.retrieval.rendering import render_fragment
from qa_service.retrieval.retriever import read_text

_LOG = logging.getLogger(__name__)
_FOUND = 10
"""How many passages are looked at for some without an answer."""
_UNANSWERED = 2
"""How many of these, drawn, a question that has an answer is put to; any other is put to all."""
_COMPETING = 4
"""How many of these, the best, compete with the passage that has the answer."""
_SECTION_SIZES = (300, 2_000)
"""Characters of a section that is joined from passages; drawn evenly between these."""


class DocumentQuestion(msgspec.Struct, frozen=True):
    """A line of a question file.

    Attributes:
        document: Its path in the tree.
        answers: Spans of the document, the best first; none if it does not answer.
        heading: One above the answer.
        context: The section that has the answer, as it stands in the file; "" to look for it.
    """

    tree: str
    document: str
    question: str
    answers: tuple[str, ...]
    kind: str = ""
    heading: str = ""
    context: str = ""


class Asked(msgspec.Struct, frozen=True):
    """A question put to a text, without an answer if `start` is negative."""

    question: DocumentQuestion
    text: str
    answer: str = ""
    start: int = -1


class Tree:
    """The documents of a tree, and their collection.

    Args:
        folder: The tree's documents.
        index: For the collection, made once.
        encoder: Embeds passages and questions, if it is prepared.
    """

    def __init__(self, folder: Path, index: Path, encoder: Path = DEFAULT_ENCODER) -> None:
        self._folder = folder
        self._index = index
        self._encoder = encoder
        self._documents: dict[str, Sequence[Document]] = {}
        if not (index / MANIFEST_FILE).exists():
            build(IndexArgs(sources=(folder,), output=index, encoder=encoder), Reporter())

    @functools.cached_property
    def _collection(self) -> Collection:
        return Collection(self._index, SharedEncoder(self._encoder))

    def documents(self, name: str) -> Sequence[Document]:
        """The documents of a file of the tree, as the server has them; of most files one."""
        if name not in self._documents:
            read = FORMATS.get(format_of(name), read_markup)
            with (self._folder / name).open("rb") as stream:
                found = read(stream, name, ReadLimits().max_file_bytes)
                self._documents[name] = [one for one in found if isinstance(one, Document)]
        return self._documents[name]

    def found(self, question: str) -> list[str]:
        """What the reader is given of the passages that match a question best."""
        passages = (its.passage for its in self._collection.search(question, _FOUND))
        return [read_text(its.title, its.heading, its.text).text for its in passages]


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
    markup = markup_of(question.document) or "text"
    context = render_fragment(question.context, markup) if question.context else ""
    wanted = set(words_of(context or f"{question.heading} {question.question}"))
    documents = tree.documents(question.document)
    passages = [(document, list(cut(document))) for document in documents]
    for answer in question.answers:
        found = [
            (_share(f"{its.heading} {text}", wanted), document, own, at, match)
            for document, own in passages
            for at, its in enumerate(own)
            if (text := document.text[its.start : its.end])
            and (match := _find(answer, markup, text, question.question))
        ]
        if found:
            _, document, own, at, match = max(found, key=lambda one: one[0])
            return Located(document, own, at, match[0], own[at].start + match.start())
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
    """The share of a text's words that are wanted."""
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


def unanswered(question: DocumentQuestion, tree: Tree) -> list[Asked]:
    """Puts a question to the passages found for it that have none of its answers, best first."""
    answers = [f" {normalize_answer(answer)} " for answer in question.answers]
    return [
        Asked(question, text)
        for text in tree.found(question.question)
        if not any(answer in f" {normalize_answer(text)} " for answer in answers)
    ]


def read_lines(path: Path) -> Iterator[DocumentQuestion]:
    """The questions of a file of JSON lines."""
    with path.open("rb") as file:
        for line in file:
            yield msgspec.json.decode(line, type=DocumentQuestion)


def write_squad(asked: Sequence[Asked], path: Path) -> None:
    """Writes questions as SQuAD JSON."""
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


def _archive_name(tree: str) -> str:
    return f"docs_{tree}.tar.gz"


def missing_trees(questions: Sequence[DocumentQuestion], group: Path) -> Counter[str]:
    """The archives that are not in a group's folder, and how many questions are of each."""
    names = Counter(_archive_name(question.tree) for question in questions)
    return Counter({name: count for name, count in names.items() if not (group / name).exists()})


def open_tree(archive: Path, work: Path) -> Tree:
    """Unpacks `docs_TREE.tar.gz` in a folder for this, once, and indexes it."""
    name = archive.name.removeprefix("docs_").removesuffix(".tar.gz")
    folder, index = (work / kind / archive.parent.name / name for kind in ("trees", "indexes"))
    if not folder.exists():
        folder.mkdir(parents=True)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    inner = folder / name
    return Tree(inner if inner.is_dir() else folder, index)


def make_flags() -> argparse.ArgumentParser:
    """The flags."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("data", type=Path, help="a folder of groups: questions.jsonl and docs_TREE.tar.gz in each")
    add("--questions", type=Path, nargs="*", default=[], metavar="GROUP.jsonl", help="more")
    add("--work", type=Path, required=True, help="for unpacked trees and their collections")
    add("--output", type=Path, required=True, help="for questions with an answer")
    add("--sections", type=Path, help="for questions of whole sections")
    add("--unanswered", type=Path, required=True, help="for questions without one")
    add("--passages", type=Path, help="for questions with all their passages")
    add("--seed", type=int, default=0)
    return parser


def main() -> int:
    """Writes the files."""
    turn_off_telemetry()
    flags = make_flags().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    rng = random.Random(flags.seed)
    trees: dict[Path, Tree] = {}
    with_answer: list[Asked] = []
    in_sections: list[Asked] = []
    without: list[Asked] = []
    passages: list[Asked] = []
    for path in [*sorted(flags.data.glob("*/questions.jsonl")), *flags.questions]:
        group = path.parent.name if path.stem == "questions" else path.stem
        lines = list(read_lines(path))
        missing = missing_trees(lines, flags.data / group)
        for name, count in missing.items():
            _LOG.warning("%s: %d questions left out, no %s", path, count, name)
        for question in lines:
            archive = flags.data / group / _archive_name(question.tree)
            if archive.name in missing:
                continue
            if archive not in trees:
                trees[archive] = open_tree(archive, flags.work)
            located = locate(question, trees[archive])
            found = unanswered(question, trees[archive])
            count = _UNANSWERED if question.answers else _FOUND
            without += rng.sample(found, min(count, len(found)))
            if located:
                with_answer.append(answered(question, located))
                passages += [with_answer[-1], *found[:_COMPETING]]
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
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
