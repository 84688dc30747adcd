"""Texts of 1 to 245 kB with one planted answer each: how many are found.

    python -m benchmarks.planted --questions_file dev.json
    python -m benchmarks.planted --questions_file dev.json --before PATH    # beside a checkout

The texts are paragraphs of the file, drawn at random; a sentence with the answer stands between two
of them. It counts as found if the answer holds it, and starts within that sentence.
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fairness import checkouts
from benchmarks.record import Section, make_parser
from harness.server import running_server
from qa_service.client import QaClient
from qa_service.data.squad import read_squad

FLAGS = (
    *("--inference_engine_type", "onnx", "--precision", "fp32"),
    *("--request_timeout_ms", "0", "--execution_timeout_ms", "600000"),
)
NUM_TEXTS = 50
SHORTEST_CHARS, LONGEST_CHARS = 1_000, 245_000
PLANTED = (
    ("Who opened the bakery on Crooked Lane?", "The bakery on Crooked Lane was opened by {}."),
    ("Who painted the harbour of Skerrow?", "The harbour of Skerrow was painted by {}."),
    ("Where is the mill of Aldous kept?", "The mill of Aldous is kept in {}."),
    ("Who was the first keeper of the Pugh lamp?", "The first keeper of the Pugh lamp was {}."),
    ("Where did the Wren expedition end?", "The Wren expedition ended in {}."),
)
NAMES = ("Rosalind Achterberg", "Tobias Wren", "Portnahaven", "Idris Pugh", "Margaret Hale")


@dataclass(frozen=True, slots=True)
class Planted:
    """A long text, the sentence that was planted in it and where, and what is asked."""

    question: str
    answer: str
    sentence: str
    start: int
    text: str


def make_texts(contexts: list[str], num_texts: int) -> list[Planted]:
    """Texts whose lengths are even on a logarithmic scale."""
    rng = random.Random(0)
    made = []
    for i in range(num_texts):
        chars = SHORTEST_CHARS * (LONGEST_CHARS / SHORTEST_CHARS) ** (i / (num_texts - 1))
        paragraphs: list[str] = []
        while sum(map(len, paragraphs)) < chars:
            paragraphs.append(rng.choice(contexts))
        question, frame = PLANTED[i % len(PLANTED)]
        answer = rng.choice(NAMES)
        sentence = frame.format(answer)
        paragraphs.insert(rng.randrange(len(paragraphs) + 1), sentence)
        text = "\n".join(paragraphs)
        made.append(Planted(question, answer, sentence, text.index(sentence), text))
    return made


def find(port: int, texts: list[Planted]) -> list[bool]:
    """Which of the planted answers a server finds; two texts at a time."""
    with QaClient("localhost", port, timeout_s=3600.0) as client, ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda planted: client.ask(planted.question, planted.text), texts))
    return [
        answer.start is not None
        and planted.answer in answer.answer
        and planted.start <= answer.start < planted.start + len(planted.sentence)
        for answer, planted in zip(answers, texts, strict=True)
    ]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--before", type=Path, help="another checkout, measured too")
    flags = parser.parse_args()
    section = Section("planted", "Planted answers in long texts", flags)
    contexts = list(dict.fromkeys(item.context for item in read_squad(flags.questions_file)))
    texts = make_texts(contexts, 8 if flags.quick else NUM_TEXTS)
    rows = ["|  | found | lengths that were missed, characters |", "|---|---|---|"]
    for name, (checkout, model) in checkouts(flags).items():
        with running_server(model, *FLAGS, root=checkout) as server:
            hits = find(server.port, texts)
        missed = [len(planted.text) for hit, planted in zip(hits, texts, strict=True) if not hit]
        section.raw[name] = {"found": sum(hits), "of": len(hits), "missed_chars": missed}
        rows.append(f"| {name} | {sum(hits)} of {len(hits)} | {', '.join(map(str, missed))} |")
    section.say("\n".join(rows))
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
