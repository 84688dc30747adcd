"""Serves a prepared question-answering model over TCP; the program qa-server."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from qa_service.child_program import command_of, end_with_parent, environment_of_programs
from qa_service.command_line import INTERRUPTED
from qa_service.data import HANDBOOK_DIR
from qa_service.errors import SetupError
from qa_service.instance.devices import describe
from qa_service.log_relay import relay_standard_streams
from qa_service.logs import as_log_line, complain, configure_logging, plural
from qa_service.server.check.machine import find_cpu_shortage
from qa_service.server.check.models import measured_engines
from qa_service.server.check.steps import check, require
from qa_service.server.config import ConfigSource, ServerConfig, find_config
from qa_service.server.life_cycle import QaServer
from qa_service.server.models.preparing import prepare_first

logger = logging.getLogger(__name__)

INDEX_PROGRAM = "qa_service.retrieval.index_main"


def _show_stacks(*_: object) -> None:
    """Shows the threads' stacks, also while the loop hangs in Python, but not within a call of C.

    `faulthandler.register` would read them while other threads run, and now and then crash.
    """
    if sys.stderr:
        faulthandler.dump_traceback(2)


def main() -> int:
    signal.signal(signal.SIGQUIT, _show_stacks)
    try:
        source = find_config()
        # By the flags alone at first, so that what is wrong in the file has the log's form.
        flags = ConfigSource(given=source.given).read().logs
        configure_logging(flags.log_level, flags.log_format)
        config = source.read()
        configure_logging(config.logs.log_level, config.logs.log_format)
        if source.action == "check":
            return check(config)
        if source.action == "print_engines":
            if not config.models:
                prepare_first(config.repository)
            for text in measured_engines(config):
                _say(config, text)
            return 0
        if source.action == "demo":
            source = _with_demo(source)
            config = source.read()
        require(config)
        relay_standard_streams()
        QaServer(config, _say_listening, _say_ready, source).run()
    except SetupError as error:
        complain(error)
        return error.exit_code
    except KeyboardInterrupt:  # the server handles the signal; what only measures does not
        return INTERRUPTED
    _say(config, "QA server stopped.")
    return 0


def _with_demo(source: ConfigSource) -> ConfigSource:
    """Makes the collection of `--demo`, of the package's own documents; the source that serves it.

    The model is prepared first. The collection is in `demo` among the prepared models, and later
    starts bring it up to date. What cannot be made is a `SetupError`.
    """
    its = source.read().repository
    if its.collections_dir:
        raise SetupError("--demo serves its own collection: leave --collections_dir out")
    prepare_first(its)
    folder = its.models_dir / "demo"
    output = folder / HANDBOOK_DIR.name
    command = command_of(INDEX_PROGRAM, str(HANDBOOK_DIR), "--output", str(output))
    if (output / "manifest.json").is_file():
        command.append("--update")
    done = subprocess.run(
        [*command, "--encoder", str(output.parents[1] / "encoder")],
        env=environment_of_programs(),
        stdout=sys.stderr,
        preexec_fn=partial(end_with_parent, os.getpid()),
        check=False,
    )
    if done.returncode:
        raise SetupError("the collection of --demo could not be made")
    return replace(source, given={**source.given, "collections_dir": folder})


def _say(config: ServerConfig, line: str) -> None:
    """Prints a line as the log has them; a closed pipe or a full disk ends nothing."""
    try:
        print(as_log_line(line, config.logs.log_format), flush=True)
    except OSError as error:
        logger.warning("standard output cannot be written: %s", error.strerror)
        # The rest of the buffer would fail again when the program ends.
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def _say_listening(server: QaServer) -> None:
    _say(server.config, f"QA server listening on {server.address}, not ready yet")


def _say_ready(server: QaServer) -> None:
    ready, served = list(server.catalog.ready), []
    if shortage := find_cpu_shortage([one.spec.instances for one in ready]):
        logger.warning("%s: %s", *shortage)
    for one in ready:
        instances, reason = one.spec.instances, server.engines.reason(one.spec.found.path)
        version = f" version {one.spec.number}" if len(ready) > 1 else ""
        served.append(
            f"{instances.inference_engine_type} engine in {instances.precision}"
            f"{f' ({reason})' if reason else ''}, "
            f"{plural(instances.num_instances, 'instance')} on {describe(one.pool.devices)}, "
            f"model {one.spec.model}{version}"
        )
    _say(server.config, f"QA server ready on {server.address}: {'; '.join(served)}")


if __name__ == "__main__":
    sys.exit(main())
