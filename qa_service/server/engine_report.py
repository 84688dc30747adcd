"""Measures for `--print_engines` every engine that `auto` may choose on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qa_service.autotune.candidates import choose_engine
from qa_service.autotune.engine_table import Measurement
from qa_service.autotune.engine_trial import try_engines
from qa_service.errors import SetupError
from qa_service.instance.devices import first_device
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.costs_dir import keep
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.server.config import ServerConfig
from qa_service.server.models.on_disk import FoundVersion
from qa_service.server.models.plan import VersionSpec, make_plan, plan_only_model
from qa_service.server.models.preparing import served_folder


def measured_engines(config: ServerConfig) -> Iterator[str]:
    """Yields each version's table, or why there is none; measures what no table has yet."""
    for name, spec in versions_of(config).items():
        yield f"{name}:\n{_measured(config, spec.found.path, spec.instances)}"


def versions_of(config: ServerConfig) -> dict[str, VersionSpec]:
    """Each version as a start plans it, by its name, or a `SetupError`; its engine may be open."""
    if not config.models:
        if config.routes:
            raise SetupError("[routes] needs [models.NAME]")
        plan = plan_only_model(served_folder(config.repository), config.instances, _as_it_is)
        (model,) = plan.models.values()
        return dict(zip(plan.models, model.versions.values(), strict=True))
    plan = make_plan(config.models, config.routes, _as_it_is)
    return {str(spec): spec for its in plan.models.values() for spec in its.versions.values()}


def _as_it_is(model: str, found: FoundVersion, options: InstanceOptions) -> InstanceOptions:
    return options


def _measured(config: ServerConfig, folder: Path, options: InstanceOptions) -> str:
    if not options.is_engine_open:
        return f"{options.inference_engine_type} {options.precision}, as the options say"
    device = first_device(options)
    if device is None:
        raise SetupError("all instances are on Ray: this machine cannot measure their engines")
    found = choose_engine(options, device, folder, load_manifest(folder), measures_all=True)
    if isinstance(found, Measurement):
        table = try_engines(found, config.logs, measures_all=True)
        keep(Path(found.path), table)
        found = found.choice(table)
    its = found.options
    return str(found.table or f"{its.inference_engine_type} {its.precision}: nothing else can run")
