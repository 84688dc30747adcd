"""The server against the engine at one length with nothing around it, and where the rest goes.

    python -m benchmarks.limit --questions_file dev.json
    python -m benchmarks.limit --questions_file dev.json --engine openvino:bf16

The limit is the throughput of two processes that each run the engine on rows of one length, the
mean of the questions', one row at a time. Against it, the server with as many instances, asked the
questions in shuffled order by 16 closed-loop clients from this process; its rate is that of the
answers in the middle of the load. What lies between is measured in the same two processes, step
by step: lengths as they are asked, changing lengths, tokenizing, reading. What is left is the
server's: the loop, the channels, batches. All stay loaded and take turns, repeat by repeat. Cold
figures are of the first load after a start, warm ones of those after the warmup.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.load import Item, counted, uniform
from benchmarks.record import Section, make_parser, markdown, median, spread
from benchmarks.servers.reading import warm_reader
from benchmarks.targets import Running, ours, running
from qa_service.data.squad import read_squad
from qa_service.instance.model_folder.manifest import TOKENIZER_FILE
from qa_service.instance.reader.reader import Reader
from qa_service.instance.stages import Stopwatch
from qa_service.wire.messages import Task

SESSIONS = 2
CLIENTS = 16
WARMUP_REQUESTS = 2 * CLIENTS
REQUESTS_TO_SPARE = 4
"""Of each client, so that all are still asking when the last one that counts is answered."""
NUM_QUESTIONS = 280
WARMUP_PASSES, PAUSE_S = 20, 1.0
"""Over all questions, and after each: an OpenVINO instance compiles the model for lengths that have
become frequent, one after another and in time that nothing else wants."""
SERVER_ROUNDS = 3
"""How often the server is asked each question in a measurement: once is over in a second."""
GOAL = 0.85

Found = dict[str, float]
"""Milliseconds of a question, by what they were spent on."""


def took_ms(run: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    run()
    return (time.perf_counter() - started_s) * 1e3


def at_one_length(reader: Reader, lengths: Sequence[int]) -> Found:
    rows = reader.sample_rows(1, round(statistics.fmean(lengths)))
    reader.logits(*rows)
    took = took_ms(lambda: [reader.logits(*rows) for _ in lengths])
    return {"engine": took / len(lengths)}


def at_own_lengths(reader: Reader, lengths: Sequence[int]) -> Found:
    """The engine on each length in turn, right after a row of the same."""
    rows = [reader.sample_rows(1, length) for length in lengths]
    total_ms = 0.0
    for row in rows:
        reader.logits(*row)
        total_ms += took_ms(partial(reader.logits, *row))
    return {"engine": total_ms / len(lengths)}


def at_changing_lengths(reader: Reader, lengths: Sequence[int]) -> Found:
    rows = [reader.sample_rows(1, length) for length in lengths]
    took = took_ms(lambda: [reader.logits(*row) for row in rows])
    return {"engine": took / len(lengths)}


def by_the_reader(reader: Reader, tasks: Sequence[Task]) -> Found:
    """The reading code on each question in turn."""
    stopwatch = Stopwatch()
    for task in tasks:
        reader.answer(reader.encode([task], stopwatch), stopwatch)
    stages_ms = stopwatch.take()
    return {name: getattr(stages_ms, name) / len(tasks) for name in ("tokenize", "model", "read")}


STEPS: dict[str, Callable[..., Found]] = {
    step.__name__: step
    for step in (at_one_length, at_own_lengths, at_changing_lengths, by_the_reader)
}


def run_session(pipe: Connection, model: Path, settings: dict[str, str]) -> None:
    """What runs in a process of the limit: the name of a step and its work in, milliseconds out."""
    reader = warm_reader(model, max_batch_size=1, **settings)
    pipe.send({})
    while work := pipe.recv():
        name, items = work
        pipe.send(STEPS[name](reader, items))


class Limit:
    def __init__(self, model: Path, settings: dict[str, str]) -> None:
        os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for _ in range(SESSIONS):
            pipe, theirs = context.Pipe()
            arguments = (theirs, model, settings)
            context.Process(target=run_session, args=arguments, daemon=True).start()
            self._pipes.append(pipe)
        for pipe in self._pipes:
            pipe.recv()

    def run(
        self, step: Callable[..., Found], items: Sequence[object], sessions: int = SESSIONS
    ) -> Found:
        """Milliseconds of a question, the mean over instances that run at the same time."""
        pipes = self._pipes[:sessions]
        for pipe in pipes:
            pipe.send((step.__name__, list(items)))
        found = [pipe.recv() for pipe in pipes]
        return {name: statistics.fmean(one[name] for one in found) for name in found[0]}

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)


def server_throughput_per_s(server: Running, items: Sequence[Item]) -> tuple[float, float]:
    """Answers a second while all are asked once, and the generator's CPU share."""
    requests_each = math.ceil((WARMUP_REQUESTS + len(items)) / CLIENTS) + REQUESTS_TO_SPARE
    cpu_s, started_s = time.process_time(), time.perf_counter()
    samples = counted(server, items, CLIENTS, requests_each)
    cpu_share = (time.process_time() - cpu_s) / (time.perf_counter() - started_s)
    ended_s = [sample.ended_s for sample in samples]
    took_s = ended_s[WARMUP_REQUESTS + len(items) - 1] - ended_s[WARMUP_REQUESTS - 1]
    return len(items) / took_s, cpu_share


def row_lengths(items: Sequence[Item], model: Path) -> list[int]:
    """How many tokens each question is, with its text."""
    tokenizer = Tokenizer.from_file(str(model / TOKENIZER_FILE))
    return [len(tokenizer.encode(item.question, item.text)) for item in items]


def tasks_of(items: Sequence[Item]) -> list[Task]:
    return [Task(item.question, item.text) for item in items]


def one_repeat(limit: Limit, server: Running, items: Sequence[Item], lengths: list[int]) -> Found:
    """What each step adds to the one before, in milliseconds of a question."""
    alone_ms = limit.run(at_one_length, lengths, sessions=1)["engine"]
    limit_ms = limit.run(at_one_length, lengths)["engine"]
    own_ms = limit.run(at_own_lengths, lengths)["engine"]
    changing_ms = limit.run(at_changing_lengths, lengths)["engine"]
    read = limit.run(by_the_reader, tasks_of(items))
    rate_per_s, cpu_share = server_throughput_per_s(server, list(items) * SERVER_ROUNDS)
    server_ms = SESSIONS * 1e3 / rate_per_s
    return {
        "the engine at one length, alone": alone_ms,
        "a neighbour that does the same": limit_ms - alone_ms,
        "the lengths that are asked": own_ms - limit_ms,
        "lengths that change": changing_ms - own_ms,
        "real rows": read["model"] - changing_ms,
        "tokenizing": read["tokenize"],
        "reading the logits": read["read"],
        "the server: loop, channels, batches": server_ms - sum(read.values()),
        "server_ms": server_ms,
        "limit_ms": limit_ms,
        "ratio": limit_ms / server_ms,
        "cpu_share": cpu_share,
    }


def compare(
    model: Path, items: Sequence[Item], repeats: int, settings: dict[str, str]
) -> dict[str, list[float]]:
    """Every step in each repeat, and at first both targets cold; the figures, by name."""
    lengths = row_lengths(items, model)
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    limit = Limit(model, settings)
    with running(
        ours("server", "--num_inference_sessions", str(SESSIONS), *flags), model
    ) as server:
        cold = {
            "cold_server_ms": SESSIONS * 1e3 / server_throughput_per_s(server, items)[0],
            "cold_limit_ms": limit.run(at_one_length, lengths)["engine"],
        }
        for _ in range(WARMUP_PASSES):
            limit.run(by_the_reader, tasks_of(items))
            server_throughput_per_s(server, items)
            time.sleep(PAUSE_S)
        found = [one_repeat(limit, server, items, lengths) for _ in range(repeats)]
    limit.close()
    warm = {name: [one[name] for one in found] for name in found[0]}
    return warm | {name: [value] for name, value in cold.items()}


def report(section: Section, engine: str, found: dict[str, list[float]]) -> None:
    server_ms = median(found["server_ms"])
    targets = ("limit_ms", "server_ms", "cold_limit_ms", "cold_server_ms")
    steps = [name for name in found if name not in {*targets, "ratio", "cpu_share"}]
    rows = [
        [name, spread(found[name], 2), f"{median(found[name]) / server_ms:.0%}"] for name in steps
    ]
    rows.append(["**a question, by the server**", f"**{spread(found['server_ms'], 2)}**", "100%"])
    section.say(f"**{engine}**\n\n" + markdown(["", "ms of an instance", "share"], rows))
    rates = {name: spread([SESSIONS * 1e3 / ms for ms in found[name]]) for name in targets}
    rows = [
        ["the limit: two engines at one length", rates["cold_limit_ms"], rates["limit_ms"]],
        ["the server", rates["cold_server_ms"], rates["server_ms"]],
        [f"**server / limit** (goal {GOAL})", "", f"**{spread(found['ratio'], 3)}**"],
    ]
    section.say(markdown(["answers/s", "cold", "warm"], rows))
    section.raw[engine] = found | {"median_ratio": median(found["ratio"])}


def main() -> None:
    parser = make_parser(__doc__)
    parser.set_defaults(repeats=7)
    parser.add_argument("--engine", default="onnx:fp32", help="engine and precision of both")
    flags: argparse.Namespace = parser.parse_args()
    engine, precision = flags.engine.split(":")
    settings = {"inference_engine_type": engine, "precision": precision}
    section = Section(f"limit_{engine}_{precision}", "Against the limit", flags)
    items = uniform(read_squad(flags.questions_file))[: 24 if flags.quick else NUM_QUESTIONS]
    found = compare(flags.model, items, 1 if flags.quick else flags.repeats, settings)
    report(section, f"{engine} {precision}", found)
    section.say(f"The load generator used {max(found['cpu_share']):.1%} of one core at most.")
    section.say(
        f"{len(items)} questions, the server's {SERVER_ROUNDS} times; {SESSIONS} instances of one "
        f"thread, {CLIENTS} clients. Medians of the repeats, with the minimum and the maximum; "
        "each step is what it adds to those above it, in the same repeat."
    )
    section.close()


if __name__ == "__main__":
    main()
