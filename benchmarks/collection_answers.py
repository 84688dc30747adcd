"""What answers from a collection are worth, and how fast they come.

    python -m benchmarks.collection_answers train.json.gz --questions_file dev.json
    python -m benchmarks.collection_answers train.json.gz --questions_file dev.json --untimed

The collection has the paragraphs of all files. Exact match and F1 are those of the questions of
`--questions_file`, with 1, 5, 10 and 20 passages read, compared with those with each question's own
paragraph; with the search's score as a prior and without it. The same questions, asked of a
collection without their file, have no answer: how many get none. Last, latency and throughput of
a closed loop.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.record import Section, make_parser
from benchmarks.tables import markdown
from harness.server import RunningServer, running_server
from qa_service.client import Answer, QaClient, QaClientError
from qa_service.data.squad import SquadQuestion, exact_match, f1_score, read_squad
from qa_service.instance.model_folder.manifest import MANIFEST_FILE, load_manifest, save_manifest
from qa_service.machine import num_cpus
from qa_service.programs.load.generator import measure
from qa_service.programs.load.plan import LoadPlan, check_passage
from qa_service.programs.load.wire import CollectionWire
from qa_service.retrieval.build import IndexArgs, Reporter, build
from qa_service.retrieval.manifest import load_head

DEPTHS = (1, 5, 10, 20)
CLIENTS = (1, 20)
QUICK_QUESTIONS = 40
WARMUP_S, DURATION_S, QUICK_S = 5.0, 30.0, 2.0
TIMEOUT_MS = 600_000


def index(folder: Path, name: str, files: Iterable[Path]) -> Path:
    """Makes a collection of files, on all cores."""
    args = IndexArgs(sources=tuple(files), output=folder / name, num_threads=num_cpus())
    build(args, Reporter())
    return folder / name


def without_prior(model: Path, folder: Path) -> Path:
    """The same model, but for what the search's score is worth to it."""
    copy = folder / "without"
    copy.mkdir()
    for file in model.iterdir():
        if file.name != MANIFEST_FILE:
            (copy / file.name).symlink_to(file.resolve())
    manifest = load_manifest(model)
    reading = msgspec.structs.replace(manifest.reading, passage_weight=0.0)
    save_manifest(copy, msgspec.structs.replace(manifest, reading=reading))
    return copy


@contextmanager
def serving(model: Path, folder: Path, collections: dict[str, Path]) -> Iterator[RunningServer]:
    """Runs a server with these collections."""
    config = folder / "server.toml"
    tables = (f'[collections.{name}]\npath = "{path}"\n' for name, path in collections.items())
    config.write_text("".join(tables) + f"[connections]\nrequest_timeout_ms = {TIMEOUT_MS}\n")
    with running_server(model.resolve(), "--config", str(config)) as server:
        yield server


def ask(
    server: RunningServer, pairs: Sequence[tuple[str, str | None]], **options: object
) -> list[Answer]:
    """Asks all; an error ends the run."""
    with QaClient("localhost", server.port, None) as client:
        results = client.ask_many(pairs, max_in_flight=8, **options)  # type: ignore[arg-type]
    for result in results:
        if isinstance(result, QaClientError):
            raise result
    return [result for result in results if isinstance(result, Answer)]


def score(answers: Sequence[Answer], questions: Sequence[SquadQuestion]) -> dict[str, float]:
    """Exact match, F1 and the share of "no answer", in percent."""
    pairs = list(zip(answers, questions, strict=True))
    sums = {
        "exact_match": sum(exact_match(answer.answer, one.answers) for answer, one in pairs),
        "f1": sum(f1_score(answer.answer, one.answers) for answer, one in pairs),
        "unknown": sum(not answer.known for answer in answers),
    }
    return {name: round(100 * value / len(pairs), 1) for name, value in sums.items()}


def qualities(
    server: RunningServer, questions: Sequence[SquadQuestion], collection: str
) -> dict[str, dict[str, float]]:
    """The scores by how many passages are read."""
    pairs = [(question.question, None) for question in questions]
    return {
        str(depth): score(ask(server, pairs, collection=collection, max_passages=depth), questions)
        for depth in DEPTHS
    }


def timed(
    server: RunningServer, questions: Sequence[SquadQuestion], seconds: float
) -> list[dict[str, float]]:
    """Latency and throughput with the configuration's number of passages, by clients."""
    rows = []
    for clients in CLIENTS:
        plan = LoadPlan(
            host="localhost", port=server.port, questions=questions, duration_s=seconds,
            num_simultaneous_clients=clients, wire=partial(CollectionWire, "all"),
            check=check_passage,
        )  # fmt: skip
        measure(dataclasses.replace(plan, duration_s=min(WARMUP_S, seconds)))
        report = measure(plan)
        rows.append(
            {
                "clients": clients,
                "answers_per_s": round(report.throughput, 2),
                "p50_ms": round(report.percentiles_ms[50], 1),
                "p99_ms": round(report.percentiles_ms[99], 1),
                "failed": report.num_failed,
            }
        )
    return rows


def table(gold: dict[str, float], columns: dict[str, dict[str, dict[str, float]]]) -> str:
    """Scores by passages read, a column for each kind of run."""
    rows: list[list[object]] = [["its own paragraph", _words(gold), ""]]
    rows += [
        [f"{depth} passages", *(_words(column[str(depth)]) for column in columns.values())]
        for depth in DEPTHS
    ]
    return markdown(["read (F1 / exact match / no answer, %)", *columns], rows)


def _words(scores: dict[str, float]) -> str:
    return f"{scores['f1']:.1f} / {scores['exact_match']:.1f} / {scores['unknown']:.1f}"


def make_flags() -> argparse.ArgumentParser:
    """The flags."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("paths", nargs="+", type=Path, help="more files in SQuAD's format")
    parser.add_argument("--untimed", action="store_true", help="only what time does not change")
    parser.add_argument("--num_questions", type=int, help="number of questions, drawn at random")
    return parser


def main() -> None:
    """Measures everything."""
    flags = make_flags().parse_args()
    title = "Answers from a collection"
    section = Section("collection_answers", title, flags, ("tantivy",))
    questions = [question for question in read_squad(flags.questions_file) if question.answers]
    number = QUICK_QUESTIONS if flags.quick else flags.num_questions or len(questions)
    questions = random.Random(0).sample(questions, min(number, len(questions)))
    with tempfile.TemporaryDirectory() as name:
        run(Path(name), flags, questions, section)
    section.close()


def run(
    folder: Path, flags: argparse.Namespace, questions: Sequence[SquadQuestion], section: Section
) -> None:
    """Measures, and says what was found."""
    collections = {
        "all": index(folder, "all", [flags.questions_file, *flags.paths]),
        "others": index(folder, "others", flags.paths),
    }
    raw = section.raw
    raw["passages"] = passages = {
        name: load_head(path).passages for name, path in collections.items()
    }
    section.say(
        f"{passages['all']:,} passages; {passages['others']:,} without those of the questions."
    )
    with serving(flags.model, folder, collections) as server:
        gold = score(ask(server, [(one.question, one.context) for one in questions]), questions)
        found = qualities(server, questions, "all")
        absent = qualities(server, questions, "others")
        raw.update(questions_asked=len(questions), gold=gold, found=found, absent=absent)
        if not flags.untimed:
            raw["timed"] = timed(server, questions, QUICK_S if flags.quick else DURATION_S)
    with serving(without_prior(flags.model, folder), folder, collections) as server:
        raw["without_prior"] = plain = qualities(server, questions, "all")
    section.say(table(gold, {"with the search's score": found, "without it": plain}))
    correct = [[f"{depth} passages", absent[str(depth)]["unknown"]] for depth in DEPTHS]
    header = ["read, of a collection without an answer", "no answer, rightly, %"]
    section.say(markdown(header, correct))
    if isinstance(rows := raw.get("timed"), list):
        header = ["clients", "answers/s", "p50 ms", "p99 ms", "failed"]
        section.say(markdown(header, [list(row.values()) for row in rows]))


if __name__ == "__main__":
    main()
