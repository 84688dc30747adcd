"""Measures a table of loads: each number of instances with each number of clients or rate.

Its cells are written as Markdown and as CSV.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qa_service import __version__
from qa_service.child_program import command_of, environment_of_programs
from qa_service.client import QaClientError
from qa_service.errors import SetupError
from qa_service.installation import installed_version
from qa_service.logs import plural
from qa_service.machine import num_cpus, processor
from qa_service.programs.access import FLAG_REFUSALS
from qa_service.programs.bounds import Spent
from qa_service.programs.load.generator import measure
from qa_service.programs.load.plan import PERCENTS, LoadPlan, Report, share_of_cores
from qa_service.programs.load.wire import CollectionWire
from qa_service.progress import progress_bar

_PROGRAM = command_of("qa_service.server.main")
_READY = "QA server ready on "
_STOP_TIMEOUT_S = 60.0
"""Twice a server's own drain timeout: one that takes longer hangs."""
COLUMNS = (
    "sessions", "loop", "clients", "offered_per_s", "answered", "failed", "errors", "duration_s",
    "throughput_per_s", "mean_ms", "std_ms", *(f"p{percent}_ms" for percent in PERCENTS),
    "generator_cores", "engine", "bound",
)  # fmt: skip
_LIBRARIES = ("onnxruntime", "onnxruntime-gpu", "torch")


@dataclass(frozen=True, slots=True)
class Cell:
    """One load and its report; `spent` is where the server's time went, None if it does not say."""

    num_instances: int | None
    plan: LoadPlan
    report: Report
    engine: str = ""
    spent: Spent | None = None

    @property
    def bound(self) -> str:
        """What bounds the server at this load, in a sentence; empty if it does not say."""
        return self.spent.sentence(self.report.generator_cores) if self.spent else ""

    @property
    def load(self) -> float:
        """The varied quantity: requests offered per second, or clients at a time."""
        return self.plan.rate_per_s or self.plan.num_simultaneous_clients


@dataclass(frozen=True, slots=True)
class Sweep:
    """The loads to make.

    Attributes:
        rates_per_s: Rate of each open loop; if any, there is no closed loop.
        instances: Numbers of instances; one server is started for each. Empty to ask the plan's
            server.
    """

    plan: LoadPlan
    clients: Sequence[int]
    rates_per_s: Sequence[float] = ()
    instances: Sequence[int] = ()
    server_flags: Sequence[str] = ()
    engine: str = ""

    def plans(self) -> list[LoadPlan]:
        if self.rates_per_s:
            return [dataclasses.replace(self.plan, rate_per_s=rate) for rate in self.rates_per_s]
        return [dataclasses.replace(self.plan, num_simultaneous_clients=n) for n in self.clients]

    def run(self) -> Iterator[Cell]:
        """Makes one load after another, each with a bar; ends after one that was interrupted.

        Raises:
            SetupError: A server did not start.
            OSError: As in `measure`.
            QaClientError: As in `measure`.
        """
        numbers: Sequence[int | None] = self.instances or [None]
        for num_instances in numbers:
            with contextlib.ExitStack() as stack:
                port, engine = self.plan.port, self.engine
                if num_instances is not None:
                    flags = ["--num_inference_sessions", str(num_instances), *self.server_flags]
                    port = stack.enter_context(own_server(self.plan.host, flags))
                    engine = find_engine(dataclasses.replace(self.plan, port=port))
                for plan in self.plans():
                    here = dataclasses.replace(plan, port=port)
                    before = read_stats(here)
                    load = f"{plan.num_simultaneous_clients} clients"
                    if plan.rate_per_s is not None:
                        load = f"{plan.rate_per_s:g}/s"
                    instances = f"{column_head(num_instances)}, " if num_instances else ""
                    with progress_bar(
                        desc=instances + load, total=plan.num_requests, unit="request"
                    ) as bar:
                        report = measure(here, bar.update)
                    spent = Spent.between(before, read_stats(here))
                    cell = Cell(num_instances, here, report, engine, spent)
                    yield cell
                    if cell.report.interrupted:
                        return


def read_stats(plan: LoadPlan) -> dict[str, Any]:
    """The report of the plan's server; empty if it does not say, or if there are several."""
    if "," in plan.host:
        return {}
    try:
        with plan.access.client(plan.host, plan.port, plan.timeout_s) as client:
            return client.stats()
    except QaClientError:
        return {}


def find_engine(plan: LoadPlan) -> str:
    """The engines of the plan's server, for example `openvino int8`; empty if it does not say.

    Raises:
        QaClientError: The server cannot be reached, or does not accept the client or what every
            question names.
    """
    wire, models = plan.wire(), []
    with plan.access.client(plan.host, plan.port, plan.timeout_s) as client:
        client.connect()
        try:
            models = client.models()
            if isinstance(wire, CollectionWire):
                client.ask(plan.questions[0].question, None, **wire.asked)
        except QaClientError as error:
            if error.code in FLAG_REFUSALS | {"invalid_request"}:
                raise
    names = [
        f"{model.get('engine_type', '')} {model.get('precision', '')}".strip()
        for model in models
        if model.get("state") == "READY" and not model.get("cascade")
    ]
    return ", ".join(dict.fromkeys(names))


def markdown(cells: Sequence[Cell]) -> str:
    """Two tables, a row for each load and a column for each number of instances; then notes."""
    plan = cells[0].plan
    length = f"{plan.num_requests} requests" if plan.num_requests else f"{plan.duration_s:g} s"
    unit, kind = "clients", "Closed loop: each client asks when it has its answer"
    if plan.is_open:
        unit, kind = "requests/s", "Open loop (Poisson), latency from when a request was due"
    bounds = [
        f"- {column_head(cell.num_instances)}, {cell.load:g} {unit}: {cell.bound}"
        for cell in cells
        if cell.bound
    ]
    most = max(cell.report.generator_cores for cell in cells)
    lines = [
        f"Latency in ms: p50 / p99 (mean ± std)\n\n{_table(cells, _latency)}\n",
        f"Throughput in answers per second\n\n{_table(cells, _throughput)}\n",
        *(["Where the time goes\n", *bounds, ""] if bounds else []),
        f"{kind}; {length} a cell, {len(plan.questions)} questions.",
        f"The load generator took at most {share_of_cores(most)}.",
        f"Measured on {machine()}.",
    ]
    return "\n".join(lines)


def _latency(cell: Cell) -> str:
    report = cell.report
    p50, p99 = report.percentiles_ms[50], report.percentiles_ms[99]
    return f"{p50:.1f} / {p99:.1f} ({report.mean_ms:.1f} ± {report.std_ms:.1f})"


def _throughput(cell: Cell) -> str:
    report = cell.report
    failed = f" ({report.num_failed} failed)" if report.num_failed else ""
    cut_short = " (cut short)" if report.interrupted else ""
    return f"{report.throughput:.1f}{failed}{cut_short}"


def _table(cells: Sequence[Cell], show: Callable[[Cell], str]) -> str:
    columns = {cell.num_instances: cell.engine for cell in cells}
    heads = ["offered, requests/s" if cells[0].plan.is_open else "clients"]
    heads += [f"{column_head(n)}{engine and f', {engine}'}" for n, engine in columns.items()]
    found = {(cell.load, cell.num_instances): show(cell) for cell in cells}
    rows = [
        [f"{load:g}", *(found.get((load, column), "") for column in columns)]
        for load in dict.fromkeys(cell.load for cell in cells)
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(words: Sequence[str]) -> str:
        padded = (f"{word:>{width}}" for word, width in zip(words, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (width + 1) + ":" for width in widths)
    return "\n".join([line(heads), f"|{rule}|", *map(line, rows)])


def column_head(num_instances: int | None) -> str:
    return "the server" if num_instances is None else plural(num_instances, "instance")


def machine() -> str:
    """This machine and the libraries' versions, in a line."""
    versions = [f"Python {platform.python_version()}", f"QA server {__version__}"]
    installed = {name: installed_version(name) for name in _LIBRARIES}
    versions += [f"{name} {version}" for name, version in installed.items() if version]
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return f"{num_cpus()} cores of {processor().name}, {system}; {', '.join(versions)}"


def csv_row(cell: Cell) -> list[object]:
    """The values of `COLUMNS`, in full precision."""
    plan, report = cell.plan, cell.report
    errors = " ".join(f"{code}={number}" for code, number in sorted(report.errors.items()))
    loop = "open" if plan.is_open else "closed"
    return [
        cell.num_instances, loop, plan.num_simultaneous_clients, plan.rate_per_s,
        report.num_answered, report.num_failed, errors, report.duration_s,
        report.throughput, report.mean_ms, report.std_ms,
        *(report.percentiles_ms[percent] for percent in PERCENTS),
        report.generator_cores, cell.engine, cell.bound,
    ]  # fmt: skip


@contextlib.contextmanager
def own_server(host: str, flags: Sequence[str]) -> Iterator[int]:
    """Runs a server on a free port as long as the block runs, which begins when it is ready.

    Raises:
        SetupError: It did not start.
    """
    # Its lines are read here, whatever format of the log the flags or the environment ask for.
    command = [*_PROGRAM, "--host", host, "--port", "0", *flags, "--log_format", "text"]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=environment_of_programs(), text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = next((line for line in process.stdout if line.startswith(_READY)), None)
            if ready is None:
                process.wait()
                log.seek(0)
                lines = [line.strip() for line in log if line.strip()]
                last = lines[-1] if lines else f"exit code {process.returncode}"
                raise SetupError(f"the server did not start: {last}")
            yield int(ready.removeprefix(_READY).split(": ")[0].rpartition(":")[2])
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except BaseException:
                process.kill()
                raise
