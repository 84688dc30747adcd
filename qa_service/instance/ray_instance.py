"""An instance on a node of a Ray cluster: the worker in a thread, behind an actor's methods.

Batches and results are the bytes of a local worker's channel; only their numbers are read here.
"""

from __future__ import annotations

import io
import os
import socket
import threading
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from qa_service.errors import SetupError
from qa_service.instance.channel import WorkerChannel
from qa_service.instance.devices import CPU, on_gpu
from qa_service.instance.gpus import find_gpus
from qa_service.instance.model_folder.manifest import fingerprint_of
from qa_service.instance.worker_messages import MAX_MESSAGE_BYTES, Failed, Setup, encode
from qa_service.locked_folder import LockedFolder
from qa_service.wire.frames import PREFIX, FrameReader, frame_of, receive_frame

CACHE_DIR = Path("~/.cache/qa-server")


class _Numbered(msgspec.Struct, array_like=True):
    """What a `Batch` or a `Check` and its reply begin with; `Failed` has no number."""

    tag: str
    number: int


_numbered_decoder = msgspec.msgpack.Decoder(_Numbered)


class RayInstance:
    """The actor: one instance. Ray calls its methods in several threads at a time."""

    def __init__(self) -> None:
        self._channel, self._theirs = socket.socketpair()
        self._sending = threading.Lock()
        self._waiting: dict[int, Future[bytes]] = {}

    def start(self, setup: Setup, pushed: Sequence[Any]) -> bytes:
        """Loads the model and warms up; returns the body of the worker's `Ready` or `Failed`.

        `pushed` has a reference to what `pack` made, in Ray's object store, or nothing.
        """
        try:
            if setup.device.device != CPU:
                gpus = find_gpus().found
                if not gpus:
                    raise SetupError(f"CUDA sees no GPU on {socket.gethostname()}")
                setup = msgspec.structs.replace(setup, device=on_gpu(gpus[0], may_fall_back=False))
            model_dir = find_model(Path(setup.model_dir), setup.fingerprint, pushed)
        except SetupError as error:
            return bytes(encode(Failed(str(error))))[PREFIX.size :]
        setup = msgspec.structs.replace(setup, model_dir=str(model_dir))
        threading.Thread(target=self._serve, name="worker", daemon=True).start()
        self._channel.sendall(encode(setup))
        frames = FrameReader(MAX_MESSAGE_BYTES)
        ready = self._next_body(frames)
        threading.Thread(target=self._receive, args=[frames], name="results", daemon=True).start()
        return ready

    def run(self, batch: bytes) -> tuple[bytes, float, float]:
        """Runs a batch or a self-test; returns its reply's body, and when it came and left."""
        came_s = time.monotonic()
        number = _numbered_decoder.decode(batch).number
        results = self._waiting[number] = Future()
        with self._sending:
            self._channel.sendall(frame_of(batch))
        body = results.result()
        return body, came_s, time.monotonic()

    def ping(self) -> None:
        """Shows that the process responds."""

    def _serve(self) -> None:
        # Not before: the model's libraries read their environment variables at import.
        from qa_service.instance import worker_main  # noqa: PLC0415

        channel = WorkerChannel(self._theirs)
        try:
            worker_main.serve(channel)
        finally:
            channel.close()

    def _receive(self, frames: FrameReader) -> None:
        try:
            while True:
                body = self._next_body(frames)
                try:
                    self._waiting.pop(_numbered_decoder.decode(body).number).set_result(body)
                except msgspec.DecodeError:  # `Failed`, which is about all that was asked
                    for reply in self._waiting.values():
                        reply.set_result(body)
                    return
        except EOFError:
            os._exit(1)  # this process can answer no more

    def _next_body(self, frames: FrameReader) -> bytes:
        body = receive_frame(frames, self._channel.recv)
        if body is None:
            raise EOFError
        return body


def find_model(model_dir: Path, fingerprint: str, pushed: Sequence[Any]) -> Path:
    """The model's folder on this node: its own, or the pushed one."""
    found = fingerprint_of(model_dir)
    if found == fingerprint:
        return model_dir
    if pushed:
        return _unpacked(f"{model_dir.name}-{fingerprint[:16]}", pushed)
    node = socket.gethostname()
    why = f"{model_dir} holds another model" if found else f"there is no model at {model_dir}"
    raise SetupError(f"on the node {node} {why}; prepare it there, or use --ray_push_model")


def pack(model_dir: Path) -> bytes:
    """A model's folder as a zip archive, without the folders of measured tables."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", strict_timestamps=False) as archive:
        for path in sorted(model_dir.iterdir()):
            if path.is_file():
                archive.write(path, arcname=path.name)
    return data.getvalue()


def _unpacked(name: str, pushed: Sequence[Any]) -> Path:
    """The pushed folder, unpacked by the first instance on the node that needs it."""
    cache = CACHE_DIR.expanduser()
    folder = cache / name
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with closing(LockedFolder("unfinished-", cache)) as unfinished:
        new = unfinished.path / name
        with zipfile.ZipFile(io.BytesIO(_fetch(pushed[0]))) as archive:
            archive.extractall(new)
        try:
            new.rename(folder)
        except OSError:  # another instance was first
            if not folder.is_dir():
                raise
    return folder


def _fetch(reference: Any) -> bytes:  # noqa: ANN401 - of Ray's
    import ray  # noqa: PLC0415 - only an actor has it

    data: bytes = ray.get(reference)
    return data
