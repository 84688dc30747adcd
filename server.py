"""Serves a prepared question-answering model over TCP; `--help` lists the flags."""

from __future__ import annotations

import sys

from qa_service.config import parse_server_flags
from qa_service.errors import SetupError
from qa_service.logs import configure_logging
from qa_service.placement import describe, run_in_real_time
from qa_service.server import QaServer


def main() -> int:
    """Runs the server; returns its exit code."""
    config = parse_server_flags()
    configure_logging(config.log_level, config.log_format)
    try:
        if config.realtime_loop:
            run_in_real_time()
        QaServer(config, on_ready=_say_ready).run()
    except SetupError as error:
        print(f"server.py: {error}", file=sys.stderr)
        return error.exit_code
    print("QA server stopped.", flush=True)
    return 0


def _say_ready(server: QaServer) -> None:
    config = server.config
    if config.print_cost_table:
        print(*server.cost_tables, sep="\n")
    print(
        f"QA server ready on {server.address}: {config.inference_engine_type} engine, "
        f"{config.num_inference_sessions} {config.worker_type} sessions on "
        f"{describe(server.places)}, "
        f"model {server.manifest.name}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
