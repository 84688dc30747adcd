"""A collection with thousands of words, and damage to the files of its index."""

from __future__ import annotations

import random
from pathlib import Path

from harness.collections import index, write_documents

WORDS = [f"{a}{b}{c}" for a in "bdfglm" for b in ("an", "el", "ir", "ov") for c in "dkpst"]
DAMAGE_BYTES = 64


def write_collection(folder: Path, name: str, num_documents: int = 120) -> Path:
    """Makes a collection whose index has several blocks in each file."""
    draw = random.Random(7)
    documents = {
        f"{number}.txt": " ".join(draw.choices(WORDS, k=400)) + ".\n"
        for number in range(num_documents)
    }
    return index(write_documents(folder / "documents", documents), folder / name)


def index_files(collection: Path) -> list[Path]:
    """The files of an index, in their order."""
    return sorted(path for path in collection.glob("index-*/*") if path.suffix != ".lock")


def damage(collection: Path, draw: random.Random, suffixes: tuple[str, ...] = ()) -> str:
    """Writes random bytes at a random place of an index, in place; returns where."""
    files = [path for path in index_files(collection) if path.stat().st_size > DAMAGE_BYTES]
    files = [path for path in files if not suffixes or path.suffix in suffixes]
    path = draw.choice(files)
    at = draw.randrange(path.stat().st_size - DAMAGE_BYTES)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(draw.randbytes(DAMAGE_BYTES))
    return f"{path.name}:{at}"


def question(draw: random.Random) -> str:
    """Some of the collection's words, which lead to many of its blocks."""
    return " ".join(draw.choices(WORDS, k=6)) + "?"
