"""Prints how many questions a second one instance of one thread reads, in each precision.

taskset -c 0 python -m benchmarks.precisions [--model DIR] [--dev SQUAD_FILE] [--rounds 5]

No server is around it. The precisions take turns, a few questions each, one question at a time;
the figure is the median over rounds of questions by second of CPU time, so that the machine's
other work weighs little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import qa_service
from qa_service.data.squad import read_squad
from qa_service.engine_catalogue import ROWS, precisions_of
from qa_service.inference.engines import EngineConfig, make_engine
from qa_service.inference.reader.reader import Reader
from qa_service.repository.manifest import load_manifest
from qa_service.scheduling.batch_cost import BatchRule
from qa_service.wire.messages import Question

QUESTIONS = 40
OWN_QUESTIONS = Path(qa_service.__file__).parent / "data" / "questions.json"


def rate(reader: Reader, questions: list[Question]) -> float:
    begin = time.thread_time()
    for question in questions:
        reader.read([question])
    return len(questions) / (time.thread_time() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("saved_models/builtin"))
    parser.add_argument("--dev", type=Path, default=OWN_QUESTIONS, metavar="SQUAD_FILE")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    manifest = load_manifest(flags.model)
    found = read_squad(flags.dev)
    step = max(1, len(found) // QUESTIONS)
    questions = [Question(q.question, q.context) for q in found[::step]][:QUESTIONS]
    readers = {
        precision: Reader(
            flags.model,
            manifest,
            make_engine("onnx", flags.model, manifest, EngineConfig(precision=precision)).logits,
            BatchRule(),
        )
        for precision in precisions_of("onnx")
        if ROWS["onnx", precision].file in manifest.files
    }
    rates: dict[str, list[float]] = {precision: [] for precision in readers}
    for reader in readers.values():
        rate(reader, questions[:3])
    for _ in range(flags.rounds):
        for precision, reader in readers.items():
            rates[precision].append(rate(reader, questions))
    for precision, values in rates.items():
        ratio = statistics.median(a / b for a, b in zip(values, rates["fp32"], strict=True))
        spread = f"{min(values):.1f} to {max(values):.1f}"
        print(f"{precision}: {statistics.median(values):.1f} questions/s ({spread}), {ratio:.2f} x")


if __name__ == "__main__":
    main()
