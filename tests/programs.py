"""Programs run to their end, and the files that ours are given."""

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from harness.process import GIVE_UP_S
from harness.server import ROOT
from qa_service.instance.model_folder.manifest import MANIFEST_FILE


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command, in the checkout unless `cwd` says otherwise."""
    options = {"cwd": ROOT, "timeout": GIVE_UP_S, **options}
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def run_python(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs Python, as in `run_python("client.py", "--health")`."""
    return run(sys.executable, *words, **options)


def run_here(main: Callable[[], int], *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a program's `main` in this process, which is for what it refuses at its start."""
    out, err = io.StringIO(), io.StringIO()
    root = logging.getLogger()
    level = root.level
    with (
        patch.object(root, "handlers", []),
        patch.object(sys, "argv", ["a program", *flags]),
        patch.dict(os.environ),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            code = main()
        except SystemExit as ended:
            assert isinstance(ended.code, int)
            code = ended.code
        finally:
            root.setLevel(level)
    return subprocess.CompletedProcess(flags, code, out.getvalue(), err.getvalue())


def fail_to_start(*flags: object, **options: Any) -> subprocess.CompletedProcess[str]:
    ended = run_python("server.py", "--port", "0", *flags, **options)
    assert ended.returncode == 2, ended.stderr
    assert "QA server ready" not in ended.stdout
    assert "Traceback" not in ended.stderr
    return ended


def token_flags(folder: Path, *lines: str) -> tuple[str, str]:
    """The flags of a server that accepts the tokens of these lines."""
    path = folder / "tokens"
    path.touch(mode=0o600)
    path.write_text("".join(f"{line}\n" for line in lines))
    return "--auth_token_file", str(path)


def change_reading(model: Path, **values: object) -> None:
    """Changes how a prepared model is read, as its manifest has it."""
    manifest = json.loads((model / MANIFEST_FILE).read_text())
    manifest["reading"] |= values
    (model / MANIFEST_FILE).write_text(json.dumps(manifest))
