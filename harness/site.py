"""Gathers the pages of the site of documents, for `make docs`; `mkdocs.yml` has its navigation.

    python -m harness.site [FOLDER]

All tracked pages and what they link to are copied to where they stand here, so that links between
README, docs/, models/ and benchmarks/ hold in the site too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from harness.server import ROOT

PAGES = ROOT / "build" / "pages"


def pages() -> list[Path]:
    """The tracked pages, relative to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    left_out = (".", "benchmarks/results/", "training/")
    return [Path(name) for name in listed.stdout.split() if not name.startswith(left_out)]


def linked(page: Path) -> set[Path]:
    """The files of the repository that a page links to."""
    targets = re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text())
    found = {(ROOT / page.parent / target).resolve() for target in targets if "://" not in target}
    return {path.relative_to(ROOT) for path in found if path.is_file() and ROOT in path.parents}


def gather(folder: Path) -> None:
    """Replaces the folder by the pages and what they link to."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in {file for page in pages() for file in (page, *linked(page))}:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)


if __name__ == "__main__":
    gather(Path(sys.argv[1]) if sys.argv[1:] else PAGES)
