"""The structure that docs/ARCHITECTURE.md and the README promise."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from harness.server import ROOT
from qa_service.config import markdown

PACKAGE = ROOT / "qa_service"
SERVING = [
    "errors", "options", "logs", "engine_catalogue", "data", "wire", "collections", "net",
    "telemetry", "repository", "scheduling",
    "workers", "inference", "serving", "front", "config", "deployment", "server",
]  # fmt: skip
"""The rooms of the serving program; each imports only those before it."""

SANS_IO = ("wire", "scheduling", "serving")


def imported(path: Path) -> set[str]:
    """The full names of what a file imports, be it a module or what is in one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


def modules(path: Path) -> set[str]:
    """The top-level modules that a file imports, or imports from."""
    return {name.split(".")[0] for name in imported(path)}


def imports(path: Path) -> set[str]:
    """The rooms of qa_service that a file imports from."""
    names = {name.split(".")[1] for name in imported(path) if name.startswith("qa_service.")}
    return {name for name in names if not name.startswith("__")}


def files_of(room: str) -> list[Path]:
    folder = PACKAGE / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{room}.py"]


@pytest.mark.parametrize("room", SERVING)
def test_imports_point_one_way(room):
    below = SERVING[: SERVING.index(room) + 1]
    for path in files_of(room):
        assert imports(path) <= set(below), path


def test_the_client_library_stands_alone():
    assert imports(PACKAGE / "client.py") == set()


def test_the_asyncio_client_needs_only_the_other_one():
    assert set().union(*(imports(path) for path in files_of("aio"))) == {"aio", "client"}


def test_the_load_generator_is_below_the_programs():
    used = set().union(*(imports(path) for path in files_of("load")))
    assert used <= {"load", "client", "access", "data"}


def test_the_broker_is_a_client_program():
    names = set().union(*(imported(path) for path in files_of("broker")))
    shared = ("qa_service.telemetry.metrics.", "qa_service.wire.prometheus.")
    rest = {name.split(".")[1] for name in names if name.startswith("qa_service.")
            and not name.startswith(shared)}  # fmt: skip
    assert rest <= {"access", "aio", "broker", "client", "cli", "data", "logs"}
    rooms = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "broker"]
    assert not [path for path in rooms if "broker" in imports(path)]


def test_the_grpc_gateway_is_a_client_program():
    used = set().union(*(imports(path) for path in files_of("grpc_gateway")))
    assert used == {
        *("aio", "cli", "client", "errors", "front", "grpc_gateway", "inference", "logs", "net"),
        "wire",
    }
    rooms = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "grpc_gateway"]
    assert not [path for path in rooms if "grpc_gateway" in imports(path)]


@pytest.mark.parametrize("room", SANS_IO)
def test_the_core_knows_no_socket_and_no_clock(room):
    for path in files_of(room):
        assert modules(path).isdisjoint({"socket", "selectors", "time", "threading", "ssl"}), path


def test_imports_of_every_form_are_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "import a.b, c as d\nfrom e.f import g\nfrom h import i as j\ndef k():\n import l"
    )
    assert modules(path) == {"a", "c", "e", "h", "l"}
    path.write_text("import qa_service.net.x\nfrom qa_service import wire, errors\n")
    path.write_text(path.read_text() + "from qa_service.front import auth")
    assert imports(path) == {"net", "wire", "errors", "front"}


def test_every_room_says_what_it_is_for():
    for room in PACKAGE.iterdir():
        if room.is_dir() and room.name != "__pycache__":
            assert ast.get_docstring(ast.parse((room / "__init__.py").read_text())), room


def test_only_the_loop_uses_selectors():
    users = [p.name for room in SERVING for p in files_of(room) if "selectors." in p.read_text()]
    assert users == ["event_loop.py"]


def test_the_loops_process_loads_no_library_of_the_model():
    code = "import sys, qa_service.server; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert not {b"numpy", b"tokenizers", b"onnxruntime", b"torch"} & set(ran.stdout.split())


def test_every_file_is_in_the_architecture():
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    for room in rooms - {"__init__", "__pycache__", "data"}:
        assert f"qa_service/{room}" in page, room


def test_the_page_of_options_is_what_the_options_say():
    """If not, replace what follows its first section with `python -m qa_service.config`."""
    page = (ROOT / "docs" / "CONFIGURATION.md").read_text()
    assert page.endswith("\n" + markdown())
