"""`--demo`: a small collection of the package's own documents, to ask at once.

It is made before the server listens, in `demo` among the prepared models, and is brought up to
date by later starts.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from os import getpid

from qa_service.child_program import end_with_parent, environment_of_programs
from qa_service.data import HANDBOOK_DIR
from qa_service.errors import SetupError
from qa_service.server.config import ConfigSource
from qa_service.server.models.preparing import prepare_first

INDEX_PROGRAM = "qa_service.retrieval.index_main"


def with_demo(source: ConfigSource) -> ConfigSource:
    """Prepares the model and makes the collection, or raises `SetupError`; the new source."""
    its = source.read().repository
    if its.collections_dir:
        raise SetupError("--demo serves its own collection: leave --collections_dir out")
    prepare_first(its)
    folder = its.models_dir / "demo"
    output = folder / HANDBOOK_DIR.name
    command = [sys.executable, "-m", INDEX_PROGRAM, str(HANDBOOK_DIR), "--output", str(output)]
    if (output / "manifest.json").is_file():
        command.append("--update")
    done = subprocess.run(
        [*command, "--encoder", str(output.parents[1] / "encoder")],
        env=environment_of_programs(),
        stdout=sys.stderr,
        preexec_fn=partial(end_with_parent, getpid()),
        check=False,
    )
    if done.returncode:
        raise SetupError("the collection of --demo could not be made")
    return replace(source, given={**source.given, "collections_dir": folder})
