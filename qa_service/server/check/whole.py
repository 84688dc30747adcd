"""The whole check, part by part, and its exit code."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from qa_service.logs import hide_password, plural
from qa_service.server.check.collections import check_collections
from qa_service.server.check.front import check_front
from qa_service.server.check.gpus import check_gpus
from qa_service.server.check.machine import check_machine, check_program
from qa_service.server.check.models import check_models
from qa_service.server.check.report import CheckReport, Finding, ok
from qa_service.server.config import ServerConfig, changed_options

_OWN = {"[server] check", "[server] json"}


def check(config: ServerConfig) -> int:
    """Prints what a start would find; returns the exit code."""
    is_text = not config.server.json
    report = CheckReport(print_now if is_text else lambda _: None)
    logging.getLogger().handlers.clear()  # what is logged is in the report
    report.add("program", check_program())
    report.add("configuration", check_configuration(config))
    report.add("machine", check_machine(config))
    report.add("GPUs", check_gpus(config))
    report.add("models", check_models(config))
    report.add("collections", check_collections(config))
    report.add("clients", check_front(config))
    print_now(report.verdict if is_text else report.to_json())
    return report.exit_code


def print_now(line: str) -> None:
    """Prints a line at once, also to a pipe."""
    print(line, flush=True)


def check_configuration(config: ServerConfig) -> Iterator[Finding]:
    """The options that are not the defaults, without passwords, and what is served by name."""
    changed = set(changed_options(ServerConfig(), config)) - _OWN
    for name in sorted(changed):
        section, _, option = name.partition(" ")
        value = getattr(getattr(config, section.strip("[]")), option)
        yield ok(f"{name} = {hide_password(str(value))}")
    if not changed:
        yield ok("every option has its default")
    for kind, named in (
        ("model", config.models),
        ("route", config.routes),
        ("collection", config.collections),
    ):
        if named:
            yield ok(f"{plural(len(named), kind)}: {', '.join(named)}")
