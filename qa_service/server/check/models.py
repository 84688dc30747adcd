"""What is served: models and their known answers on every engine; collections and their indexes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from qa_service.autotune.candidates import choose_engine, every_engine
from qa_service.autotune.engine_table import Finding as Candidate
from qa_service.autotune.engine_table import Measurement
from qa_service.engine_catalogue import AUTO, INSTANT
from qa_service.errors import SetupError, error_context
from qa_service.installation import preparing_program
from qa_service.instance.costs import named_costs
from qa_service.instance.devices import first_device, need_ray
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder import manifest as model_manifest
from qa_service.instance.model_folder.costs_dir import keep
from qa_service.instance.model_folder.known_answers import load_known_answers
from qa_service.instance.model_folder.manifest import Manifest, load_manifest
from qa_service.instance.worker_messages import Setup
from qa_service.logs import LogOptions, plural
from qa_service.net.event_loop import EventLoop
from qa_service.server.check.report import Finding, error, ok, warning
from qa_service.server.config import ServerConfig
from qa_service.server.deployment import collections_of, encoder_of
from qa_service.server.models.catalog import check_memory, estimated_bytes
from qa_service.server.models.on_disk import FoundVersion
from qa_service.server.models.plan import VersionSpec, make_plan, plan_only_model
from qa_service.server.models.preparing import served_folder, unprepared
from qa_service.server.services.collection_set import CollectionSet
from qa_service.server.services.searches import search_program
from qa_service.server.telemetry.services import ServiceCounts

if TYPE_CHECKING:
    from qa_service.autotune.engine_trial import Instance

QUIET = LogOptions(log_level="error")


def check_prepared(config: ServerConfig) -> Iterator[Finding]:
    its = config.repository
    if not (missing := None if config.models else unprepared(its)):
        found = versions_of(config)
        yield ok(f"{plural(len(found), 'version')}: {', '.join(found)}")
    elif its.prepare:
        yield warning(f"{its.model} is not prepared; a start prepares it first, in {missing[1]}")
    else:
        yield error(
            f"{its.model} is not prepared, and --no-prepare is set",
            f"{preparing_program()} --model {its.model}",
        )


def check_requirements(config: ServerConfig) -> Iterator[Finding]:
    """What each version needs besides its files: Ray, memory, a cost table."""
    needed = 0
    for spec in _versions(config).values():
        its = spec.instances
        try:
            need_ray(its)
            more = its.num_instances * estimated_bytes(spec)
            limit = config.repository.max_memory_bytes
            check_memory(spec, its.num_instances, more, needed, limit)
            needed += more
            if its.inference_engine_type != INSTANT:
                with error_context("instance 0 cannot start"):
                    named_costs(its.cost_table)
        except SetupError as caught:
            yield error(str(caught))


def check_hooks(config: ServerConfig) -> Iterator[Finding]:
    """Has an instance without a model load each version's hooks."""
    for name, spec in _versions(config).items():
        if hooks := spec.instances.hooks:
            options = structs.replace(spec.instances, inference_engine_type=INSTANT)
            setup = Setup(str(spec.found.path), options, keeps=False)
            try:
                with error_context("instance 0 cannot start"), _instance(setup) as instance:
                    instance.prove()
            except SetupError as caught:
                yield error(str(caught))
            else:
                yield ok(f"{name} has the hooks {hooks}")


def _instance(setup: Setup) -> Instance:
    from qa_service.autotune.engine_trial import Instance  # noqa: PLC0415 - a start tries none

    return Instance(setup, QUIET)


def check_files(config: ServerConfig) -> Iterator[Finding]:
    """Compares each version's files with their hashes, and runs its known answers."""
    for name, spec in _versions(config).items():
        folder, manifest = spec.found.path, load_manifest(spec.found.path)
        model_manifest.check_files(folder, manifest, manifest.files)
        size_mib = sum((folder / file).stat().st_size for file in manifest.files) / 2**20
        yield ok(
            f"{name}: {len(manifest.files)} files of {size_mib:.0f} MiB in {folder}, as their "
            "hashes in the manifest say"
        )
        for file, reason in manifest.without.items():
            yield ok(f"{name} has no {file}: {reason}")
        if spec.instances.inference_engine_type != INSTANT:
            known = load_known_answers(folder, manifest)
            rows = len(known.rows) + len(known.vocabulary)
            yield ok(f"{name} has {rows} known answers")
            yield from _check_engines(name, folder, manifest, spec.instances)


def _versions(config: ServerConfig) -> dict[str, VersionSpec]:
    """The versions that are served; none if they must be prepared first."""
    is_prepared_first = not config.models and unprepared(config.repository)
    return {} if is_prepared_first else versions_of(config)


def _check_engines(
    name: str, folder: Path, manifest: Manifest, options: InstanceOptions
) -> Iterator[Finding]:
    """Loads the model into each engine on the first instance's device."""
    device = first_device(options)
    if device is None:
        yield ok(f"{name}: all instances are on Ray, whose engines this machine cannot check")
        return
    num_passed = 0
    for candidate, setup in every_engine(options, device, folder, manifest):
        finding, has_passed = _check_engine(name, candidate, setup, options)
        num_passed += has_passed and options.names(candidate.engine_type, candidate.precision)
        yield finding
    if not num_passed:
        named = f"{options.inference_engine_type} {options.precision}"
        yield error(f"{name}: no engine that the options allow ({named}) can serve it")


def _check_engine(
    name: str, candidate: Candidate, setup: Setup, options: InstanceOptions
) -> tuple[Finding, bool]:
    where = f"{name} on {candidate} ({setup.device.device})"
    if candidate.failure:
        return ok(f"{where} is left out: {candidate.failure}"), False
    started_s = time.monotonic()
    try:
        with _instance(structs.replace(setup, keeps=False)) as instance:
            ready = instance.prove()
    except SetupError as caught:
        is_named = options.names(candidate.engine_type, candidate.precision)
        is_named &= options.inference_engine_type != AUTO
        return (error if is_named else warning)(f"{where}: {caught}"), False
    took_s = time.monotonic() - started_s
    words = f"{where} starts in {took_s:.1f} s"
    if ready.can_test:
        words += (
            f" and gives its known answers in {ready.self_test_ms:.0f} ms, "
            f"with differences up to {ready.largest_difference:.2g}"
        )
    return ok(words), True


GIVE_UP_S = 60.0
"""For all collections together; an index is opened within a second."""


def check_collections(config: ServerConfig) -> Iterator[Finding]:
    """Compares each index with its checksums, tries its encoder, and reaches its cluster."""
    if not config.collections and config.repository.collections_dir is None:
        yield ok("there are no collections")
        return
    loop = EventLoop()
    launch = partial(search_program, config.logs, encoder_of(config), only_checks=True)
    collections = CollectionSet(loop, launch, ServiceCounts(), config.queue.max_queue_size)
    try:
        collections.use(collections_of(config), config.repository.collections_dir)
        _run_until_opened(loop, collections)
        faults = collections.faults()
        for name, state in collections.states().items():
            if name in faults:
                yield warning(f"{name}: {faults[name]}", "qa-index makes it again")
            else:
                yield ok(f"{name}: {state}")
        if reason := collections.failure:
            yield error(reason)
    finally:
        collections.kill()
        while not collections.reap():
            time.sleep(0.01)
        loop.close()


def _run_until_opened(loop: EventLoop, collections: CollectionSet) -> None:
    over_s = loop.now_s() + GIVE_UP_S

    def look() -> None:
        if collections.has_started or loop.now_s() >= over_s:
            loop.stop()

    loop.after_each = look
    loop.call_at(over_s, lambda: None)
    loop.call_soon(lambda: None)
    loop.run()


def measured_engines(config: ServerConfig) -> Iterator[str]:
    """Yields each version's table, or why there is none; measures what no table has yet."""
    for name, spec in versions_of(config).items():
        its, folder = spec.instances, spec.found.path
        if not its.is_engine_open:
            yield f"{name}:\n{its.inference_engine_type} {its.precision}, as the options say"
            continue
        device = first_device(its)
        if device is None:
            raise SetupError("all instances are on Ray: this machine cannot measure their engines")
        found = choose_engine(its, device, folder, load_manifest(folder), measures_all=True)
        if isinstance(found, Measurement):
            from qa_service.autotune.engine_trial import try_engines  # noqa: PLC0415

            table = try_engines(found, config.logs, measures_all=True)
            keep(Path(found.path), table)
            found = found.choice(table)
        best = f"{found.options.inference_engine_type} {found.options.precision}"
        yield f"{name}:\n{found.table or f'{best}: nothing else can run'}"


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
