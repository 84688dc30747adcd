"""What is to be served: the configuration and what is on disk, brought together and checked.

A plan is whole or there is none: whatever is wrong with any part of it is a `SetupError` that names
the table, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from qa_service.errors import SetupError, there_are
from qa_service.inference.engines import check_precision
from qa_service.repository.models import (
    FoundVersion,
    choose_versions,
    find_versions,
    say_versions,
)
from qa_service.serving.options import ModelOptions, RouteOptions
from qa_service.workers.options import InstanceOptions

DEFAULT_ROUTE = "default"


@dataclass(frozen=True, slots=True)
class VersionSpec:
    """One version of a model as it is to be; another spec is another set of instances.

    Attributes:
        model: The model's name.
        found: The version on disk.
        instances: How it is run.
        generation: Counts how often it was asked to be loaded again as it is.
    """

    model: str
    found: FoundVersion
    instances: InstanceOptions
    generation: int = 0

    @property
    def number(self) -> int:
        """The version."""
        return self.found.number

    @property
    def key(self) -> tuple[str, int]:
        """What names it: the model and the version."""
        return self.model, self.number

    @property
    def is_loadable(self) -> bool:
        """Whether its engine is known; else it waits until that is measured."""
        return not self.instances.is_engine_open

    def is_same_as(self, other: VersionSpec) -> bool:
        """Whether both are the same but for their generation."""
        return replace(self, generation=0) == replace(other, generation=0)

    def __str__(self) -> str:
        return f"{self.model}, version {self.number}"


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model as it is to be.

    Attributes:
        name: Its name.
        versions: Its versions, by number, ascending.
        labels: The version of each label.
        traffic: Weights of versions, for requests that name none; empty for the latest.
        shadow: Percent of the requests that are copied to a version.
        is_rolling: Whether versions take turns an instance at a time.
    """

    name: str
    versions: Mapping[int, VersionSpec]
    labels: Mapping[str, int]
    traffic: Mapping[int, int]
    shadow: Mapping[int, int]
    is_rolling: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is to be served.

    Attributes:
        models: By name.
        routes: By name, with the models that they ask.
    """

    models: Mapping[str, ModelPlan]
    routes: Mapping[str, RouteOptions]

    def with_engines(self, choose: Choose) -> Plan:
        """The same plan, with the engines that have been chosen since it was made."""
        return replace(
            self, models={name: _with_engines(model, choose) for name, model in self.models.items()}
        )


Choose = Callable[[str, FoundVersion, InstanceOptions], InstanceOptions]
"""Fills in the engine of a version where the options leave it open; may raise `SetupError`.

The engine stays open while it is still to be measured.
"""


def _with_engines(model: ModelPlan, choose: Choose) -> ModelPlan:
    versions = {
        number: replace(spec, instances=choose(spec.model, spec.found, spec.instances))
        if not spec.is_loadable
        else spec
        for number, spec in model.versions.items()
    }
    return replace(model, versions=versions)


def make_plan(
    models: Mapping[str, ModelOptions],
    routes: Mapping[str, RouteOptions],
    choose: Choose,
    generation: int = 0,
) -> Plan:
    """Looks at what is on disk and brings it together with what is asked for.

    Args:
        models: By name.
        routes: By name.
        choose: Fills in the engine of a version.
        generation: Another one has everything loaded again.

    Raises:
        SetupError: It does not fit together; the message names the table and the key.
    """
    for name, route in routes.items():
        if name in models:
            raise SetupError(f"[routes.{name}]: a model has this name already")
        if unknown := [model for model in route.cascade if model not in models]:
            raise SetupError(
                f"[routes.{name}] cascade: there is no model {unknown[0]}; {there_are(models)}"
            )
    return Plan(
        {name: _plan(name, its, choose, generation) for name, its in models.items()}, routes
    )


def _plan(name: str, options: ModelOptions, choose: Choose, generation: int) -> ModelPlan:
    if not options.num_instances:
        raise SetupError(f"[models.{name}]: there are to be no instances, neither here nor on Ray")
    try:
        found = find_versions(options.path)
    except SetupError as error:
        raise SetupError(f"[models.{name}] path: {error}") from None
    for label, number in options.labels.items():
        if number not in found:
            what = f"{label} names version {number}, which is not there"
            raise SetupError(f"[models.{name}] labels: {what}; {say_versions(found)}")
    traffic = _by_number(name, "traffic", options.traffic, options, found)
    shadow = _by_number(name, "shadow", options.shadow, options, found)
    if traffic and not any(traffic.values()):
        raise SetupError(f"[models.{name}] traffic: all weights are 0")
    try:
        chosen = choose_versions(
            found, options.versions, {*options.labels.values(), *traffic, *shadow}
        )
    except SetupError as error:
        raise SetupError(f"[models.{name}] versions: {error}") from None
    specs = {v.number: _spec(name, v, options.instances, choose, generation) for v in chosen}
    is_rolling = options.transition == "rolling"
    return ModelPlan(name, specs, dict(options.labels), traffic, shadow, is_rolling)


def _spec(
    name: str, found: FoundVersion, options: InstanceOptions, choose: Choose, generation: int
) -> VersionSpec:
    try:
        instances = choose(name, found, options)
        if not instances.is_engine_open:
            check_precision(instances.inference_engine_type, instances.precision)
    except SetupError as error:
        raise SetupError(f"[models.{name}]: {error}") from None
    return VersionSpec(name, found, instances, generation)


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
            raise SetupError(f"[models.{name}] {key}: {what}; {say_versions(found)}")
        values[number] = values.get(number, 0) + value
    return values
