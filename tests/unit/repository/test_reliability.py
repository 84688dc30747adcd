"""docs/RELIABILITY.md names tests, programs and flags that exist."""

import re
from typing import get_args

from harness.server import ROOT
from qa_service.options import options_of
from qa_service.server.config import Action, ServerConfig

PAGE = (ROOT / "docs" / "RELIABILITY.md").read_text()


def test_every_test_it_names_is_there():
    named = re.findall(r"`(\w+)\.py::(\w+)`", PAGE)
    assert len(named) > 20
    for module, name in named:
        text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob(f"{module}.py"))
        assert re.search(rf"^\s*(?:def|class) {name}\b", text, re.MULTILINE), name


def test_every_program_it_names_is_there():
    named = re.findall(r"python -m benchmarks\.(\w+)", PAGE)
    assert named
    for name in named:
        assert (ROOT / "benchmarks" / f"{name}.py").is_file()


def test_every_flag_it_names_is_there():
    """Of the server; `test_documents.py` has those of programs in a command."""
    flags = {option.name for option in options_of(ServerConfig)} | set(get_args(Action))
    text = re.sub(r"python -m [^\n`]*", "", PAGE)
    named = set(re.findall(r"--(\w+)", text))
    assert len(named) > 10
    assert named <= flags
