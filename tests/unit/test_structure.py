"""The structure that docs/ARCHITECTURE.md and the README promise."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from harness.server import ROOT
from qa_service.server.config import markdown

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


def test_the_client_library_stands_alone():
    assert imports(PACKAGE / "client.py") == set()


def test_imports_of_every_form_are_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "import a.b, c as d\nfrom e.f import g\nfrom h import i as j\ndef k():\n import l"
    )
    assert modules(path) == {"a", "c", "e", "h", "l"}
    path.write_text("import qa_service.net.x\nfrom qa_service import wire, errors\n")
    path.write_text(path.read_text() + "from qa_service.server.front import auth")
    assert imports(path) == {"net", "wire", "errors", "front"}


def test_every_room_says_what_it_is_for():
    for room in PACKAGE.iterdir():
        if room.is_dir() and room.name != "__pycache__":
            assert ast.get_docstring(ast.parse((room / "__init__.py").read_text())), room


def test_the_loops_process_loads_no_library_of_the_model():
    code = "import sys, qa_service.server.life_cycle; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert not {b"numpy", b"tokenizers", b"onnxruntime", b"torch"} & set(ran.stdout.split())


def test_the_page_of_options_is_what_the_options_say():
    """If not, replace what follows its first section with `python -m qa_service.server.config`."""
    page = (ROOT / "docs" / "CONFIGURATION.md").read_text()
    assert page.endswith("\n" + markdown())
