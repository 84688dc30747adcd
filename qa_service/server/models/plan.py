"""The plan of what is served: the configuration, checked against the versions on disk.

A fault in any part is a `SetupError` that names the table, and no plan is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import structs
from msgspec.structs import replace

from qa_service.errors import SetupError, error_context, list_choices
from qa_service.instance.engines import check_precision
from qa_service.instance.hooks_file import fingerprint_of_hooks
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.server.models.model_options import ModelOptions
from qa_service.server.models.on_disk import FoundVersion, choose_versions, find_versions
from qa_service.server.services.service_options import RouteOptions


class VersionSpec(msgspec.Struct, frozen=True):
    """One version of a model as planned; another spec needs other instances.

    Attributes:
        generation: Counts reloads of the unchanged version.
        hooks_fingerprint: Of the hooks' module; empty if there is none, or it cannot be found.
        asked: The instances as configured, whose engine may be open; None if they are the same.
    """

    model: str
    found: FoundVersion
    instances: InstanceOptions
    generation: int = 0
    hooks_fingerprint: str = ""
    asked: InstanceOptions | None = None

    @property
    def number(self) -> int:
        return self.found.number

    @property
    def key(self) -> tuple[str, int]:
        return self.model, self.number

    @property
    def is_loadable(self) -> bool:
        return not self.instances.is_engine_open

    def __str__(self) -> str:
        return f"{self.model}, version {self.number}"


class ModelPlan(msgspec.Struct, frozen=True):
    """A model as planned; with its name alone, nothing of it is served.

    Attributes:
        versions: By number, ascending.
        traffic: Weights of versions, for requests that name none; empty for the latest.
        shadow: Percent of the requests that are copied to each version.
        is_rolling: Whether a version replaces another an instance at a time.
    """

    name: str
    versions: Mapping[int, VersionSpec] = msgspec.field(default_factory=dict)
    labels: Mapping[str, int] = msgspec.field(default_factory=dict)
    traffic: Mapping[int, int] = msgspec.field(default_factory=dict)
    shadow: Mapping[int, int] = msgspec.field(default_factory=dict)
    is_rolling: bool = False


class Plan(msgspec.Struct, frozen=True):
    models: Mapping[str, ModelPlan]
    routes: Mapping[str, RouteOptions]

    def with_engines(self, choose: Choose) -> Plan:
        """The plan with the engines that were chosen since it was made."""

        def with_engine(spec: VersionSpec) -> VersionSpec:
            asked = spec.asked or spec.instances
            if not asked.is_engine_open:
                return spec
            return replace(spec, instances=choose(spec.model, spec.found, asked))

        models = {
            name: replace(its, versions={n: with_engine(spec) for n, spec in its.versions.items()})
            for name, its in self.models.items()
        }
        return replace(self, models=models)


Choose = Callable[[str, FoundVersion, InstanceOptions], InstanceOptions]
"""Fills in a version's engine if the options leave it open and it is measured, else leaves it open;
may raise `SetupError`."""


def make_plan(
    models: Mapping[str, ModelOptions],
    routes: Mapping[str, RouteOptions],
    choose: Choose,
    generation: int = 0,
) -> Plan:
    """Makes a plan of the configuration and the versions on disk.

    Args:
        generation: A new number has all versions loaded again.

    Raises:
        SetupError: The two do not fit; the message names the table and the key.
    """
    for name, route in routes.items():
        if name in models:
            raise SetupError(f"[routes.{name}]: a model has this name already")
        if unknown := [model for model in route.cascade if model not in models]:
            raise SetupError(
                f"[routes.{name}] cascade: there is no model {unknown[0]}; {list_choices(models)}"
            )
    return Plan(
        {name: _plan(name, its, choose, generation) for name, its in models.items()}, routes
    )


def plan_only_model(
    folder: Path, instances: InstanceOptions, choose: Choose, generation: int = 0, name: str = ""
) -> Plan:
    """Makes a plan of the one model that flags name.

    Args:
        name: Empty for the name in its manifest.

    Raises:
        SetupError: It cannot be served.
    """
    name = name or load_manifest(folder).name
    model = ModelOptions(path=folder, **structs.asdict(instances))
    try:
        return make_plan({name: model}, {}, choose, generation)
    except SetupError as error:
        prefix = f"[models.{name}]: "  # there is no such table
        raise SetupError(str(error).removeprefix(prefix)) from None


def _plan(name: str, options: ModelOptions, choose: Choose, generation: int) -> ModelPlan:
    if not options.num_instances:
        raise SetupError(f"[models.{name}]: num_inference_sessions and ray_instances are both 0")
    with error_context(f"[models.{name}] path"):
        found = find_versions(options.path)
    for label, number in options.labels.items():
        if number not in found:
            what = f"{label} names version {number}, which is not there"
            raise SetupError(f"[models.{name}] labels: {what}; {list_choices(found)}")
    traffic = _by_number(name, "traffic", options.traffic, options, found)
    shadow = _by_number(name, "shadow", options.shadow, options, found)
    if traffic and not any(traffic.values()):
        raise SetupError(f"[models.{name}] traffic: all weights are 0")
    named = {*options.labels.values(), *traffic, *shadow}
    with error_context(f"[models.{name}] versions"):
        chosen = choose_versions(found, options.versions, named)
    specs, asked = {}, options.instances
    for version in chosen:
        with error_context(f"[models.{name}]"):
            its = choose(name, version, asked)
            if not its.is_engine_open:
                check_precision(its.inference_engine_type, its.precision)
        hooks = fingerprint_of_hooks(its.hooks) if its.hooks else ""
        specs[version.number] = VersionSpec(name, version, its, generation, hooks, asked)
    is_rolling = options.transition == "rolling"
    return ModelPlan(name, specs, dict(options.labels), traffic, shadow, is_rolling)


def _by_number(
    name: str,
    key: str,
    table: Mapping[str, int],
    options: ModelOptions,
    found: Mapping[int, FoundVersion],
) -> dict[int, int]:
    """A table's values by version, where its keys may be labels."""
    values: dict[int, int] = {}
    for word, value in table.items():
        number = int(word) if word.isdigit() else options.labels.get(word, 0)
        if number not in found:
            what = f"{word} is neither a version that is there nor a label"
            raise SetupError(f"[models.{name}] {key}: {what}; {list_choices(found)}")
        values[number] = values.get(number, 0) + value
    return values
