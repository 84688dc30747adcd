"""qa-index killed at each step, and documents that are made to break it."""

import gzip
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.collections import (
    all_found,
    damage,
    index_files,
    reading_here,
    run_index,
    write_collection,
)
from harness.process import GIVE_UP_S, MIB, tree, wait_until
from qa_service.errors import SetupError
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.documents import ReadLimits
from qa_service.retrieval.index_main import main
from qa_service.retrieval.manifest import INDEX, PROGRESS_FILE, load_manifest
from tests.programs import run_python
from tests.unit.retrieval.formats.pdf_files import packed_stream, pdf_file, pdf_of
from tests.unit.retrieval.formats.word_files import paragraph, word_file

KILLED = """
import os, pathlib, signal, sys
from harness.collections import reading_here, run_index
from qa_service.retrieval import writing
from qa_service.retrieval.manifest import Progress
from qa_service.retrieval.tantivy_index import IndexWriter

writing.COMMIT_PASSAGES = 3
step, _, times = sys.argv[3].partition(":")
times = int(times)
owner, name = {
    "begin": (Progress, "__init__"), "note": (Progress, "add"),
    "commit": (IndexWriter, "commit"), "save": (writing, "save_manifest"),
}[step]
kept = getattr(owner, name)

def counted(*arguments):
    global times
    times -= 1
    if times == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return kept(*arguments)

setattr(owner, name, counted)
with reading_here():
    run_index(*map(pathlib.Path, sys.argv[1:3]), update=sys.argv[4] == "update")
"""


PROGRAM = """
import pathlib, re, resource, sys
from qa_service.retrieval.index_main import main
code = main()
status = pathlib.Path("/proc/self/status").read_text()
print(re.search(r"VmHWM:\\s*(\\d+)", status)[1])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""
"""`qa-index`, which then prints how much memory it and its processes have taken at most, in KiB."""


@pytest.fixture
def docs(tmp_path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.txt").write_text(f"River number{number} is here. It flows.")
    return folder


@pytest.fixture
def output(tmp_path) -> Iterator[Path]:
    """Where a collection is made, of documents that are read in this process."""
    with reading_here():
        yield tmp_path / "collection"


def kill_at(step: str, docs: Path, output: Path, mode: str = "new") -> None:
    """Has a run end by SIGKILL at a step, as often as the step says before."""
    assert run_python("-c", KILLED, docs, output, step, mode).returncode == -signal.SIGKILL


@pytest.mark.parametrize("mode", ["new", "update"])
@pytest.mark.parametrize("step", ["begin:1", "commit:1", "commit:2", "note:1", "note:3", "save:1"])
def test_a_killed_run_is_continued_by_the_next(docs, output, step, mode):
    run_index(docs, output)
    collection = Collection(output)
    for number in range(0, 10, 2):
        (docs / f"{number}.txt").write_text(f"Lake number{number} is deep. It rests.")
    (docs / "9.txt").unlink()
    kill_at(step, docs, output, mode)
    assert collection.refreshed() is collection
    assert len(all_found(Collection(output), "River")) == 10, "what was served is"
    (docs / "1.txt").write_text("Pond number1 is small.")
    (docs / "2.txt").unlink()
    run_index(docs, output, update=mode == "update")
    collection = collection.refreshed()
    assert sorted(all_found(collection, "River")) == ["3.txt", "5.txt", "7.txt"]
    assert sorted(all_found(collection, "Lake")) == ["0.txt", "4.txt", "6.txt", "8.txt"]
    assert all_found(collection, "Pond") == ["1.txt"]
    assert collection.head.passages == load_manifest(output).passages == 8
    assert len(list(output.glob(f"{INDEX}*"))) == 2


def test_a_continued_run_reads_only_the_remaining_files(docs, output):
    kill_at("note:5", docs, output)
    summary = run_index(docs, output)
    assert (summary.read, summary.kept) == (4, 6)
    assert summary.passages == 10


def test_a_torn_line_of_progress_is_read_again(docs, output):
    kill_at("note:5", docs, output)
    with (output / PROGRESS_FILE).open("rb+") as file:
        file.truncate(file.seek(0, 2) - 5)
    assert run_index(docs, output).read == 5
    assert len(all_found(Collection(output), "River")) == 10


SUFFIXES = (".fast", ".fieldnorm", ".idx", ".json", ".pos", ".store", ".term")


@pytest.fixture(scope="module")
def indexed(tmp_path_factory) -> Path:
    """A folder with a collection, and its documents with changes that are not indexed yet."""
    folder = tmp_path_factory.mktemp("indexed")
    write_collection(folder, "collection", num_documents=30)
    (folder / "documents" / "5.txt").write_text("The Volga is long.")
    (folder / "documents" / "7.txt").unlink()
    return folder


def damaged(collection: Path, suffix: str, how: str) -> None:
    """Damages a file of a collection's index; it is linked to where it was copied from."""
    if how == "overwritten":
        damage(collection, random.Random(suffix), (suffix,))
        return
    file = next(path for path in index_files(collection) if path.suffix == suffix)
    if how == "cut":
        os.truncate(file, file.stat().st_size // 2)
    else:
        file.unlink()


@pytest.mark.parametrize(
    ("suffix", "how"),
    [*((suffix, "overwritten") for suffix in SUFFIXES),
     *((suffix, how) for suffix in (".store", ".idx", ".json") for how in ("cut", "missing"))],
)  # fmt: skip
def test_an_update_of_a_damaged_collection_says_in_one_line_what_to_do(
    indexed, output, suffix, how, capsys
):
    shutil.copytree(indexed / "collection", output)
    damaged(output, suffix, how)
    run = [str(indexed / "documents"), "--no-embeddings", "--output", str(output)]
    assert main([*run, "--update"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("index without --update")
    assert main(run) == 0
    assert all_found(Collection(output), "Volga") == ["5.txt"]


@pytest.mark.parametrize("how", ["overwritten", "missing"])
def test_an_update_without_a_change_finds_the_damage_too(docs, output, how, capsys):
    run = [str(docs), "--no-embeddings", "--output", str(output)]
    assert main(run) == 0
    damaged(output, ".store", how)
    assert main([*run, "--update"]) == 2
    assert capsys.readouterr().err.endswith("index without --update\n")


def test_a_damaged_index_of_a_killed_run_is_begun_anew(docs, output):
    kill_at("note:5", docs, output)
    damaged(output, ".store", "overwritten")
    with pytest.raises(SetupError, match="is damaged: index without --update"):
        run_index(docs, output)
    assert run_index(docs, output).read == 10
    assert len(all_found(Collection(output), "River")) == 10


@pytest.mark.parametrize("named", ["..", ".", "../other"])
def test_progress_that_names_no_index_of_its_folder_does_not_count(docs, output, named):
    kill_at("note:5", docs, output)
    (output.parent / "other").mkdir()
    progress = (output / PROGRESS_FILE).read_text()
    index = json.loads(progress.splitlines()[0])["index"]
    (output / PROGRESS_FILE).write_text(progress.replace(index, named))
    assert run_index(docs, output).read == 10
    assert not list((output.parent / "other").iterdir())


def test_progress_that_is_a_fifo_does_not_hang_a_run(docs, output):
    run_index(docs, output)
    os.mkfifo(output / PROGRESS_FILE)
    run_index(docs, output)
    assert len(all_found(Collection(output), "River")) == 10


MAX_FILE_BYTES = 2 * MIB
MAX_CPU_S = 3
MAX_MEMORY_BYTES = 400 * MIB


def packed_zeros(size_bytes: int) -> bytes:
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(bytes(MIB)) for _ in range(size_bytes // MIB))
    return data + packer.flush()


def gzip_of(piece: bytes, size_bytes: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    pieces = size_bytes // len(piece)
    return b"".join(packer.compress(piece) for _ in range(pieces)) + packer.flush()


def hostile_files() -> dict[str, tuple[bytes, str]]:
    """Each file, and what is said of it."""
    zeros = packed_zeros(128 * MIB)
    return {
        "broken.md": (b"# Title\n\xff\xfe", "not UTF-8"),
        "binary.txt": (bytes(1000), "zero byte"),
        "line.txt": (b"word " * (20 * MIB), "longer than"),
        "line.jsonl": (
            b'{"text": "' + b"word " * (20 * MIB) + b'"}\n{"text": "The Po."}\n',
            "line 1: longer than",
        ),
        "bomb.pdf": (pdf_of([packed_stream(zeros, 1)]), "no text in it"),
        "bomb_in_bomb.pdf": (pdf_of([packed_stream(zlib.compress(zeros), 2)]), "no text in it"),
        "cut.pdf": (pdf_file("words")[:200], "not a PDF"),
        "loop.pdf": (pdf_file("words").replace(b"/Kids [7 0 R]", b"/Kids [2 0 R]"), ": "),
        "bomb.json.gz": (gzip_of(bytes(MIB), 128 * MIB), "longer than"),
        "endless.jsonl.gz": (gzip_of(b"1\n" * MIB, 128 * MIB), "most of 1001 lines"),
        "cut.json.gz": (gzip.compress(b"{}")[:-8], "gzip"),
        "no.json.gz": (b"words", "ot a gzipped file"),
        "deep.json": (b'{"data": ' + b"[" * MIB, "SQuAD"),
    }


READ = {
    "script.html": b"<script>steal()</script><p onload=steal()>The Ebro.<img onerror=steal()>",
    "div.html": b"<div>" * 10_000 + b"The Oder.",
    "word.txt": b"x" * MAX_FILE_BYTES,
    "space.txt": b"The" + b" " * MIB + b"Inn.",
    "items.txt": b"1. " * 10_000,
    "never_closed.html": b"<!" * MIB,
    "signs.md": "# \u202e\U0001f98a\n".encode() * 1000,
}
"""Files that are as odd, and are read."""


def index_with_faults(
    folder: Path, read: dict[str, bytes], left_out: dict[str, tuple[bytes, str]], *flags: object
) -> tuple[Collection, int]:
    """Indexes files that are read, and others that are left out, each with what is said of it.

    Returns:
        The collection, and how many bytes of memory that took at most.
    """
    (folder / "docs").mkdir()
    files = {name: data for name, (data, _) in left_out.items()} | read
    for name, data in files.items():
        (folder / "docs" / name).write_bytes(data)
    where = (folder / "docs", "--no-embeddings", "--output", folder / "out")
    done = run_python("-c", PROGRAM, *where, *flags)
    assert done.returncode == 1
    for name, (_, why) in left_out.items():
        lines = [row for row in done.stderr.splitlines() if row.startswith(f"left out: {name}")]
        assert why in lines[-1], lines
    summary, *memory = done.stdout.splitlines()
    assert f"{len(left_out)} with faults" in summary
    return Collection(folder / "out"), max(map(int, memory)) * 1024


@pytest.mark.slow
def test_hostile_documents_break_nothing_and_cost_bounded_memory(tmp_path):
    flags = ("--max_file_bytes", MAX_FILE_BYTES, "--max_document_cpu_s", MAX_CPU_S)
    collection, num_bytes = index_with_faults(tmp_path, READ, hostile_files(), *flags)
    assert num_bytes < MAX_MEMORY_BYTES
    for river, name in {"Ebro": "script.html", "Oder": "div.html", "Po": "line.jsonl#2"}.items():
        assert all_found(collection, river)[0] == name
    assert not all_found(collection, "steal")
    found = collection.search("x 1 inn oder", 1000)
    assert max(len(its.passage.text) for its in found) < 2000


def hostile_office_files() -> dict[str, tuple[bytes, str]]:
    """Each file, and what is said of it."""
    laughs = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(9))
    entities = f'<!DOCTYPE x [<!ENTITY a0 "{"ha" * 50}">{laughs}]><document>&a9;</document>'
    good, bomb = word_file(paragraph("The Elbe.")), word_file(" " * (128 * MIB))
    deep = "<w:sdt><w:sdtContent>" * 20_000 + "</w:sdtContent></w:sdt>" * 20_000
    return {
        "bomb.docx": (bomb, "unpacked longer than"),
        "lying.docx": (lying(bomb), "not a Word document"),
        "laughs.docx": (repacked(good, "word/document.xml", entities), "amplification"),
        "deep.docx": (word_file(deep), "nested too deep"),
        "cut.docx": (good[:-200], "not a zip archive"),
        "broken.docx": (word_file("<w:p>"), "not a Word document"),
        "locked.xlsx": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(4096), "encrypted"),
        "other.xlsx": (good, "not a workbook"),
        "other.ods": (good, "not in OpenDocument's format"),
        "none.eml": (bytes(4096), "not a message"),
        "deep.eml": (b"Subject: x\n" + b"Content-Type: message/rfc822\n\n" * 5000, "too deep"),
    }


def repacked(package: bytes, name: str, text: str) -> bytes:
    """A package with another text in one of its parts."""
    data = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(package)) as source, zipfile.ZipFile(data, "w") as archive:
        for entry in source.namelist():
            archive.writestr(entry, text if entry == name else source.read(entry))
    return data.getvalue()


def lying(package: bytes) -> bytes:
    """A package that says of its parts that they are a KiB long."""
    data = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(package)) as source,
        zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for entry in source.namelist():
            archive.writestr(entry, source.read(entry))
        for info in archive.infolist():
            info.file_size = min(info.file_size, 1024)
    return data.getvalue()


def test_hostile_office_files_are_named_and_the_rest_is_indexed(tmp_path):
    good = {"good.docx": word_file(paragraph("The Elbe."))}
    flags = ("--max_file_bytes", 64 * MIB)
    collection, num_bytes = index_with_faults(tmp_path, good, hostile_office_files(), *flags)
    assert num_bytes < MAX_MEMORY_BYTES
    assert all_found(collection, "Elbe") == ["good.docx"]


GOOD = {"good.txt": b"The Nile."}


def test_no_process_goes_on_reading_once_the_run_is_killed(tmp_path):
    """Each holds the end of the run's log. The next run removes the folder that is left."""
    long = tmp_path / "docs" / "long.txt"
    long.parent.mkdir()
    long.write_text("1. " * (20 * MIB))
    program = [sys.executable, "-m", "qa_service.retrieval.index_main", str(long.parent)]
    program += ["--no-embeddings", "--output", str(tmp_path / "out")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.Popen(
        [*program, "--max_document_cpu_s", "3600"], env=environment, stderr=subprocess.PIPE
    )
    wait_until(lambda: any(reads(pid, long) for pid in tree(run.pid) if pid != run.pid))
    run.kill()
    run.communicate(timeout=GIVE_UP_S)
    (left,) = tmp_path.glob("qa-index-*")
    long.write_text("The Nile.")
    (left / "document.doc").touch()
    assert subprocess.run(program, env=environment, check=False).returncode == 0
    assert not left.exists()


def reads(pid: int, path: Path) -> bool:
    """Whether a process has a file open."""
    with suppress(OSError):
        return any(one.samefile(path) for one in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_time_that_cutting_takes_has_a_bound(tmp_path):
    """The text takes minutes; the bound is a second of the processor."""
    long = {"long.txt": (b"1. " * (20 * MIB), "reading it takes more than 1 s of a processor")}
    collection, _ = index_with_faults(tmp_path, GOOD, long, "--max_document_cpu_s", 1)
    assert all_found(collection, "Nile") == ["good.txt"]


def test_memory_that_reading_takes_has_a_bound(tmp_path):
    data = json.dumps({"data": [{"paragraphs": [{"context": "x" * 200}] * 200_000}]}).encode()
    large = {"large.json": (data, "reading it takes more memory")}
    collection, _ = index_with_faults(tmp_path, GOOD, large, "--max_memory_bytes", 100 * MIB)
    assert all_found(collection, "Nile") == ["good.txt"]


def test_files_that_are_read_ahead_make_the_same_collection(tmp_path):
    """One of them is more than a pipe holds, one ends the process that reads it."""
    docs = tmp_path / "docs"
    docs.mkdir()
    lines = (json.dumps({"text": f"River {n} is {n} miles long."}) for n in range(2_000))
    (docs / "b.jsonl").write_text("\n".join(lines))
    (docs / "c.txt").write_text("1. " * (20 * MIB))
    for number in range(9):
        (docs / f"{'ad'[number % 2]}{number}.txt").write_text(f"The Nile has {number} sources.")
    limits = ReadLimits(max_document_cpu_s=1)
    collections = []
    for num_threads in (1, 4):
        output = tmp_path / f"by {num_threads}"
        run_index(docs, output, num_threads=num_threads, limits=limits)
        found = Collection(output).search("How many sources has the Nile?", 20)
        collections.append((load_manifest(output).files, [one.passage for one in found]))
    assert collections[0] == collections[1]
    files = {file.name: (file.documents, file.faults) for file in collections[0][0]}
    assert (files["b.jsonl"], files["c.txt"], len(collections[0][1])) == ((2_000, 0), (0, 1), 9)
