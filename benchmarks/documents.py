"""What answers from documents are worth: right ones by kind, with finding apart from reading.

    python -m benchmarks.documents docs/ --questions questions_*.jsonl

A line of a question file has `tree`, `document`, `question`, `answers` (any of them is right; none
if the documents do not answer), `kind`, and `context`, the section with the answer as it stands in
the file, or "" for some passages around the answer. A tree has its documents, of any kind that
`qa-index` reads, in `docs/TREE`, or in `docs`. Each tree is indexed, and asked through a server. An
answer is right if its F1 with an accepted one is at least 0.5, and "no answer" if there is none.
Scores are judged by the area under the ROC curve of the answers that are given.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.record import Section, make_parser, markdown, percentile
from harness.server import RunningServer, running_server
from qa_service.client import Answer, QaClient, QaClientError
from qa_service.data.squad import exact_match, f1_score, normalize_answer
from qa_service.machine import num_cpus
from qa_service.retrieval.build import IndexArgs, Reporter, build
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.encoder_folder import DEFAULT_ENCODER, SharedEncoder
from qa_service.retrieval.manifest import load_head
from training.documents import DocumentQuestion, around_answer, locate, read_lines
from training.trees import Tree, render_fragment

RIGHT = 0.5
DEPTHS = (1, 5, 10)
QUICK_QUESTIONS = 20
TIMEOUT_MS = 600_000
NO_ANSWER = "none"
"""The kind of a question that the documents do not answer."""


class Asked(msgspec.Struct, frozen=True):
    """A question, and what was answered.

    Attributes:
        found: The answer from its tree's collection, and its score.
        read: The answer from the section that has it.
        forced: The same, from a model that may not abstain.
        rank: The place, from 0, of the first of `DEPTHS[-1]` passages that has an accepted answer;
            that number if none has.
    """

    question: DocumentQuestion
    found: str
    score: float
    read: str
    forced: str
    rank: int


def index(folder: Path, name: str, documents: Path) -> Path:
    """A tree's collection, which may be there already."""
    if (folder / name).is_dir():
        return folder / name
    args = IndexArgs(sources=(documents,), output=folder / name, num_threads=num_cpus())
    build(args, Reporter())
    return folder / name


@contextmanager
def serving(
    models: Sequence[Path], folder: Path, collections: dict[str, Path], min_score: float
) -> Iterator[RunningServer]:
    """A server of these collections; several models are a cascade."""
    config = folder / "server.toml"
    tables = [f'[collections.{name}]\npath = "{path}"\n' for name, path in collections.items()]
    if len(models) > 1:
        names = [model.name for model in models]
        tables += [f'[models.{model.name}]\npath = "{model.resolve()}"\n' for model in models]
        tables += [f"[routes.default]\ncascade = {names}\nmin_score = {min_score}\n"]
        tables += ["ask_next_if_unknown = true\n"]
    config.write_text("".join(tables) + f"[connections]\nrequest_timeout_ms = {TIMEOUT_MS}\n")
    with running_server(models[0].resolve(), "--config", str(config)) as server:
        yield server


def ask(
    server: RunningServer, pairs: Sequence[tuple[str, str | None]], **options: object
) -> list[Answer]:
    with QaClient("localhost", server.port, None) as client:
        results = client.ask_many(pairs, max_in_flight=8, **options)  # type: ignore[arg-type]
    for result in results:
        if isinstance(result, QaClientError):
            raise result
    return [result for result in results if isinstance(result, Answer)]


def measure(
    server: RunningServer, questions: Sequence[DocumentQuestion], documents: Path, folder: Path
) -> list[Asked]:
    """Asks a tree's questions, of its collection in `folder` and of their sections."""
    name, tree = questions[0].tree, Tree(documents, folder)
    collection = Collection(folder, SharedEncoder(DEFAULT_ENCODER))
    found = ask(server, [(one.question, None) for one in questions], collection=name)
    texts = [section_of(one, tree) for one in questions]
    pairs = [(one.question, text) for one, text in zip(questions, texts, strict=True) if text]
    answers = iter(ask(server, pairs, top_k=2))
    sections = [next(answers) if text else None for text in texts]
    return [
        Asked(
            one,
            its.answer,
            its.score,
            read.answer if read else "",
            _forced(read),
            rank(one, collection),
        )
        for one, its, read in zip(questions, found, sections, strict=True)
    ]


def section_of(question: DocumentQuestion, tree: Tree) -> str:
    """The section that has a question's answer; "" if it has none."""
    if question.context:
        return render_fragment(question.context, question.document)
    if located := locate(question, tree):
        return around_answer(question, located, random.Random(question.question)).text
    return ""


def _forced(section: Answer | None) -> str:
    spans = section.alternatives if section else ()
    return next((span.answer for span in spans if span.known), "")


def rank(question: DocumentQuestion, collection: Collection) -> int:
    answers = [f" {normalize_answer(answer)} " for answer in question.answers]
    passages = [found.passage.text for found in collection.search(question.question, DEPTHS[-1])]
    texts = [f" {normalize_answer(text)} " for text in passages]
    having = (place for place, text in enumerate(texts) if any(a in text for a in answers))
    return next(having, DEPTHS[-1])


def latencies(server: RunningServer, questions: Sequence[DocumentQuestion]) -> list[float]:
    took: list[float] = []
    with QaClient("localhost", server.port, None) as client:
        for one in questions:
            started_s = time.perf_counter()
            client.ask(one.question, collection=one.tree)
            took.append(1e3 * (time.perf_counter() - started_s))
    return took


def summary(asked: Sequence[Asked]) -> dict[str, float]:
    """What a group of questions came to, in percent; a figure without questions is left out."""
    having = [one for one in asked if one.question.answers]
    without = [one for one in asked if not one.question.answers]
    columns: dict[str, tuple[Sequence[Asked], Callable[..., float]]] = {
        "right": (asked, lambda one: _f1(one, one.found) >= RIGHT),
        "exact": (asked, lambda one: exact_match(one.found, one.question.answers)),
        "f1": (asked, lambda one: _f1(one, one.found)),
        "given_up": (having, lambda one: not one.found),
        "no_answer_right": (without, lambda one: not one.found),
        "section_f1": (having, lambda one: _f1(one, one.read)),
        "section_forced_f1": (having, lambda one: _f1(one, one.forced)),
        "section_given_up": (having, lambda one: not one.read),
    }
    for depth in DEPTHS:
        columns[f"in_{depth}"] = (having, lambda one, depth=depth: one.rank < depth)
    figures = {
        name: round(100 * sum(map(value, group)) / len(group), 1)
        for name, (group, value) in columns.items()
        if group
    }
    given = [one for one in asked if one.found]
    right = [one.score for one in given if _f1(one, one.found) >= RIGHT]
    wrong = [one.score for one in given if _f1(one, one.found) < RIGHT]
    if right and wrong:
        figures["auc"] = round(area_under_curve(right, wrong), 2)
    return figures


def area_under_curve(right: Sequence[float], wrong: Sequence[float]) -> float:
    """How often a right answer has a higher score than a wrong one; of equal ones half.

    It is the area under the ROC curve (Hanley and McNeil 1982).
    """
    over = sum((one > other) + 0.5 * (one == other) for one in right for other in wrong)
    return over / (len(right) * len(wrong))


def _f1(one: Asked, answer: str) -> float:
    return f1_score(answer, one.question.answers)


def table(groups: Mapping[str, Sequence[Asked]]) -> str:
    names = {
        "right": "right, %", "f1": "F1", "given_up": "given up, %",
        "no_answer_right": "no answer, rightly, %", "auc": "score tells right from wrong",
        "in_1": "in 1 passage, %", "in_5": "in 5", "in_10": "in 10",
        "section_f1": "F1, section given", "section_forced_f1": "may not abstain",
    }  # fmt: skip
    rows = []
    for name, asked in groups.items():
        figures = summary(asked)
        rows.append([name, len(asked), *(figures.get(column, "-") for column in names)])
    return markdown(["questions", "", *names.values()], rows)


def groups_of(asked: Sequence[Asked]) -> dict[str, list[Asked]]:
    """All questions, then those of each tree, of each kind of file (of several), of each kind."""
    groups: dict[str, list[Asked]] = {"all": list(asked)}
    for one in asked:
        groups.setdefault(f"of {one.question.tree}", []).append(one)
    endings = sorted({Path(one.question.document).suffix for one in asked if one.question.document})
    if len(endings) > 1:
        for ending in endings:
            its = [one for one in asked if Path(one.question.document).suffix == ending]
            groups[f"in {ending}"] = its
    for one in sorted(asked, key=lambda one: one.question.kind):
        groups.setdefault(one.question.kind, []).append(one)
    return groups


def peak_mib(pids: Sequence[int]) -> float:
    lines = (line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def run(
    folder: Path, documents: Path, questions: Sequence[DocumentQuestion],
    flags: argparse.Namespace, section: Section,
) -> None:  # fmt: skip
    by_tree: dict[str, list[DocumentQuestion]] = {}
    for one in questions:
        by_tree.setdefault(one.tree, []).append(one)
    folder.mkdir(parents=True, exist_ok=True)
    started_s = time.perf_counter()
    own = {tree: documents / tree for tree in by_tree}
    folders = {tree: path if path.is_dir() else documents for tree, path in own.items()}
    collections = {tree: index(folder, tree, its) for tree, its in folders.items()}
    indexed_s = time.perf_counter() - started_s
    models = [model for model in (flags.model, flags.next_model) if model]
    with serving(models, folder, collections, flags.min_score) as server:
        asked = [
            one
            for tree, its in by_tree.items()
            for one in measure(server, its, folders[tree], collections[tree])
        ]
        took = latencies(server, questions)
        memory = peak_mib([server.process.pid, *server.worker_pids()])
    passages = sum(load_head(path).passages for path in collections.values())
    groups = groups_of(asked)
    section.raw["groups"] = {name: summary(group) for name, group in groups.items()}
    section.say(table(groups))
    section.say(
        f"There are {passages:,} passages; to index what was not yet took {indexed_s:.0f} s. A "
        f"question took {percentile(took, 50):.0f} ms (p50), {sum(took) / len(took):.0f} in the "
        f"mean and {percentile(took, 99):.0f} (p99), one after another; server and workers had at "
        f"most {memory:.0f} MiB."
    )


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("documents", type=Path, help="a folder with a folder for each tree, or one tree")
    add("--questions", type=Path, nargs="+", required=True, metavar="FILE")
    add("--collections", type=Path, help="where indexes are kept for a next run")
    add("--next_model", type=Path, help="a second model, asked where the first is less sure")
    add("--min_score", type=float, default=0.5, help="that ends the cascade")
    add("--name", default="documents", help="of the files of figures")
    flags = parser.parse_args()
    section = Section(flags.name, "Answers from documents", flags, ("tantivy",))
    questions = [one for path in flags.questions for one in read_lines(path)]
    if flags.quick:
        questions = questions[:QUICK_QUESTIONS]
    with tempfile.TemporaryDirectory() as name:
        run(flags.collections or Path(name), flags.documents, questions, flags, section)
    section.close()


if __name__ == "__main__":
    main()
