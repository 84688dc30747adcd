"""Prints a server's health, statistics and models for health checks, scripts and people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qa_service.client import QaClient
from qa_service.command_line import ExitCode
from qa_service.programs.bounds import InstanceShares, Spent

_SHADOW_FIGURES = ("seen", "agreed", "differed", "failed", "share", "agreement")
_COLUMNS = ("count", "mean", "p50", "p90", "p99", "max")


def show_health(client: QaClient, as_json: bool) -> ExitCode:
    """Prints whether the server is ready, and why not if it is not."""
    health = client.health()
    if as_json:
        print(json.dumps(health.report))
    else:
        print("ready" if health.ready else f"not ready: {health.reason}")
        print(*_lines(health.report), sep="\n")
    return ExitCode.YES if health.ready else ExitCode.NO


def show_stats(client: QaClient, as_json: bool) -> ExitCode:
    """Prints the server's counts, as a table or as one line of JSON."""
    stats = client.stats()
    print(json.dumps(stats) if as_json else "\n".join(_table(stats)))
    return ExitCode.YES


def show_models(client: QaClient, as_json: bool) -> ExitCode:
    """Prints the versions of all models with their state, the routes and the collections."""
    models = client.models()
    if as_json:
        print(json.dumps(models))
    else:
        collections = client.stats().get("collections", {})
        print(*_model_lines(models), *(f"collection {name}" for name in collections), sep="\n")
    return ExitCode.YES


def _model_lines(models: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each version, with the reason of a failed load below; then the routes."""
    form = "{:<24} {:>7} {:<12} {:<14} {:>6} {:>10} {:>9}  {}"
    yield form.format(
        "model", "version", "state", "engine", "share", "instances", "memory", "labels"
    )
    routes = [model for model in models if model.get("cascade")]
    for model in models:
        if model in routes:
            continue
        engine = f"{model['engine_type']} {model.get('precision', '')}"
        share, memory = f"{model['share']:.0%}", f"{model['memory_bytes'] / 2**20:.0f} MiB"
        instances = f"{model['alive']} of {model['instances']}"
        labels = ", ".join(model["labels"])
        yield form.format(
            model["name"], model["version"], model["state"], engine, share, instances, memory,
            labels,
        ).rstrip()  # fmt: skip
        if model["failed_loads"]:
            yield f"    not loaded: {model['reason']}"
    for route in routes:
        state = "READY" if route["is_ready"] else f"not ready: {route['reason']}"
        yield f"route {route['name']}: {' then '.join(route['cascade'])}; {state}"


def _lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """A line for each figure, and for each label of one that has labels."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from _lines({f"{name}{{{label}}}": count for label, count in value.items()})
        else:
            yield f"  {name:<36} {value}"


def _table(stats: Mapping[str, Any]) -> Iterator[str]:
    """Counters and gauges a line each, where the time went, then a row for each histogram."""
    yield from _lines(stats.get("counters", {}))
    yield from _lines(stats.get("gauges", {}))
    yield from _lines({"cascade": stats.get("cascades", {})})
    for shadow in stats.get("shadows", []):
        name = f"shadow{{{shadow['model']} {shadow['version']}}}"
        yield from _lines({name: {k: v for k, v in shadow.items() if k in _SHADOW_FIGURES}})
    if spent := Spent.between({}, stats):
        loop = f"on a core {spent.loop_cpu:.2f}, waiting {spent.loop_waiting:.2f}"
        yield f"  {'loop':<36} {loop}"
    for instance in stats.get("sessions", []):
        name, seconds = f"instance {instance['session']}", instance.get("seconds", {})
        shares = f": {InstanceShares.of([seconds])}" if seconds.get("ready") else ""
        yield f"  {name:<36} {instance['device']}{shares}"
    for gpu in stats.get("gpus", []):
        yield from _lines({f"gpu{{{gpu['uuid']}}}": {k: v for k, v in gpu.items() if k != "uuid"}})
    yield f"  {'':<24}" + "".join(f"{column:>11}" for column in _COLUMNS)
    for name, histogram in stats.get("histograms", {}).items():
        count = histogram.get("count", 0)
        figures = {**histogram, "mean": histogram["sum"] / count if count else None}
        cells = (figures.get(column) for column in _COLUMNS)
        shown = ("-" if figure is None else f"{figure:.5g}" for figure in cells)
        yield f"  {name:<24}" + "".join(f"{cell:>11}" for cell in shown)
