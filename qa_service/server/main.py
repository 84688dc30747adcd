"""Serves a prepared question-answering model over TCP; the program qa-server."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from qa_service.errors import SetupError
from qa_service.flags import INTERRUPTED
from qa_service.instance.devices import CPU, describe
from qa_service.logs import as_log_line, complain, configure_logging, plural
from qa_service.machine import allow_descriptors, num_cpus
from qa_service.server.check.whole import check
from qa_service.server.config import OTHER_DESCRIPTORS, ConfigSource, ServerConfig, find_config
from qa_service.server.engine_report import measured_engines
from qa_service.server.life_cycle import QaServer
from qa_service.server.models.preparing import prepare_first

logger = logging.getLogger(__name__)


def main() -> int:
    """Runs the server; returns its exit code."""
    try:
        source = find_config()
        flags = ConfigSource(given=source.given).read().logs
        configure_logging(flags.log_level, flags.log_format)
        config = source.read()
        configure_logging(config.logs.log_level, config.logs.log_format)
        if config.server.check:
            return check(config)
        if not config.models:
            may_prepare, say = config.repository.prepare, partial(_say, config)
            prepare_first(config.repository.model, may_prepare=may_prepare, say=say)
        if config.server.print_engines:
            for text in measured_engines(config):
                _say(config, text)
            return 0
        _look_at_limits(config)
        QaServer(config, _say_listening, _say_ready, source).run()
    except SetupError as error:
        complain(error)
        return error.exit_code
    except KeyboardInterrupt:  # the server handles the signal; what only measures does not
        return INTERRUPTED
    _say(config, "QA server stopped.")
    return 0


def _look_at_limits(config: ServerConfig) -> None:
    """Raises the limit of descriptors; warns where the machine is too small for what is asked."""
    needed = config.listen.max_connections + OTHER_DESCRIPTORS
    if (found := allow_descriptors(needed)) < needed:
        logger.warning(
            "at most %d of --max_connections %d fit into the limit of %d descriptors: raise it "
            "with ulimit -n",
            max(0, found - OTHER_DESCRIPTORS), config.listen.max_connections, found,
        )  # fmt: skip
    asked = config.instances.num_inference_sessions
    if config.instances.devices == CPU and asked > num_cpus():
        logger.warning("%d instances share %s", asked, plural(num_cpus(), "CPU"))


def _say(config: ServerConfig, *lines: object) -> None:
    """Prints lines, each as the log has them; a closed pipe or a full disk ends nothing."""
    try:
        for line in lines:
            print(as_log_line(str(line), config.logs.log_format), flush=True)
    except OSError as error:
        logger.warning("standard output cannot be written: %s", error.strerror)
        # The rest of the buffer would fail again when the program ends.
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def _say_listening(server: QaServer) -> None:
    _say(server.config, f"QA server listening on {server.address}, not ready yet")


def _say_ready(server: QaServer) -> None:
    config = server.config
    if config.server.print_cost_table:
        _say(config, *server.cost_tables)
    _say(config, f"QA server ready on {server.address}: {'; '.join(_what_serves(server))}")


def _what_serves(server: QaServer) -> Iterator[str]:
    """The engine and instances of each ready version."""
    ready = list(server.catalog.ready)
    for one in ready:
        instances, table = one.spec.instances, server.engines.tables.get(one.spec.found.path)
        reason = f" ({table.reason})" if table else ""
        version = f" version {one.spec.number}" if len(ready) > 1 else ""
        yield (
            f"{instances.inference_engine_type} engine in {instances.precision}{reason}, "
            f"{plural(instances.num_instances, 'instance')} on {describe(one.pool.devices)}, "
            f"model {one.spec.model}{version}"
        )


if __name__ == "__main__":
    sys.exit(main())
