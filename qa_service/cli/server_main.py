"""Serves a prepared question-answering model over TCP; the program qa-server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from qa_service.config import find_config
from qa_service.errors import SetupError
from qa_service.logs import configure_logging
from qa_service.server import QaServer
from qa_service.workers.devices import describe, run_in_real_time


def main() -> int:
    """Runs the server; returns its exit code."""
    try:
        source = find_config()
        config = source.read()
        configure_logging(config.logs.log_level, config.logs.log_format)
        if config.server.realtime_loop:
            run_in_real_time()
        QaServer(config, _say_ready, source).run()
    except SetupError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return error.exit_code
    print("QA server stopped.", flush=True)
    return 0


def _say_ready(server: QaServer) -> None:
    config = server.config
    if config.server.print_engines:
        print(*server.engines.tables.values(), sep="\n")
    if config.server.print_cost_table:
        print(*server.cost_tables, sep="\n")
    print(f"QA server ready on {server.address}: {'; '.join(_what_serves(server))}", flush=True)


def _what_serves(server: QaServer) -> Iterator[str]:
    """Each model with its engine and instances; of several versions, each one's."""
    ready = list(server.models.ready)
    for one in ready:
        instances, table = one.spec.instances, server.engines.tables.get(one.spec.found.path)
        reason = f" ({table.reason})" if table else ""
        version = f" version {one.spec.number}" if len(ready) > 1 else ""
        yield (
            f"{instances.inference_engine_type} engine in {instances.precision}{reason}, "
            f"{instances.num_instances} instances on {describe(one.pool.devices)}, "
            f"model {one.spec.model}{version}"
        )


if __name__ == "__main__":
    sys.exit(main())
