"""The server's throughput on a GPU compared with the GPU's own; prints its tables.

    python -m benchmarks.gpu                            # PyTorch, about 9 minutes
    python -m benchmarks.gpu --only bert-base           # one of the two models, about 5 minutes
    python -m benchmarks.gpu --engine onnx              # needs onnxruntime-gpu
    python -m benchmarks.gpu --engine tensorrt
    python -m benchmarks.gpu --rehearse                 # every step on the CPU, for nothing

Two models: bert-base's shape with random weights, and the built-in one. For each, what the model
does alone, eagerly and with CUDA graphs, in fp32 and in half precision; then the server in half
precision with graphs, for each number of clients and instances on the one GPU, each with what
bounds it.

Most of the time is that of starts, up to half a minute each with PyTorch: on an H200 bert-base took
4 minutes and 14 seconds with `--duration_s 2`; the four starts of `--check` were 81 seconds of it.

PyTorch needs torch, transformers and msgspec, and the prepared built-in model.
It begins with what `server.py --check` says.
Exit code 0 if every request was answered, 1 if not, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from qa_service.data.squad import OWN_QUESTIONS, SquadQuestion, read_squad
from qa_service.errors import SetupError
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.engines.base import Engine
from qa_service.instance.gpus import find_gpus
from qa_service.instance.model_folder.manifest import Manifest, load_manifest
from qa_service.instance.reader.reader import Reader
from qa_service.programs.load.own_server import ServerStartError
from qa_service.programs.load.plan import LoadPlan
from qa_service.programs.load.sweep import Cell, Sweep
from qa_service.programs.load.table import markdown
from qa_service.server.check.whole import check
from qa_service.server.config import ServerConfig
from qa_service.server.models.options import DEFAULT_MODEL
from qa_service.wire.messages import Question

PROTOTYPE_MS = {1: 20.5, 5: 30.8, 20: 96.1, 50: 177.0}
"""Mean latency by clients of the prototype: bert-base, 4 sessions, an RTX 2080 Ti."""
PROTOTYPE_SESSIONS = 4
BERT_BASE, BUILTIN = "bert-base", "builtin"
TOKENS = 128
SIZES = (1, 8, 32)


def main() -> int:
    flags = _flags()
    device = "cpu" if flags.rehearse else "cuda:0"
    check(ServerConfig.of(model=flags.model, devices=device, port=0))
    if not flags.rehearse and not (gpus := find_gpus()).found:
        print(f"benchmarks.gpu: CUDA sees no GPU here ({gpus.why_none})", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _run(flags, Path(folder))
    except (SetupError, ServerStartError) as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--engine", choices=("pytorch", "onnx", "tensorrt"), default="pytorch")
    add("--model", type=Path, default=DEFAULT_MODEL, help="the prepared built-in model")
    add("--only", choices=(BERT_BASE, BUILTIN), help="measure one of the two models")
    add("--clients", type=int, nargs="+", default=[1, 5, 20, 50, 200])
    add("--sessions", type=int, nargs="+", default=[1, 2, 4])
    add("--duration_s", type=float, default=4.0, help="of each load")
    add("--rehearse", action="store_true", help="run every step on the CPU, briefly")
    flags = parser.parse_args()
    if flags.rehearse:
        flags.clients, flags.sessions, flags.duration_s = [1, 5], [1], 0.5
    return flags


def _run(flags: argparse.Namespace, folder: Path) -> int:
    load_manifest(flags.model)
    questions = read_squad(OWN_QUESTIONS)
    failed = 0
    for name in [flags.only] if flags.only else [BERT_BASE, BUILTIN]:
        model_dir = random_bert(flags, folder) if name == BERT_BASE else flags.model
        print(f"\n# {model_dir.name}, {flags.engine}\n")
        offline_per_s = show_offline(flags, model_dir, questions)
        cells = list(serve(flags, model_dir, questions))
        print(markdown(cells))
        gain = max(cell.report.throughput for cell in cells) / offline_per_s
        num_failed = sum(cell.report.num_failed for cell in cells)
        print(
            f"\nAt its best the server reaches {gain:.2f} times one process's offline rate; "
            f"{num_failed} requests failed."
        )
        if model_dir.name == BERT_BASE:
            show_gains(cells)
        failed += num_failed
    return int(failed > 0)


def random_bert(flags: argparse.Namespace, folder: Path) -> Path:
    """Makes the model with random weights; for a rehearsal a small one."""
    from benchmarks.random_bert import make_random_bert  # noqa: PLC0415 - torch takes seconds

    shape = "tiny" if flags.rehearse else BERT_BASE
    return make_random_bert(shape, flags.model, folder, engine_type=flags.engine)


def show_offline(
    flags: argparse.Namespace, model_dir: Path, questions: Sequence[SquadQuestion]
) -> float:
    """Prints what one process does without a server; returns the best rate of answers."""
    manifest = load_manifest(model_dir)
    sizes = (1, 4) if flags.rehearse else SIZES
    print(
        f"Offline, one process. Model: ms for a batch of these rows, of {TOKENS} tokens each. "
        "Reading: answers per second, from question to answer, spans chosen from the logits and by "
        "the engine.\n"
    )
    columns = [*(f"{size} rows" for size in sizes), "answers/s", "by the engine"]
    print(f"| | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    best_per_s = 0.0
    for config in configs(flags):
        engine = load(flags, model_dir, manifest, config)
        costs_ms = [median_ms(engine, manifest, size) for size in sizes]
        rates = [
            answers_per_s(reader, config.max_batch_size, questions, flags.duration_s)
            for reader in readers(engine, model_dir, manifest, config)
        ]
        best_per_s = max(best_per_s, *rates)
        cells = [*(f"{ms:.2f}" for ms in costs_ms), *(f"{rate:.0f}" for rate in rates)]
        cells += ["-"] * (len(columns) - len(cells))
        print(f"| {config.precision}, {engine.runtime} | {' | '.join(cells)} |", flush=True)
    print()
    return best_per_s


def configs(flags: argparse.Namespace) -> Iterator[EngineConfig]:
    """fp32 and half precision, without graphs and with them; TensorRT has none of ours."""
    if flags.rehearse:
        yield EngineConfig(max_batch_size=4, max_batch_tokens=4 * TOKENS)
        return
    base = EngineConfig(max_batch_size=max(SIZES), max_batch_tokens=max(SIZES) * TOKENS)
    choices = [True] if flags.engine == "tensorrt" else [False, True]
    for precision, graphs in itertools.product(("fp32", "fp16"), choices):
        yield msgspec.structs.replace(base, device="cuda", precision=precision, cuda_graphs=graphs)


def load(
    flags: argparse.Namespace, model_dir: Path, manifest: Manifest, config: EngineConfig
) -> Engine:
    """Makes the engine; for a rehearsal PyTorch's as it is on a GPU, without the GPU."""
    if flags.rehearse and flags.engine == "pytorch":
        from qa_service.instance.engines import pytorch  # noqa: PLC0415 - torch takes seconds

        return pytorch.bucketed_engine(model_dir, manifest, config, "cpu")
    return make_engine(flags.engine, model_dir, manifest, config)


def median_ms(engine: Engine, manifest: Manifest, size: int) -> float:
    """Times one shape of batch: the median of 30 runs."""
    ids = np.full((size, TOKENS), manifest.pad_token_id, np.int64)
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    times_ms = []
    for _ in range(33):
        started_s = time.perf_counter()
        engine.logits(ids, mask, types)
        times_ms.append((time.perf_counter() - started_s) * 1e3)
    return float(np.median(times_ms[3:]))


def readers(
    engine: Engine, model_dir: Path, manifest: Manifest, config: EngineConfig
) -> Iterator[Reader]:
    """One that chooses spans itself and, if the engine can do that, one that leaves it to it."""
    rule = BatchRule(config.max_batch_size, config.max_batch_tokens)
    yield Reader(model_dir, manifest, engine.logits, rule)
    if engine.chooses_spans:
        yield Reader(model_dir, manifest, engine.logits, rule, engine.best_spans)


def answers_per_s(
    reader: Reader, batch_size: int, questions: Sequence[SquadQuestion], duration_s: float
) -> float:
    """How many answers a reader gives in a second when it never waits for a question."""
    endless = itertools.cycle(Question(item.question, item.context) for item in questions)
    count = 0
    started_s = time.perf_counter()
    while (took_s := time.perf_counter() - started_s) < duration_s:
        count += len(reader.read(list(itertools.islice(endless, batch_size))))
    return count / took_s


def serve(
    flags: argparse.Namespace, model_dir: Path, questions: Sequence[SquadQuestion]
) -> Iterator[Cell]:
    """Puts the server under each load, and says how far it is."""
    where = ["--precision", "fp32", "--devices", "cpu"]
    if not flags.rehearse:
        where = ["--precision", "fp16", "--devices", "cuda:0"]
    engine = ["--model", str(model_dir), "--inference_engine_type", flags.engine]
    plan = LoadPlan("localhost", 0, questions, duration_s=flags.duration_s)
    sweep = Sweep(plan, flags.clients, (), flags.sessions, [*engine, *where])
    return sweep.run(_say)


@contextlib.contextmanager
def _say(num_instances: int | None, plan: LoadPlan) -> Iterator:
    print(f"{num_instances} instances, {plan.num_simultaneous_clients} clients", file=sys.stderr)
    yield lambda _: None


def show_gains(cells: Sequence[Cell]) -> None:
    """Prints our mean latencies and the prototype's, where the cells are the same."""
    print("\n| clients | prototype, ms | here, ms | times faster |\n|---|---|---|---|")
    for cell in cells:
        clients = cell.plan.num_simultaneous_clients
        if cell.num_instances == PROTOTYPE_SESSIONS and clients in PROTOTYPE_MS:
            theirs_ms, ours_ms = PROTOTYPE_MS[clients], cell.report.mean_ms
            print(f"| {clients} | {theirs_ms} | {ours_ms:.2f} | {theirs_ms / ours_ms:.1f} |")


if __name__ == "__main__":
    sys.exit(main())
