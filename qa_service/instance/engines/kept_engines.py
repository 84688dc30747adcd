"""What TensorRT compiled of a model, kept in its folder: a folder for each precision and profile.

    tensorrt/fp16-16x384/*.engine      and others that ONNX Runtime writes
    tensorrt/fp16-16x384/hashes.json   theirs, and that of the model's file

ONNX Runtime reads the files while it opens a session, and does not notice that an engine is of
other weights than this model's. One engine runs all shapes, so where it computes wrongly, all files
go.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
from filelock import FileLock

from qa_service.errors import SetupError
from qa_service.files import read_file, sha256_of

logger = logging.getLogger(__name__)

HASHES_FILE = "hashes.json"
_Hashes = dict[str, str]


class KeptEngines:
    """The files of one precision and profile.

    Args:
        path: Their folder.
        model_hash: That of the file that is compiled.

    Attributes:
        are_old: Whether an earlier start has compiled them.
    """

    def __init__(self, path: Path, model_hash: str) -> None:
        self.path = path
        self.are_old = False
        self._model_hash = model_hash
        self._known: dict[tuple[str, int, int], str] = {}
        """Hashes by name, size and time: a file of gigabytes is read once, before its use."""

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Has the folder for this instance alone, with files that are as they were written."""
        lock = FileLock(self.path / ".lock", mode=0o666)
        try:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock.acquire()
                if self._kept_hashes() != self._hashes():
                    self.remove("a file is damaged, or of another model")
                self.are_old = bool(self._files())
            except OSError as error:
                what = f"TensorRT's engines cannot be kept in {self.path}"
                raise SetupError(f"{what}: {error}") from None
            yield
            with contextlib.suppress(OSError):  # without them the next start compiles again
                found = self._hashes()
                if found != self._kept_hashes():
                    (self.path / HASHES_FILE).write_bytes(msgspec.json.encode(found))
        finally:
            lock.release()

    def remove(self, why: str) -> None:
        files = self._files()
        if files:
            logger.warning("%s; all that TensorRT keeps in %s is removed", why, self.path)
        for file in [*files, self.path / HASHES_FILE]:
            file.unlink(missing_ok=True)

    def _kept_hashes(self) -> _Hashes:
        try:
            return msgspec.json.decode(read_file(self.path / HASHES_FILE), type=_Hashes)
        except (OSError, msgspec.DecodeError):
            return {}

    def _hashes(self) -> _Hashes:
        found = {"": self._model_hash}
        for path in self._files():
            its = path.stat()
            written = path.name, its.st_size, its.st_mtime_ns
            if written not in self._known:
                self._known[written] = sha256_of(path)
            found[path.name] = self._known[written]
        return found

    def _files(self) -> list[Path]:
        others = {".lock", HASHES_FILE}
        return sorted(path for path in self.path.glob("*") if path.name not in others)
