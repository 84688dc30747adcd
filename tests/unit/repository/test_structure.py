"""The structure that docs/ARCHITECTURE.md and the README promise."""

import ast
import functools
import re
from pathlib import Path

import pytest

from harness import option_tables
from harness.server import ROOT
from tests.programs import run_python

PACKAGE = ROOT / "qa_service"
FLOORS = [
    {"", "data"},
    {"wire", "net", "aio", "programs"},
    {"instance", "sidecars", "retrieval", "programs/load", "programs/jobs"},
    {
        *("autotune", "preparation", "sidecars/grpc_gateway"),
        *("server/telemetry", "server/scheduling", "server/children"),
    },
    {"server/instances", "evaluation"},
    {"server/services"},
    {"server/front", "server/models"},
    {"server"},
]
"""The rooms by floors, a room being a folder with modules; "" is the package's own modules.

A room imports only from floors below it.
"""
WITHIN = {
    *("wire/http", "instance/engines", "instance/reader", "instance/model_folder"),
    *("retrieval/formats", "server/check"),
}
"""Folders of a room that use it and that it uses."""

SERVING = set().union(*FLOORS) - {
    *("aio", "programs", "programs/load", "programs/jobs"),
    *("evaluation", "preparation", "sidecars/grpc_gateway"),
}
"""The rooms of the processes that serve, a gRPC gateway left out."""

SANS_IO = ("wire", "server/scheduling", "server/services")


@functools.cache
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


def room_of(path: Path) -> str:
    """The room of a module, by its path from the package."""
    folder = path.parent.as_posix()
    if folder in WITHIN:
        folder = path.parent.parent.as_posix()
    return "" if folder == "." else folder


def imports(path: Path) -> set[str]:
    """The rooms of qa_service that a file imports from."""
    rooms = set()
    for name in imported(path):
        place = Path(*name.split(".")[1:])
        if not name.startswith("qa_service."):
            continue
        # The name is a module, a folder, or what is in one of them.
        if (PACKAGE / place).is_dir():
            place /= "__init__.py"
        elif (PACKAGE / place.parent).is_dir() and not (PACKAGE / f"{place}.py").exists():
            place = place.parent / "__init__.py"
        elif not (PACKAGE / f"{place}.py").exists():
            place = place.parent
        rooms.add(room_of(place))
    return rooms


@functools.cache
def files_of(room: str) -> list[Path]:
    return [p for p in sorted(PACKAGE.rglob("*.py")) if room_of(p.relative_to(PACKAGE)) == room]


@functools.cache
def arrows() -> set[tuple[str, str]]:
    """Each room, and a room that it imports from."""
    rooms = set().union(*FLOORS)
    return {(room, to) for room in rooms for path in files_of(room) for to in imports(path)} - {
        (room, room) for room in rooms
    }


def test_the_floors_have_every_room():
    rooms = {room_of(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    assert rooms == set().union(*FLOORS)


def test_no_import_points_up():
    floor_of = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    assert not [(room, to) for room, to in arrows() if floor_of[to] >= floor_of[room]]


def test_the_package_does_without_training():
    paths = [path for path in PACKAGE.rglob("*.py") if "training" in modules(path)]
    assert not paths


def test_the_client_library_stands_alone():
    names = {name for name in imported(PACKAGE / "client.py") if name.startswith("qa_service")}
    assert not names


def test_the_asyncio_client_needs_only_the_other_one():
    names = set().union(*(imported(path) for path in files_of("aio")))
    ours = {name for name in names if name.startswith("qa_service")}
    assert {name.split(".")[1] for name in ours} == {"aio", "client"}


@pytest.mark.parametrize("room", SANS_IO)
def test_the_core_knows_no_socket_and_no_clock(room):
    for path in files_of(room):
        assert modules(path).isdisjoint({"socket", "selectors", "time", "threading", "ssl"}), path


def test_only_an_instance_with_a_model_loads_a_library_of_the_model():
    programs = "qa_service.server.main, qa_service.instance.worker_main"
    code = f"import sys, {programs}; print(*sys.modules)"
    loaded = set(run_python("-c", code).stdout.split())
    assert "qa_service.server.main" in loaded
    assert not {"numpy", "tokenizers", "onnxruntime", "torch"} & loaded


def test_every_room_is_in_the_architecture():
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    for name in names - {"__init__", "__pycache__"}:
        assert f"qa_service/{name}" in page, name
    for room in set().union(*FLOORS) - {""}:
        inner = room.removeprefix("server/")
        assert f"`{inner}/`" in page or f"qa_service/{room}/" in page, room


def test_every_file_that_the_architecture_names_is_there():
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`((?:qa_service|docs|tests|benchmarks)/[\w./]*)`", page))
    assert len(named) > 30
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_page_of_options_matches_the_options():
    """If not, `python -m harness.option_tables` writes it."""
    page = option_tables.PAGE.read_text()
    assert option_tables.with_tables(page) == page
