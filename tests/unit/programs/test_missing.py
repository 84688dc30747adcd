"""What a program says to an interpreter that lacks its packages, as the system's does."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.server import ROOT
from qa_service.installation import say_missing

PROGRAMS = (
    "server",
    "client",
    "stress_test",
    "prepare_model",
    "evaluate_model",
    "jobs",
    "training/finetune_model",
)
INSTALLED = ("server", "client", "stress_test", "prepare_model", "evaluate_model", "jobs", "index",
             "grpc_gateway")  # fmt: skip
MISSING = ModuleNotFoundError("No module named 'msgspec'", name="msgspec")
BARE = [sys.executable, "-S", "-E", "-s"]
"""Neither site-packages nor the environment."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_of_a_clone_ends_with_one_line(program):
    command = [*BARE, f"{program}.py", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if program == "client":  # it needs the standard library alone
        assert done.returncode == 0
        return
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{Path(program).name}.py: ")
    assert " is missing" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("program", INSTALLED)
def test_every_program_that_is_installed_ends_with_one_line(program):
    code = f"import sys; sys.argv[0] = 'qa-{program}'; from qa_service import entry; "
    command = [*BARE, "-c", f"{code} sys.exit(entry.{program}())"]
    done = subprocess.run([*command, "--version"], cwd=ROOT, capture_output=True, text=True,
                          check=False)  # fmt: skip
    if program == "client":
        assert done.returncode == 0
        return
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"qa-{program}: ")
    assert " is missing: pip install -c constraints.txt '.[" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_error_names_the_interpreter_that_has_the_packages(tmp_path, monkeypatch):
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr("sys.argv", ["server.py"])
    assert say_missing(MISSING, "cpu", root=tmp_path) == (
        f"msgspec is missing for {sys.executable}: run {python} server.py"
    )
    monkeypatch.chdir(tmp_path)
    assert say_missing(MISSING, "cpu", root=tmp_path).endswith(": run .venv/bin/python server.py")
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    hint = "msgspec is missing: pip install -c constraints.txt '.[cpu]', or `make model`"
    assert say_missing(MISSING, "cpu", root=tmp_path).startswith(hint)


def test_a_module_of_ours_that_is_missing_is_a_bug(tmp_path):
    with pytest.raises(ModuleNotFoundError):
        say_missing(ModuleNotFoundError("No module", name="qa_service.nothing"), "cpu")
