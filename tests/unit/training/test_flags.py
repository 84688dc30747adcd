"""The programs of training read flags as all others do, and keep their libraries silent."""

import pytest

from harness.server import ROOT
from qa_service.child_program import NO_TELEMETRY
from tests.programs import run_python
from tests.support import needs_torch

PROGRAMS = {"finetune_model": "training/finetune_model.py", "documents": "-m training.documents"}


@pytest.fixture(params=[pytest.param("finetune_model", marks=needs_torch), "documents"])
def words(request):
    return PROGRAMS[request.param].split()


def test_version_hyphens_and_near_flags_are_those_of_every_program(words):
    assert "0." in run_python(*words, "--version").stdout
    wrong = run_python(*words, "--out-put", "x")
    assert (wrong.returncode, "did you mean --output" in wrong.stderr) == (2, True)


def test_telemetry_is_off_before_a_library_is_loaded(words):
    module = words[-1].removesuffix(".py").replace("/", ".")
    code = (
        f"import os, sys; sys.argv = ['x', '--version']; from {module} import main\n"
        "try: main()\nexcept SystemExit: print(os.environ)"
    )
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": "/nowhere"}
    said = run_python("-c", code, env=env).stdout
    assert all(f"'{name}': '{value}'" in said for name, value in NO_TELEMETRY.items())
