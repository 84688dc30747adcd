"""The file of a hooks' module: found without being imported, so that the loop can see it change.

As a model's manifest does, its SHA-256 says which code a version runs: it is part of the version's
plan, and no instance starts with other code.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from qa_service.child_program import PACKAGE_PARENT
from qa_service.files import read_file


def fingerprint_of_hooks(name: str) -> str:
    """The SHA-256 of the module's file of `module:Class`; empty if it has none that is found."""
    try:
        path = _find(name.partition(":")[0])
        return digest(read_file(path)) if path else ""
    except (OSError, ImportError, ValueError):  # an instance says what is wrong with it
        return ""


def digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def _find(module: str) -> Path | None:
    """The file that an instance's process would import; importing it here would run it."""
    importlib.invalidate_caches()
    first, *rest = module.split(".")
    # An instance looks in this folder first: see `worker_main.serve`.
    spec = PathFinder.find_spec(first, [str(Path.cwd()), PACKAGE_PARENT, *sys.path])
    spec = spec or importlib.util.find_spec(first)
    for name in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None
