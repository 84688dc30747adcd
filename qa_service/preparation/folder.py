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
from qa_service.instance.model_folder.seen_lengths import lengths_file


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
        _clear_up(target)
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
        _carry_over(target, new)
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _carry_over(target: Path, new: Path) -> None:
    """Keeps how long questions were: the new model will be asked the same ones."""
    if (seen := lengths_file(target)).exists():
        lengths_file(new).parent.mkdir(exist_ok=True)
        shutil.copyfile(seen, lengths_file(new))


def _clear_up(target: Path) -> None:
    old = _sibling(target, "old")
    if old.exists() and not target.exists():
        old.rename(target)  # the run died between its two renames
    for leftover in (old, _sibling(target, "new")):
        shutil.rmtree(leftover, ignore_errors=True)


def _sibling(target: Path, suffix: str) -> Path:
    return target.parent / f".{target.name}.{suffix}"
