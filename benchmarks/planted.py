"""Texts of 1 to 245 kB with one planted answer each: how many are found.

    python -m benchmarks.planted --questions_file dev.json
    python -m benchmarks.planted --questions_file dev.json --before PATH    # beside a checkout

The texts are paragraphs of the file, drawn at random; a sentence with the answer stands between two
of them. It counts as found if the answer starts within that sentence, and as whole if it holds all
of the planted name too: of "Idris Pugh" a model may well take "Idris".
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fairness import FLAGS
from benchmarks.record import Section, checkouts_of, make_parser
from harness.server import EXACT_ENGINE, running_server
from qa_service.client import QaClient
from qa_service.data.squad import read_squad

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


def make_texts(contexts: list[str], num_texts: int, seed: int) -> list[Planted]:
    """Texts whose lengths are even on a logarithmic scale."""
    rng = random.Random(seed)
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


def find(port: int, texts: list[Planted]) -> tuple[list[Planted], list[Planted]]:
    """The texts whose answers a server finds, and those it gives whole; two texts at a time."""
    with QaClient("localhost", port, timeout_s=3600.0) as client, ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda planted: client.ask(planted.question, planted.text), texts))
    found, whole = [], []
    for planted, answer in zip(texts, answers, strict=True):
        if answer.start is None or not 0 <= answer.start - planted.start < len(planted.sentence):
            continue
        found.append(planted)
        if planted.answer in answer.answer:
            whole.append(planted)
    return found, whole


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--before", type=Path, help="another checkout, measured too")
    parser.add_argument("--seed", type=int, default=0, help="what the texts depend on")
    flags = parser.parse_args()
    section = Section("planted", f"Planted answers in {NUM_TEXTS} long texts", flags)
    contexts = list(dict.fromkeys(item.context for item in read_squad(flags.questions_file)))
    texts = make_texts(contexts, 8 if flags.quick else NUM_TEXTS, flags.seed)
    rows = ["|  | found | whole | lengths of the others, characters |", "|---|---|---|---|"]
    for name, (checkout, model) in checkouts_of(flags).items():
        with running_server(model, *EXACT_ENGINE, *FLAGS, root=checkout) as server:
            found, whole = find(server.port, texts)
        others = [len(planted.text) for planted in texts if planted not in whole]
        section.raw[name] = {"found": len(found), "whole": len(whole), "of": len(texts)}
        section.raw[name]["other_chars"] = others
        rows.append(f"| {name} | {len(found)} | {len(whole)} | {', '.join(map(str, others))} |")
    section.say("\n".join(rows))
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
