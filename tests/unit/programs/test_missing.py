"""What a program says to an interpreter that lacks its packages, as the system's does."""

import sys
from pathlib import Path

import pytest

from qa_service.installation import say_missing
from tests.programs import run_python

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
BARE = ("-S", "-E", "-s")
"""Neither site-packages nor the environment."""


def assert_one_line(program: str, command: list[str], words: str) -> None:
    done = run_python(*BARE, *command)
    if "client" in program:  # it needs the standard library alone
        assert done.returncode == 0
        return
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"{program}: ")
    assert words in done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_of_a_clone_ends_with_one_line(program):
    command = [f"{program}.py", "--help"]
    assert_one_line(f"{Path(program).name}.py", command, " is missing")


@pytest.mark.parametrize("program", INSTALLED)
def test_every_program_that_is_installed_ends_with_one_line(program):
    code = f"import sys; sys.argv[0] = 'qa-{program}'; from qa_service import entry; "
    command = ["-c", f"{code} sys.exit(entry.{program}())", "--version"]
    hint = " is missing: pip install -c constraints.txt '.["
    assert_one_line(f"qa-{program}", command, hint)


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
