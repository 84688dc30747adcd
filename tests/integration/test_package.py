"""The wheel, installed outside the clone into an environment of its own, and its programs run."""

import os
import shutil
import site
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.process import GIVE_UP_S
from harness.server import FIXED_ENGINE, ROOT, line_with, port_of
from tests.programs import run, run_python
from tests.support import present

pytestmark = pytest.mark.slow

SOURCES = ("LICENSE", "README.md", "models", "pyproject.toml", "qa_service")
MORE_SOURCES = ("CHANGELOG.md", "MANIFEST.in", "constraints.txt", "docs")
OLDEST_EXTRAS = ("reading", "serve", "collections", "load", "jobs")
TEST_TOOLS = ("openpyxl", "python-docx", "hypothesis", "pytest==", "pytest-timeout", "trustme")
OLDEST_TESTS = tuple(
    f"tests/unit/{name}" for name in ("aio", "programs", "retrieval", "test_client.py", "wire")
)
TEXT = "Ada Lovelace wrote the notes in London in 1843."
PIPED: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy of its sources, which building litters."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, sources / name, symlinks=True, ignore=ignored)
        else:
            sources.mkdir(exist_ok=True)
            shutil.copy(path, sources / name)
    stored = {"--build-option": "--compression=stored"}  # compressing takes seconds
    build = f"from setuptools.build_meta import build_wheel; build_wheel('..', {stored})"
    built = run_python("-c", build, cwd=sources)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory) -> Path:
    """The folder of the installed programs; what they depend on is lent by our own environment."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin"


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*command, *map(str, arguments)], check=True, timeout=GIVE_UP_S)


def run_installed(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run(program, *arguments, **surroundings(program))


def surroundings(program: Path) -> dict[str, Any]:
    """Its own folder and no module path: what it imports is what was installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {"cwd": program.parent, "env": environment}


@pytest.fixture(scope="module")
def port(programs, builtin_model) -> Iterator[str]:
    program = programs / "qa-server"
    command = [program, "--port", "0", "--num_inference_sessions", "1", "--model", builtin_model]
    command += FIXED_ENGINE  # in another environment all would be measured again
    with subprocess.Popen(command, **surroundings(program), **PIPED) as server:
        try:
            yield port_of(line_with(present(server.stdout), "QA server ready"))
        finally:
            server.terminate()
            assert server.communicate()[0] == "QA server stopped.\n"
    assert server.returncode == 0


def test_the_installed_package_is_imported(programs):
    code = "import qa_service, pathlib; print(pathlib.Path(qa_service.__file__).parent)"
    package = Path(run_installed(programs / "python", "-c", code).stdout.strip())
    assert programs.parent in package.parents
    assert (package / "py.typed").exists(), "its types are for users too"


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    folder = ROOT / "qa_service"
    paths = [*folder.rglob("*"), *folder.glob("data/models/*/*")]  # rglob follows no link
    here = {path.relative_to(ROOT).as_posix() for path in paths if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("qa_service/")}
    assert packed == {name for name in here if "__pycache__" not in name}


def test_the_adapters_it_brings_are_those_of_the_clone(programs, builtin_model):
    """The prepared model is made from the clone's; one made from others would not be up to date."""
    given = ["--output_dir", builtin_model.parent, "--precision", "fp32", "--no-encoder"]
    done = run_installed(programs / "qa-prepare-model", *given)
    assert done.stdout == f"{builtin_model} is up to date\n", done.stderr


def test_the_installed_package_answers_a_question(programs, port):
    given = ["--port", port, "--question", "Who wrote the notes?", "--text", TEXT]
    done = run_installed(programs / "qa-client", *given)
    assert (done.stdout.splitlines()[0], done.returncode) == ("Ada Lovelace", 0), done.stderr


def test_the_installed_stress_test_has_its_questions(programs, port):
    load = ["--num_simultaneous_clients", 1, "--num_total_clients", 2]
    done = run_installed(
        programs / "qa-stress-test", "--port", port, *load, "--num_request_per_client", 1
    )
    assert done.returncode == 0, done.stderr


def test_the_source_distribution_has_the_documents_and_the_constraints(wheel):
    sources = wheel.parent / "sources"
    for name in MORE_SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, sources / name)
    for path in (sources / "models").rglob("*.*"):
        if path.suffix in (".safetensors", ".xz"):
            path.write_bytes(b"")  # only the names of what is packed are looked at
    build = "from setuptools.build_meta import build_sdist; print(build_sdist('.'))"
    done = run_python("-c", build, cwd=sources)
    with tarfile.open(sources / done.stdout.splitlines()[-1]) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").iterdir() if path.is_file()}
    assert pages | {"constraints.txt", "CHANGELOG.md", "models/builtin/reading.json"} <= packed


@pytest.fixture(scope="module")
def oldest(wheel, tmp_path_factory) -> Path:
    """The programs of an environment with what the ranges begin with, and with what tests need.

    PyTorch and what comes with it are left out: their ranges begin with the versions of
    constraints.txt, or the patch release before.
    """
    folder = tmp_path_factory.mktemp("oldest")
    venv.create(folder, with_pip=False)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [line for name in OLDEST_EXTRAS for line in extras[name] if "qa-server" not in line]
    lines = [line.split(",")[0].replace(">=", "==") for line in [*project["dependencies"], *lines]]
    tools = [line for line in extras["test-tools"] if line.startswith(TEST_TOOLS)]
    python = folder / "bin" / "python"
    pip("--python", python, "install", *lines, *tools)
    pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    return folder / "bin"


@pytest.mark.long
def test_the_oldest_versions_of_the_ranges_answer_a_question(oldest, builtin_model):
    given = ["--port", "0", "--num_inference_sessions", "1", "--model", builtin_model]
    command = [oldest / "qa-server", *given, *FIXED_ENGINE]
    with subprocess.Popen(command, **surroundings(command[0]), **PIPED) as server:
        try:
            port = port_of(line_with(present(server.stdout), "QA server ready"))
            asked = ["--question", "Who wrote the notes?", "--text", TEXT]
            done = run_installed(oldest / "qa-client", "--port", port, *asked)
            assert done.stdout.splitlines()[0] == "Ada Lovelace", done.stderr
        finally:
            server.terminate()
            server.communicate()


@pytest.mark.long
def test_the_oldest_versions_of_the_ranges_pass_the_tests_of_what_uses_them(oldest):
    """Clients, the wire, documents, collections and jobs; their embeddings need PyTorch."""
    command = [oldest / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *OLDEST_TESTS]
    command += ["--deselect", "tests/unit/retrieval/test_embeddings.py"]
    done = run(*command, timeout=None)
    assert done.returncode == 0, done.stdout
