"""The steps of `benchmarks.gpu`: what each measures. Each returns what JSON can say."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.load import Item, figures, load, measure
from benchmarks.record import command, machine, now, versions
from benchmarks.targets import Running, ours
from harness.process import wait_until
from harness.server import ROOT, RunningServer, running_server
from qa_service.files import sha256_of
from qa_service.instance.arrays import Int64Array, Logits
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.engines.base import Engine
from qa_service.instance.model_folder.manifest import (
    KNOWN_ANSWERS_FILE,
    TOKENIZER_FILE,
    Manifest,
    ReadingConfig,
    load_manifest,
    save_manifest,
)
from qa_service.machine import num_cpus
from qa_service.preparation.known import known_answers
from qa_service.programs.bounds import Spent

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


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, with what."""

    flags: argparse.Namespace
    scale: Scale
    items: Sequence[Item]


def about() -> dict[str, str]:
    """What the figures were measured on."""
    found = {"machine": machine(), "versions": versions(*PACKAGES), "gpu": nvidia_smi(GPU)}
    return found | {"command": command(), "date": now()}


def engines_of(model: Path, plan: Plan) -> list[str]:
    """The engines that can run a model here, PyTorch first."""
    if plan.flags.rehearse:
        return ["onnx"]
    import onnxruntime  # noqa: PLC0415 - the CPU's package may be missing

    has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    has_file = (model / "model.fp16.onnx").exists()
    return ["pytorch", "onnx"] if has_cuda and has_file else ["pytorch"]


def random_bert(plan: Plan, folder: Path) -> Path:
    """Makes a model of the prototype's shape: random weights answer nonsense, at its speed.

    Its tokenizer, of BERT's 30,522 uncased words, is the first model's. A rehearsal's is small.
    """
    import torch  # noqa: PLC0415 - takes seconds
    from transformers import BertConfig, BertForQuestionAnswering  # noqa: PLC0415

    torch.manual_seed(0)
    torch.set_num_threads(num_cpus())
    config = BertConfig()  # 12 layers of 768, 12 heads, 110 M weights
    if plan.flags.rehearse:
        config.hidden_size, config.intermediate_size = 64, 128
        config.num_hidden_layers = config.num_attention_heads = 2
    source = folder / PROTOTYPE
    model = BertForQuestionAnswering(config).eval()
    model.save_pretrained(source)
    shutil.copyfile(plan.flags.models[0] / TOKENIZER_FILE, source / TOKENIZER_FILE)
    manifest = Manifest(
        name=PROTOTYPE,
        source=PROTOTYPE,
        fingerprint="",
        files={},
        inputs=("input_ids", "attention_mask", "token_type_ids"),
        pad_token_id=0,
        max_sequence_tokens=512,
        can_abstain=False,
        reading=ReadingConfig(),
        versions={},
    )

    def logits(ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        with torch.inference_mode():
            found = model(*map(torch.from_numpy, (ids, mask, types)))
        return found.start_logits.numpy(), found.end_logits.numpy()

    known = source / KNOWN_ANSWERS_FILE
    known.write_bytes(msgspec.json.encode(known_answers(source, manifest, logits)))
    save_manifest(source, msgspec.structs.replace(manifest, files={known.name: sha256_of(known)}))
    return source


def nvidia_smi(query: str) -> str:
    """What it says of the GPU; empty where there is none."""
    words = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader"]
    with contextlib.suppress(OSError):
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def test(plan: Plan) -> dict[str, Any]:
    """Runs the tests that need a GPU, for as long as they may take."""
    log = plan.flags.output / "gpu.tests.log"
    words = [sys.executable, "-m", "pytest", "-v", "-rs", "--numprocesses", "4"]
    with log.open("w") as file:
        process = subprocess.Popen([*words, *plan.scale.tests], stdout=file, stderr=file, cwd=ROOT,
                                   start_new_session=True)  # fmt: skip
        try:
            process.wait(plan.scale.tests_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    ended = re.findall(r"(PASSED|FAILED|ERROR|SKIPPED) (tests/\S+)", log.read_text())
    failed = [name for kind, name in ended if kind in {"FAILED", "ERROR"}]
    return {**Counter(kind for kind, _ in ended), "failed": failed, "exit_code": process.returncode}


def flags_of(plan: Plan, engine: str, instances: int) -> tuple[str, ...]:
    """A server's, for a cell."""
    return (
        *("--inference_engine_type", engine, "--precision", plan.scale.precision),
        *("--devices", plan.scale.device, "--num_inference_sessions", str(instances)),
        *("--max_batch_size", "64", "--max_batch_tokens", "16384"),
    )


def starts(plan: Plan, model: Path) -> dict[str, Any]:
    """A server without flags, twice; then an instance is killed; then a share of the memory."""
    device = ("--devices", plan.scale.device) if plan.flags.rehearse else ()
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


def pace(plan: Plan, model: Path, engine_type: str) -> dict[str, float]:
    """Rows a second of one shape in one process, and joules for each where the GPU counts them."""
    manifest, rows = load_manifest(model), 4 if plan.flags.rehearse else FULL_ROWS
    config = EngineConfig(
        device=plan.scale.device.partition(":")[0],
        precision=plan.scale.precision,
        max_batch_size=rows,
        max_batch_tokens=rows * TOKENS,
    )
    engine = make_engine(engine_type, model, manifest, config)
    found = {f"ms of {size} rows": median_ms(engine, manifest, size) for size in (1, 8, rows)}
    before_j, began_s, count = energy_j(), time.perf_counter(), 0
    while (took_s := time.perf_counter() - began_s) < plan.scale.cell_s:
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


def cells_of_prototype(plan: Plan, folder: Path, instances: int) -> dict[str, Any]:
    """The prototype's model under its numbers of clients."""
    return cells(plan, random_bert(plan, folder), "pytorch", instances, clients=tuple(PROTOTYPE_MS))


def cells(
    plan: Plan, model: Path, engine: str, instances: int, clients: Sequence[int] = ()
) -> dict[str, Any]:
    """One server under each number of clients, in rounds, so that all see the same machine."""
    found: dict[str, Any] = {"rounds": []}
    began_s = time.perf_counter()
    target = ours("", *flags_of(plan, engine, instances))
    with running_server(model, *target.flags) as server:
        found["ready_s"] = round(time.perf_counter() - began_s, 1)
        running = Running(target, server.port, server.process.pid)
        numbers = clients or plan.scale.clients
        measure(running, plan.items, max(numbers), 0.0, plan.scale.cell_s)  # each instance has run
        for _ in range(ROUNDS):
            one = {str(n): measured(server, running, plan, n) for n in numbers}
            found["rounds"].append(one)
    return found


def measured(server: RunningServer, running: Running, plan: Plan, clients: int) -> dict[str, Any]:
    """One cell, with the shares of its time and the energy of its answers."""
    before, before_j = server.stats(), energy_j()
    found: dict[str, Any] = dict(measure(running, plan.items, clients, 0.0, plan.scale.cell_s))
    if used_j := energy_j() - before_j:
        found["joules"] = used_j / max(1.0, found["requests"])
    if spent := Spent.between(before, server.stats()):
        found |= {"bound": spent.sentence(found["cpu_share"]), "spent": str(spent)}
    return found


def pause(plan: Plan, model: Path, engine: str, instances: int) -> dict[str, Any]:
    """A longer load of 200 clients: when nobody had an answer, and whether the loop slept then."""
    target = ours("", *flags_of(plan, engine, instances))
    clients = max(plan.scale.clients)
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
        fields = {"num_simultaneous_clients": clients, "duration_s": plan.scale.pause_s}
        samples = load(running, plan.items, **fields)
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
    window = (began_s + plan.scale.pause_s / 6, began_s + plan.scale.pause_s)
    return {
        "figures": figures(samples, window, plan.items),
        "times without an answer": spans(gaps),
        "health that came late": spans(late),
        "slowest": spans((one.started_s, one.latency_ms / 1e3) for one in slow),
        "stats": stats["histograms"],
        "log": log[-4000:],
    }
