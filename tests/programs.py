"""Programs run to their end, and the files that ours are given."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
