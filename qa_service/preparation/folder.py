"""Replaces a prepared model's folder atomically.

    .NAME.lock   held by the run that works on NAME; the kernel releases it if the run dies
    .NAME.new    what that run has written so far
    .NAME.old    the replaced folder, between two renames
    NAME         always complete

A `.new` or `.old` found by the lock's holder is left from a run that died.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from qa_service.errors import SetupError
from qa_service.files import link_or_copy
from qa_service.instance.model_folder.costs_dir import lengths_file


@contextmanager
def locked(target: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Locks a folder for this run, and cleans up after runs that died."""
    lock = FileLock(_sibling(target, "lock"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        on_wait()
        lock.acquire()
    except OSError as error:
        raise SetupError(f"cannot write in {target.parent}: {error.strerror}") from None
    try:
        old = _sibling(target, "old")
        if old.exists() and not target.exists():
            old.rename(target)  # the run died between its two renames
        for leftover in (old, _sibling(target, "new")):
            shutil.rmtree(leftover, ignore_errors=True)
        yield
    finally:
        lock.release()


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes the target, or is removed after an exception.

    Only for the holder of the target's lock.
    """
    new, old = _sibling(target, "new"), _sibling(target, "old")
    new.mkdir()
    try:
        yield new
    except BaseException:
        shutil.rmtree(new)
        raise
    if target.exists():
        # The new model will be asked the same questions: how long they were is kept.
        if (seen := lengths_file(target)).exists() and not lengths_file(new).exists():
            lengths_file(new).parent.mkdir(exist_ok=True)
            shutil.copyfile(seen, lengths_file(new))
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def link_files(target: Path, folder: Path, *, besides: str) -> None:
    """Puts a prepared model's files into a new folder, but the one that is made again.

    No file of a prepared model is ever written to, so both folders may have the same: a copy would
    be of hundreds of megabytes.
    """
    without = shutil.ignore_patterns(besides)
    shutil.copytree(target, folder, copy_function=link_or_copy, ignore=without, dirs_exist_ok=True)


def say(line: str) -> None:
    """Prints a line at once, also to a pipe or a file, and whole: the encoder's run prints too."""
    print(f"{line}\n", end="", flush=True)


def _sibling(target: Path, suffix: str) -> Path:
    return target.parent / f".{target.name}.{suffix}"
