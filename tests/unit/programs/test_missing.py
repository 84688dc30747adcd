"""What a program says to an interpreter that lacks its packages, as the system's does."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.server import ROOT
from qa_service.programs.missing import advice

PROGRAMS = (
    "server",
    "stress_test",
    "prepare_model",
    "evaluate_model",
    "jobs",
    "training/finetune_model",
)
MISSING = ModuleNotFoundError("No module named 'msgspec'", name="msgspec")


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_of_a_clone_ends_with_one_line(program):
    # Neither site-packages nor the environment.
    command = [sys.executable, "-S", "-E", "-s", f"{program}.py", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{Path(program).name}.py: the package ")
    assert done.stderr.count("\n") == 1


def test_the_error_names_the_interpreter_that_has_the_packages(tmp_path, monkeypatch):
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setattr("sys.argv", ["server.py"])
    assert advice(MISSING, tmp_path).endswith(f"; run {python} server.py")
    monkeypatch.chdir(tmp_path)
    assert advice(MISSING, tmp_path).endswith("; run .venv/bin/python server.py")
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    assert "`make model` installs it" in advice(MISSING, tmp_path)


def test_the_error_says_how_to_install_the_packages(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/clone/server.py"])
    words = f"server.py: the package msgspec is not installed for {sys.executable}"
    assert advice(MISSING, tmp_path).startswith(f"{words}; `make model` installs it into ")


def test_a_module_of_ours_that_is_missing_is_a_bug(tmp_path):
    with pytest.raises(ModuleNotFoundError):
        advice(ModuleNotFoundError("No module", name="qa_service.nothing"), tmp_path)
