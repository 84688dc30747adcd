"""What an index of passages costs, and how often it finds the passage with the answer.

    python -m benchmarks.collection train.json.gz more.json.gz --questions_file dev.json

The collection is made of the different paragraphs of all files, those of the questions too. The
second one has `--texts` texts: the same, and others of sentences drawn at random from other files.
Recall counts questions for which a passage with an accepted answer at its place is among the first
1, 5, 10, 20.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.record import Section, make_parser, markdown, percentile
from harness.process import MIB, rss_bytes
from qa_service.data.squad import SquadQuestion, read_squad
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.encoder_folder import DEFAULT_ENCODER, SharedEncoder
from qa_service.retrieval.passages import sentences
from qa_service.wire.messages import Passage

DEPTHS = (1, 5, 10, 20)
QUICK_QUESTIONS = 200
SENTENCES_PER_TEXT = 4
INDEX = "from qa_service.retrieval.index_main import main; import sys; code = main()"
PEAK = "print(re.search(r'VmHWM:\\s*(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])"


Figures = dict[str, Any]


def paragraphs(paths: Iterable[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        for article in json.loads(data)["data"]:
            for paragraph in article["paragraphs"]:
                found.setdefault(paragraph["context"], article.get("title", ""))
    return found


def mixed(texts: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Texts of sentences drawn at random from others; there is no end of them."""
    drawn = random.Random(seed)
    while True:
        parts = []
        for text in drawn.choices(texts, k=SENTENCES_PER_TEXT):
            start, end, *_ = drawn.choice(list(sentences(text, 0, len(text), 150)))
            parts.append(text[start:end])
        yield " ".join(parts)


def write(path: Path, texts: Iterable[tuple[str, str]]) -> int:
    """Writes titles and texts as JSON lines, each with its number; returns their bytes."""
    size = 0
    with path.open("w") as file:
        for number, (title, text) in enumerate(texts):
            size += len(text.encode())
            file.write(json.dumps({"id": number, "title": title, "text": text}) + "\n")
    return size


def index(source: Path, output: Path, text_bytes: int) -> tuple[Figures, Collection]:
    """Makes a collection; what that took, and what it takes."""
    code = f"{INDEX}\nimport pathlib, re\n{PEAK}\nsys.exit(code)"
    began_s = time.perf_counter()
    command = [sys.executable, "-c", code, str(source), "--output", str(output)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    index_s = time.perf_counter() - began_s
    peak_kib = int(done.stdout.split()[-1])
    before, began_s = rss_bytes(os.getpid()) / MIB, time.perf_counter()
    collection = Collection(output, SharedEncoder(DEFAULT_ENCODER))
    open_ms = 1000 * (time.perf_counter() - began_s)
    head = collection.head
    size = sum(path.stat().st_size for path in (output / head.index).iterdir())
    indexed = {
        "passages": head.passages,
        "text_bytes": text_bytes,
        "index_s": index_s,
        "index_rss_mib": peak_kib / 1024,
        "size_bytes": size,
        "open_ms": open_ms,
        "rss_before_mib": before,
    }
    return indexed, collection


def search(
    collection: Collection, questions: Sequence[SquadQuestion], numbers: dict[str, int]
) -> Figures:
    """Searches for each question, once to warm up and once with a clock.

    Args:
        numbers: The number of each paragraph in the file that was indexed.
    """
    durations_us, ranks, paragraph_ranks = [], [], []
    for question in questions:
        collection.search(question.question, max(DEPTHS))
    for question in questions:
        began_s = time.perf_counter()
        collection.search(question.question, 10)
        durations_us.append(1e6 * (time.perf_counter() - began_s))
        found = [its.passage for its in collection.search(question.question, max(DEPTHS))]
        gold = f"#{numbers[question.context]}"
        in_gold = [passage.document.endswith(gold) for passage in found]
        pairs = zip(in_gold, found, strict=True)
        ranks.append(_rank([is_gold and _holds(passage, question) for is_gold, passage in pairs]))
        paragraph_ranks.append(_rank(in_gold))
    return {
        "questions": len(questions),
        **{f"p{percent}_us": percentile(durations_us, percent) for percent in (50, 99)},
        "rss_mib": rss_bytes(os.getpid()) / MIB,
        "recall": _recall(ranks),
        "paragraph_recall": _recall(paragraph_ranks),
    }


def _holds(passage: Passage, question: SquadQuestion) -> bool:
    """Whether an accepted answer stands in the passage, at its place in the paragraph."""
    return any(
        passage.start <= place and place + len(words) <= passage.end
        for place, words in zip(question.answer_starts, question.answers, strict=True)
    )


def _rank(matches: Sequence[bool]) -> float:
    return matches.index(True) if True in matches else float("inf")


def _recall(ranks: Sequence[float]) -> dict[int, float]:
    return {depth: 100 * sum(rank < depth for rank in ranks) / len(ranks) for depth in DEPTHS}


def rows(found: Figures) -> dict[str, str]:
    among = {"answer": found["recall"], "its paragraph": found["paragraph_recall"]}
    return {
        "passages": f"{found['passages']}",
        "text": f"{found['text_bytes'] / MIB:.1f} MiB",
        "index": f"{found['size_bytes'] / MIB:.1f} MiB",
        "time to make it": f"{found['index_s']:.1f} s",
        "memory to make it": f"{found['index_rss_mib']:.0f} MiB",
        "time to open it": f"{found['open_ms']:.1f} ms",
        "memory to search it": f"{found['rss_mib'] - found['rss_before_mib']:.1f} MiB",
        "search, p50": f"{found['p50_us']:.0f} µs",
        "search, p99": f"{found['p99_us']:.0f} µs",
        **{f"{what} among {n}": f"{of[n]:.1f} %" for what, of in among.items() for n in DEPTHS},
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="more files in SQuAD's format")
    parser.add_argument("--texts", type=int, default=100_000, help="the larger collection's")
    flags = parser.parse_args()
    section = Section("collection", "A collection: index and search", flags, ("tantivy",))
    questions = [q for q in read_squad(flags.questions_file) if q.answers]
    questions = questions[:QUICK_QUESTIONS] if flags.quick else questions
    texts = paragraphs([flags.questions_file, *flags.paths])
    numbers = dict(zip(texts, count(), strict=False))
    own = [(title, text) for text, title in texts.items()]
    columns = []
    others = list(paragraphs(flags.paths).keys() - paragraphs([flags.questions_file]).keys())
    others.sort()
    for num_texts in (0, flags.texts):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "texts.jsonl")
            more = islice(mixed(others), max(0, num_texts - len(own)))
            text_bytes = write(source, [*own, *(("", text) for text in more)])
            indexed, collection = index(source, Path(folder, "out"), text_bytes)
            found = indexed | search(collection, questions, numbers)
            del collection
        columns.append(rows(found))
        section.raw[f"{found['passages']} passages"] = found
        if flags.quick or not others:
            break
    head = ["", *(f"{column.pop('passages')} passages" for column in columns)]
    section.say(markdown(head, [[name, *(its[name] for its in columns)] for name in columns[0]]))
    section.close()


if __name__ == "__main__":
    main()
