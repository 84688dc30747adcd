"""Ten minutes on a GPU: what the first minutes on one leave open, in order of worth.

    python -m benchmarks.gpu --models saved_models/builtin saved_models/builtin-base
    python -m benchmarks.gpu --output found     # goes on where a run with this folder was
    python -m benchmarks.gpu --rehearse         # every step on the CPU, in three minutes

The steps: the machine; the tests that need a GPU; the GPU's own pace, in full batches of one shape;
a start as users start it, what `auto` takes, a killed instance and a share of the memory; each
model with each number of instances and clients; a longer load with the gaps in its answers.

Each result is a line of `OUTPUT/gpu.jsonl` as soon as it is there, and `OUTPUT/gpu.md` is written
again. A run may be stopped at any time; one with the same folder leaves out what is in it.

Models are prepared with `--precision fp16`; PyTorch takes those that have no `model.fp16.onnx` too.
Exit code 0 if every request was answered and every test passed, 1 if not, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load import figures, load, measure
from benchmarks.machine import command, machine, now, versions
from benchmarks.tables import markdown, median, spread
from benchmarks.targets import Running, ours
from benchmarks.texts import Item, uniform
from harness.process import wait_until
from harness.server import ROOT, RunningServer, running_server
from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.engines.base import Engine
from qa_service.instance.gpus import find_gpus
from qa_service.instance.model_folder.manifest import Manifest, load_manifest
from qa_service.programs.bounds import Spent
from qa_service.server.check.steps import check
from qa_service.server.config import ServerConfig
from qa_service.server.models.model_options import DEFAULT_MODEL

PROTOTYPE_MS = {1: 20.5, 5: 30.8, 20: 96.1, 50: 177.0}
"""Mean latency by clients of the prototype: bert-base, 4 sessions, an RTX 2080 Ti."""
PROTOTYPE = "bert-base"
PACKAGES = ("torch", "transformers", "onnxruntime-gpu", "onnxruntime", "numpy")
TESTS = ("tests/integration/test_on_a_gpu.py", "tests/integration/test_gpu_engines.py")
TOKENS, FULL_ROWS = 128, 64
ROUNDS = 3
GPU, PROCESSES = "gpu=name,memory.total,driver_version", "compute-apps=pid,used_memory"
GAP_S = 0.05
"""A time without any answer that a load of hundreds of clients does not have by chance."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    instances: tuple[int, ...] = (4, 1, 8, 2, 12)
    clients: tuple[int, ...] = (1, 20, 50, 200)
    cell_s: float = 1.0
    pause_s: float = 6.0
    tests: tuple[str, ...] = TESTS
    tests_s: float = 120.0
    device: str = "cuda:0"
    precision: str = "fp16"


REHEARSAL = Scale((1,), (1, 20), 0.3, 1.0, TESTS[:1], 120.0, "cpu", "fp32")


@dataclass(slots=True)
class Run:
    """What is measured with what, until when, and what has been found."""

    flags: argparse.Namespace
    scale: Scale
    items: Sequence[Item]
    until_s: float
    found: dict[str, Any] = field(default_factory=dict)

    def step(self, name: str, take: Callable[[], Any]) -> None:
        """Takes a step unless it was taken or the time is over, and writes what it found.

        A step that fails is a finding too: the next one may not.
        """
        if name in self.found or time.monotonic() > self.until_s:
            return
        print(f"{now()} {name}", file=sys.stderr, flush=True)
        began_s = time.monotonic()
        try:
            found = take()
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {str(error).strip()[-2000:]}"}
        self.found[name] = found
        took_s = round(time.monotonic() - began_s, 1)
        with (self.flags.output / "gpu.jsonl").open("a") as file:
            file.write(json.dumps({"step": name, "took_s": took_s, "found": found}) + "\n")
        (self.flags.output / "gpu.md").write_text(report(self))

    def load_found(self) -> None:
        """Reads what an earlier run with this folder has found."""
        path = self.flags.output / "gpu.jsonl"
        for line in path.read_text().splitlines() if path.exists() else []:
            one = json.loads(line)
            self.found[one["step"]] = one["found"]


def main() -> int:
    flags = _flags()
    if not flags.rehearse and not (gpus := find_gpus()).found:
        check(ServerConfig.of(model=flags.models[0], devices="cuda:0", port=0))
        print(f"benchmarks.gpu: CUDA sees no GPU here ({gpus.why_none})", file=sys.stderr)
        return 2
    flags.output.mkdir(parents=True, exist_ok=True)
    scale = REHEARSAL if flags.rehearse else Scale()
    items = uniform(read_squad(flags.questions_file))
    run = Run(flags, scale, items, time.monotonic() + 60 * flags.minutes)
    run.load_found()
    with tempfile.TemporaryDirectory() as folder:
        take_steps(run, Path(folder))
    print((flags.output / "gpu.md").read_text())
    return int(any(_is_bad(found) for found in run.found.values()))


def _is_bad(found: Any) -> bool:
    return isinstance(found, dict) and bool(found.get("failed"))


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--models", type=Path, nargs="+", default=[DEFAULT_MODEL], help="prepared models")
    add("--questions_file", type=Path, default=OWN_QUESTIONS, help="JSON in SQuAD's format")
    add("--minutes", type=float, default=10.0, help="after which no step begins")
    add("--output", type=Path, default=Path("build/gpu"), help="for gpu.jsonl and gpu.md")
    add("--skip", nargs="+", default=[], help="steps whose names begin with one of these")
    add("--rehearse", action="store_true", help="run every step on the CPU, briefly")
    return parser.parse_args()


def take_steps(run: Run, folder: Path) -> None:
    """All steps, the most worth first."""
    for name, take in steps(run, folder):
        if not name.startswith(tuple(run.flags.skip)):
            run.step(name, take)


def steps(run: Run, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The steps' names and what takes each."""
    scale, models = run.scale, run.flags.models
    yield "machine", about
    yield "tests", partial(test, run)
    for model in models:
        for engine in engines_of(model, run):
            yield f"pace {model.name} {engine}", partial(pace, run, model, engine)
    yield "start", partial(starts, run, models[0])
    for instances in scale.instances:
        for model in models:
            for engine in engines_of(model, run):
                name = f"cells {model.name} {engine} {instances}"
                yield name, partial(cells, run, model, engine, instances)
        if instances == scale.instances[0]:
            model, engine = models[0], engines_of(models[0], run)[0]
            yield "pause", partial(pause, run, model, engine, instances)
            prototype = partial(cells_of_prototype, run, folder, instances)
            yield f"cells {PROTOTYPE} pytorch {instances}", prototype


def about() -> dict[str, str]:
    """What the figures were measured on."""
    found = {"machine": machine(), "versions": versions(*PACKAGES), "gpu": nvidia_smi(GPU)}
    return found | {"command": command(), "date": now()}


def cells_of_prototype(run: Run, folder: Path, instances: int) -> dict[str, Any]:
    """The prototype's model under its numbers of clients."""
    return cells(run, random_bert(run, folder), "pytorch", instances, clients=tuple(PROTOTYPE_MS))


def engines_of(model: Path, run: Run) -> list[str]:
    """The engines that can run a model here, PyTorch first."""
    if run.flags.rehearse:
        return ["onnx"]
    import onnxruntime  # noqa: PLC0415 - the CPU's package may be missing

    has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    has_file = (model / "model.fp16.onnx").exists()
    return ["pytorch", "onnx"] if has_cuda and has_file else ["pytorch"]


def random_bert(run: Run, folder: Path) -> Path:
    """Makes the prototype's model with random weights; for a rehearsal a small one."""
    from benchmarks.random_bert import make_random_bert  # noqa: PLC0415 - torch takes seconds

    shape = "tiny" if run.flags.rehearse else PROTOTYPE
    return make_random_bert(shape, run.flags.models[0], folder, engine_type="pytorch")


def nvidia_smi(query: str) -> str:
    """What it says of the GPU; empty where there is none."""
    words = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader"]
    with contextlib.suppress(OSError):
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def test(run: Run) -> dict[str, Any]:
    """Runs the tests that need a GPU, for as long as they may take."""
    log = run.flags.output / "gpu.tests.log"
    words = [sys.executable, "-m", "pytest", "-v", "-rs", "--numprocesses", "4"]
    with log.open("w") as file:
        process = subprocess.Popen([*words, *run.scale.tests], stdout=file, stderr=file, cwd=ROOT,
                                   start_new_session=True)  # fmt: skip
        try:
            process.wait(run.scale.tests_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    ended = re.findall(r"(PASSED|FAILED|ERROR|SKIPPED) (tests/\S+)", log.read_text())
    failed = [name for kind, name in ended if kind in {"FAILED", "ERROR"}]
    return {**Counter(kind for kind, _ in ended), "failed": failed, "exit_code": process.returncode}


def flags_of(run: Run, engine: str, instances: int) -> tuple[str, ...]:
    """A server's, for a cell."""
    return (
        *("--inference_engine_type", engine, "--precision", run.scale.precision),
        *("--devices", run.scale.device, "--num_inference_sessions", str(instances)),
        *("--max_batch_size", "64", "--max_batch_tokens", "16384"),
    )


def starts(run: Run, model: Path) -> dict[str, Any]:
    """A server without flags, twice; then an instance is killed; then a share of the memory."""
    device = ("--devices", run.scale.device) if run.flags.rehearse else ()
    found: dict[str, Any] = {}
    for name in ("first", "second"):
        began_s = time.perf_counter()
        with running_server(model, *device) as server:
            ready_s = time.perf_counter() - began_s
            found[name] = {
                "ready_s": round(ready_s, 1),
                "ready_line": server.ready_line,
                "instances": re.findall(r"this instance has started: .*", server.log),
            }
            if name == "second":
                found["killed"] = kill_one(server)
                found["metrics"] = gpu_metrics(server)
    share = ("--gpu_memory_fraction", "0.1", "--num_inference_sessions", "4")
    with running_server(model, *device, *share) as server:
        found["share"] = [server.ready_line, nvidia_smi(PROCESSES)]
    return found


def kill_one(server: RunningServer) -> dict[str, Any]:
    """Kills an instance under load; how long until there are as many as before, and the answers."""
    before = server.worker_pids()
    began_s = time.perf_counter()
    os.kill(before[0], signal.SIGKILL)
    text = {"question": "Who wrote it?", "text": "Ada wrote it."}
    answers = [server.ask(**text).get("answer") for _ in range(20)]
    wait_until(lambda: server.health()["sessions_answering"], lambda number: number == len(before))
    return {"back_s": round(time.perf_counter() - began_s, 1), "right": answers.count("Ada")}


def gpu_metrics(server: RunningServer) -> list[str]:
    """What `/metrics` says of the GPU."""
    with urllib.request.urlopen(f"http://localhost:{server.port}/metrics") as reply:
        lines: list[str] = reply.read().decode().splitlines()
    return [line for line in lines if line.startswith(("nv_gpu", "nv_energy"))]


def pace(run: Run, model: Path, engine_type: str) -> dict[str, float]:
    """Rows a second of one shape in one process, and joules for each where the GPU counts them."""
    manifest, rows = load_manifest(model), 4 if run.flags.rehearse else FULL_ROWS
    config = EngineConfig(
        device=run.scale.device.partition(":")[0],
        precision=run.scale.precision,
        max_batch_size=rows,
        max_batch_tokens=rows * TOKENS,
    )
    engine = make_engine(engine_type, model, manifest, config)
    found = {f"ms of {size} rows": median_ms(engine, manifest, size) for size in (1, 8, rows)}
    before_j, began_s, count = energy_j(), time.perf_counter(), 0
    while (took_s := time.perf_counter() - began_s) < run.scale.cell_s:
        engine.logits(*batch_of(manifest, rows))
        count += rows
    found["rows_per_s"] = count / took_s
    if before_j:
        found["joules_a_row"] = (energy_j() - before_j) / count
    return found


def median_ms(engine: Engine, manifest: Manifest, size: int) -> float:
    """Times one shape of batch: the median of 20 runs."""
    batch, times_ms = batch_of(manifest, size), []
    for _ in range(23):
        started_s = time.perf_counter()
        engine.logits(*batch)
        times_ms.append((time.perf_counter() - started_s) * 1e3)
    return float(np.median(times_ms[3:]))


def batch_of(manifest: Manifest, size: int) -> tuple[Any, Any, Any]:
    """Rows of one length."""
    ids = np.full((size, TOKENS), manifest.pad_token_id + 1, np.int64)
    return ids, np.ones_like(ids), np.zeros_like(ids)


def energy_j() -> float:
    """Joules that the first GPU has used; 0 if it does not say."""
    try:
        import pynvml  # noqa: PLC0415 - only where there is a GPU

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
    except Exception:  # NVML raises its own classes, and may be missing
        return 0.0


def cells(
    run: Run, model: Path, engine: str, instances: int, clients: Sequence[int] = ()
) -> dict[str, Any]:
    """One server under each number of clients, in rounds, so that all see the same machine."""
    found: dict[str, Any] = {"rounds": []}
    began_s = time.perf_counter()
    target = ours("", *flags_of(run, engine, instances))
    with running_server(model, *target.flags) as server:
        found["ready_s"] = round(time.perf_counter() - began_s, 1)
        running = Running(target, server.port, server.process.pid)
        numbers = clients or run.scale.clients
        measure(running, run.items, max(numbers), 0.0, run.scale.cell_s)  # each instance has run
        for _ in range(ROUNDS):
            one = {str(n): measured(server, running, run, n) for n in numbers}
            found["rounds"].append(one)
    return found


def measured(server: RunningServer, running: Running, run: Run, clients: int) -> dict[str, Any]:
    """One cell, with the shares of its time and the energy of its answers."""
    before, before_j = server.stats(), energy_j()
    found: dict[str, Any] = dict(measure(running, run.items, clients, 0.0, run.scale.cell_s))
    if used_j := energy_j() - before_j:
        found["joules"] = used_j / max(1.0, found["requests"])
    if spent := Spent.between(before, server.stats()):
        found |= {"bound": spent.sentence(found["cpu_share"]), "spent": str(spent)}
    return found


def pause(run: Run, model: Path, engine: str, instances: int) -> dict[str, Any]:
    """A longer load of 200 clients: when nobody had an answer, and whether the loop slept then."""
    target = ours("", *flags_of(run, engine, instances))
    clients = max(run.scale.clients)
    with running_server(model, *target.flags) as server:
        running = Running(target, server.port, server.process.pid)
        looks: list[tuple[float, float]] = []
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                asked_s = time.perf_counter()
                server.health()
                looks.append((asked_s, time.perf_counter() - asked_s))
                time.sleep(0.01)

        watching = threading.Thread(target=look)
        watching.start()
        began_s = time.perf_counter()
        fields = {"num_simultaneous_clients": clients, "duration_s": run.scale.pause_s}
        samples = load(running, run.items, **fields)
        done.set()
        watching.join()
        log, stats = server.log, server.stats()

    def spans(pairs: Iterable[tuple[float, float]]) -> list[str]:
        """When each began, and how many milliseconds it took."""
        return [f"{at_s - began_s:.3f} s: {took_s * 1e3:.0f} ms" for at_s, took_s in pairs]

    ends_s = [sample.ended_s for sample in samples]
    gaps = [(a, b - a) for a, b in itertools.pairwise(ends_s) if b - a > GAP_S]
    late = [(at_s, took_s) for at_s, took_s in looks if took_s > GAP_S]
    slow = sorted(samples, key=lambda sample: -sample.latency_ms)[:20]
    window = (began_s + run.scale.pause_s / 6, began_s + run.scale.pause_s)
    return {
        "figures": figures(samples, window, run.items),
        "times without an answer": spans(gaps),
        "health that came late": spans(late),
        "slowest": spans((one.started_s, one.latency_ms / 1e3) for one in slow),
        "stats": stats["histograms"],
        "log": log[-4000:],
    }


def report(run: Run) -> str:
    """All that has been found, as Markdown."""
    parts = ["## GPU"]
    for name, found in run.found.items():
        if name.startswith("cells ") and not _is_bad(found):
            parts.append(f"### {name}: ready after {found['ready_s']} s\n\n{cell_table(found)}")
        else:
            parts.append(f"### {name}\n\n```\n{in_lines(found)}\n```")
    if prototype := run.found.get(f"cells {PROTOTYPE} pytorch 4"):
        parts.append(gains(prototype))
    return "\n\n".join(parts) + "\n"


def in_lines(found: dict[str, Any]) -> str:
    """Each finding in a line."""
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in found.items())


def cell_table(found: dict[str, Any]) -> str:
    """The cells of one server: medians of the rounds, and the least and the most."""
    rows = []
    for clients in found["rounds"][0] if found["rounds"] else ():
        rounds = [one[clients] for one in found["rounds"]]

        def column(name: str, digits: int, rounds: Sequence[dict] = rounds) -> str:
            return spread([one.get(name, float("nan")) for one in rounds], digits)

        middle = sorted(rounds, key=lambda one: one["throughput"])[len(rounds) // 2]
        rows.append([clients, column("throughput", 0), column("p50", 1), column("p99", 1),
                     column("joules", 4), middle.get("bound", "")])  # fmt: skip
    head = ["clients", "answers/s", "p50, ms", "p99, ms", "joules an answer", "bounded by"]
    return markdown(head, rows)


def gains(found: dict[str, Any]) -> str:
    """Our median latencies and the prototype's mean ones, where the cells are the same."""
    rows = [
        [clients, theirs_ms, f"{ours_ms:.2f}", f"{theirs_ms / ours_ms:.1f}"]
        for clients, theirs_ms in PROTOTYPE_MS.items()
        if (ours_ms := median([one[str(clients)]["p50"] for one in found.get("rounds", ())]))
    ]
    return markdown(["clients", "prototype, mean ms", "here, p50 ms", "times faster"], rows)


if __name__ == "__main__":
    sys.exit(main())
