"""How many flipped bits the known answers find: of those that change an answer, at least 95 %?

    python -m benchmarks.bit_flips     # 200 flips, about a quarter of an hour on a core

Each flip is of a random bit of the exponent of a random float32 weight of the built-in model, in
the memory of the PyTorch engine, and is undone after it. The known answers run first alone and
together, as before an instance is ready, then one by one, as while it serves. Then 500 questions
are asked, until an answer is another: its span, or its score by more than the tolerance of float32,
or an error. After a flip that is found, 50 of them are asked: fewer are then seen to change an
answer, and the share that is found is more than what is printed. Rows and questions without the
word of a flipped embedding are left out: they cannot differ.

Exit code 0 if 95 % are found, 1 if not.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from qa_service.data.squad import AGREEMENT_QUESTIONS, OWN_QUESTIONS, read_squad
from qa_service.engine_catalogue import TOLERANCES
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines.outputs import EngineFaultError
from qa_service.instance.engines.pytorch import PyTorchEngine, load_model, logits_of
from qa_service.instance.model_folder.known_answers import (
    KnownAnswers,
    KnownRow,
    load_known_answers,
    tolerance_of,
)
from qa_service.instance.model_folder.manifest import Manifest, load_manifest
from qa_service.instance.reader.reader import Reader
from qa_service.instance.self_test import SelfTest
from qa_service.server.models.options import DEFAULT_MODEL
from qa_service.wire.messages import Answer, Question

KIND = ("pytorch", "fp32")
GOAL = 0.95
MAX_SCORE_DIFFERENCE = TOLERANCES["fp32"]
EXPONENT_BITS = range(23, 31)
AT_ONCE = 10
NUM_AFTER_FOUND = 50
WORDS = "word_embeddings.weight"
AT_START, WHILE_SERVING, NEVER = "found before ready", "found by a self-test", "not found"


class Engine(PyTorchEngine):
    """The PyTorch engine of a model that is there already."""

    def __init__(self, model: PreTrainedModel, manifest: Manifest) -> None:
        self._logits = logits_of(model, manifest.inputs)
        self.runtime = "torch"


class Bench:
    """The built-in model, its known answers and 500 questions."""

    def __init__(self, model_dir: Path, num_questions: int) -> None:
        torch.set_num_threads(1)
        self.manifest = load_manifest(model_dir)
        known = load_known_answers(model_dir, self.manifest)
        assert known, "prepare the model first"
        self.known = known
        self.model = load_model(model_dir, "fp32")
        self.engine = Engine(self.model, self.manifest)
        self.reader = Reader(model_dir, self.manifest, self.engine.logits, BatchRule())
        self.questions = list(make_questions(num_questions))
        self.right = [answer for batch in self._batches(self.questions) for answer in batch]
        self.words = [self._ids(question) for question in self.questions]

    def find(self, word: int | None) -> str:
        """When the known answers find what is wrong; `word` is the only one that can differ."""
        rows, vocabulary = (_with(rows, word) for rows in (self.known.rows, self.known.vocabulary))
        tolerances = tolerance_of(self.manifest, KIND, "cpu")
        known = KnownAnswers(rows=rows, vocabulary=vocabulary)
        test = SelfTest(
            known, self.reader, self.engine, self.manifest, tolerances=tolerances, name="it"
        )
        found = NEVER
        try:
            if rows:
                found = AT_START
                test.check()
            found = WHILE_SERVING
            for _ in vocabulary:
                test.check_next()
        except EngineFaultError:
            return found
        return NEVER

    def changes_an_answer(self, word: int | None, most: int) -> bool:
        """Whether one of the questions is answered otherwise, of as many as may be asked."""
        numbers = [n for n, ids in enumerate(self.words) if word is None or word in ids][:most]
        right = (self.right[number] for number in numbers)
        try:
            for answers in self._batches([self.questions[number] for number in numbers]):
                if any(is_other(found, next(right)) for found in answers):
                    return True
        except EngineFaultError:  # its instance would end
            return True
        return False

    def _batches(self, questions: Sequence[Question]) -> Iterator[list[Answer | None]]:
        for first in range(0, len(questions), AT_ONCE):
            outcomes = self.reader.read(questions[first : first + AT_ONCE])
            yield [its[0] if isinstance(its, list) else None for its in outcomes]

    def _ids(self, question: Question) -> set[int]:
        windows = self.reader._windows.encode(question.question, question.text).windows
        return {number for window in windows for number in window.input_ids.tolist()}


def make_questions(number: int) -> Iterator[Question]:
    """The bundled questions, of their own text; then of it and the one behind."""
    items = [*read_squad(OWN_QUESTIONS), *read_squad(AGREEMENT_QUESTIONS)]
    contexts = list(dict.fromkeys(item.context for item in items))
    for count in range(number):
        item = items[count % len(items)]
        at, num_texts = contexts.index(item.context), 1 + count // len(items)
        texts = (contexts[(at + step) % len(contexts)] for step in range(num_texts))
        yield Question(item.question, " ".join(texts))


def is_other(found: Answer | None, right: Answer | None) -> bool:
    """Whether an answer differs by more than the tolerance; None is an error."""
    if found is None or right is None:
        return found is not right
    is_same = (found.start, found.end) == (right.start, right.end)
    return not is_same or not abs(found.score - right.score) <= MAX_SCORE_DIFFERENCE


def _with(rows: Sequence[KnownRow], word: int | None) -> list[KnownRow]:
    return [row for row in rows if word is None or word in row.ids]


@dataclasses.dataclass(frozen=True)
class Flip:
    """A bit of a weight, by the weight's place among all."""

    weight: int
    bit: int


def draw_flips(number: int, num_weights: int, seed: int) -> list[Flip]:
    """Random ones; the same for the same seed."""
    draw = np.random.default_rng(seed)
    return [
        Flip(int(draw.integers(num_weights)), int(draw.choice(EXPONENT_BITS)))
        for _ in range(number)
    ]


def main() -> int:
    """Runs the flips; returns the exit code."""
    flags = _flags()
    bench = Bench(flags.model, flags.questions)
    named = list(bench.model.named_parameters())
    sizes = [parameter.numel() for _, parameter in named]
    counts: Counter[tuple[str, bool]] = Counter()
    started_s = time.monotonic()
    for number, flip in enumerate(draw_flips(flags.flips, sum(sizes), flags.seed), 1):
        weight, at = flip.weight, 0
        while weight >= sizes[at]:
            weight -= sizes[at]
            at += 1
        name, parameter = named[at]
        word = weight // parameter.shape[1] if name.endswith(WORDS) else None
        values = parameter.data.view(-1)[weight : weight + 1].view(torch.int32)
        before = values.clone()
        values ^= 1 << flip.bit
        found = bench.find(word)
        most = flags.questions if found == NEVER else NUM_AFTER_FOUND
        result = found, bench.changes_an_answer(word, most)
        values.copy_(before)
        counts[result] += 1
        answers = "an answer changes" if result[1] else "no answer changes"
        print(f"{number:4} {name} bit {flip.bit}: {result[0]}, {answers}", flush=True)
    return summarize(counts, time.monotonic() - started_s)


def summarize(counts: Counter[tuple[str, bool]], took_s: float) -> int:
    """Prints what was counted; returns the exit code."""
    print("\n| | changes an answer | changes none |\n|---|---|---|")
    for found in (AT_START, WHILE_SERVING, NEVER):
        print(f"| {found} | {counts[found, True]} | {counts[found, False]} |")
    harmful = sum(count for (_, is_harmful), count in counts.items() if is_harmful)
    share = 1 - counts[NEVER, True] / harmful if harmful else 1.0
    print(f"\n{share:.1%} of {harmful} that change an answer are found; {took_s:.0f} s")
    return int(share < GOAL)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", type=Path, default=DEFAULT_MODEL, help="the prepared built-in model")
    add("--flips", type=int, default=200)
    add("--questions", type=int, default=500)
    add("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
