"""A small collection of documents, and questions that its documents answer; damage to an index."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from qa_service.retrieval import extract_main
from qa_service.retrieval.build import IndexArgs, Reporter, Summary, build
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.documents import Document, Fault, ReadFile, ReadLimits
from qa_service.retrieval.files import SourceFile

DOCUMENTS = {
    "machines/analytical.md": (
        "# The Analytical Engine\n\nCharles Babbage designed the Analytical Engine in London. "
        "Ada Lovelace wrote the notes on it in 1843.\n\n## Parts\n\nThe engine had a mill and a "
        "store. The mill did the arithmetic, and the store held a thousand numbers.\n"
    ),
    "machines/loom.txt": (
        "The Jacquard loom was patented by Joseph Marie Jacquard in 1804. "
        "Punched cards told the loom which threads to lift.\n"
    ),
    "people/hopper.txt": (
        "Grace Hopper wrote the first compiler in 1952, and served in the United States Navy. "
        "😀 She found a moth in a relay.\n"
    ),
}
ANSWERS = {
    "Who wrote the notes on the Analytical Engine?": ("Ada Lovelace", "machines/analytical.md"),
    "Who patented the Jacquard loom?": ("Joseph Marie Jacquard", "machines/loom.txt"),
    "Who wrote the first compiler?": ("Grace Hopper", "people/hopper.txt"),
}
WORDS = [f"{a}{b}{c}" for a in "bdfglm" for b in ("an", "el", "ir", "ov") for c in "dkpst"]
DAMAGE_BYTES = 64


def write_documents(folder: Path, documents: dict[str, str] = DOCUMENTS) -> Path:
    for name, text in documents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run_index(folder: Path, output: Path, reporter: Reporter | None = None, **args: Any) -> Summary:
    """Indexes a folder, without embeddings if no encoder is given."""
    embeddings = None if "encoder" in args else False
    args = {"sources": (folder,), "embeddings": embeddings, **args}
    return build(IndexArgs(output=output, **args), reporter or Reporter())


def index(folder: Path, output: Path, **args: Any) -> Path:
    """Has `run_index` read documents here; gives the collection."""
    with reading_here():
        run_index(folder, output, **args)
    return output


def all_found(collection: Collection, question: str) -> list[str]:
    return [found.passage.document for found in collection.search(question, 10)]


class ExtractorHere:
    """An `Extractor` without a process of its own, whose start takes longer than a small index."""

    num_files = 0
    """It is never busy: a file is read while it is asked for."""

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits

    def read(self, file: SourceFile, passage_tokens: int) -> Iterator[Document | Fault]:
        order = ReadFile(os.fsencode(file.path), file.name, self._limits, passage_tokens)
        yield from extract_main._messages(order)

    def close(self) -> None:
        """Nothing runs."""


@contextmanager
def reading_here() -> Iterator[None]:
    """Documents are read in this process, which gets none of the limits of the other one."""
    with (
        patch.object(extract_main, "_limit", lambda *_: None),
        patch("qa_service.retrieval.extract_main.Extractor", ExtractorHere),
    ):
        yield


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
