"""Models of no size, and a file that says which of them are served: for the instant engine."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.frames import ASK, frame, receive
from harness.server import INSTANT, RunningServer
from qa_service.instance.model_folder.costs_dir import COSTS_DIR
from qa_service.instance.model_folder.manifest import Manifest, ReadingConfig, save_manifest


def copy_model(
    model: Path, to: Path, *left_out: str, copy_file: Callable[..., Any] = shutil.copy2
) -> Path:
    """Copies a prepared model that others serve, with what was measured of it.

    Servers write compiled shapes and partial files into `costs` meanwhile, which may be gone before
    they are copied; of that folder only whole tables are taken.

    Args:
        left_out: Names, or patterns of them, of what else is not copied.
        copy_file: Copies one of its files.
    """

    def ignored(folder: str, names: list[str]) -> set[str]:
        is_costs = Path(folder).name == COSTS_DIR
        unmade = {name for name in names if is_costs and not name.endswith(".json")}
        return unmade | shutil.ignore_patterns(*left_out)(folder, names)

    return Path(shutil.copytree(model, to, ignore=ignored, copy_function=copy_file))


def link_model(model: Path, to: Path, *left_out: str) -> Path:
    """The same with links in place of its weights, which take a second to copy.

    Its JSON may be written to; of another file, `replace_file` takes the link away.
    """

    def link_or_copy(source: str, target: str) -> None:
        if source.endswith(".json"):
            shutil.copy2(source, target)
        else:
            Path(target).symlink_to(Path(source).resolve())

    return copy_model(model, to, *left_out, copy_file=link_or_copy)


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file anew, and so not to what it may be a link to."""
    path.unlink()
    path.write_bytes(data)


def make_manifest(name: str, **fields: object) -> Manifest:
    """A manifest of no files, with the fields that are given."""
    usual: dict[str, Any] = {
        "source": name, "fingerprint": "", "files": {}, "inputs": ("input_ids", "attention_mask"),
        "pad_token_id": 0, "max_sequence_tokens": 512, "can_abstain": False,
        "reading": ReadingConfig(), "versions": {},
    }  # fmt: skip
    return Manifest(name=name, **{**usual, **fields})


def write_version(model: Path, number: int) -> Path:
    """Writes a version whose files are all there; its manifest comes last."""
    folder = model / str(number)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text(json.dumps({"version": number}))
    write_manifest(folder)
    return folder


def write_manifest(folder: Path) -> None:
    """Makes a folder's files a model."""
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }
    made = make_manifest(folder.parent.name, fingerprint=folder.name, files=digests)
    save_manifest(folder, made)


class ModelFile:
    """The file that says what is served: the model `m`, whose versions are 1, 2, and so on."""

    def __init__(self, folder: Path, num_versions: int = 2) -> None:
        self.path = folder / "server.toml"
        self.model = folder / "m"
        for number in range(1, num_versions + 1):
            write_version(self.model, number)

    def write(self, keys: str, more: str = "") -> Path:
        """Writes the file: the keys of `[models.m]`, and more behind them."""
        self.path.write_text(f'[models.m]\npath = "{self.model}"\n{keys}\n{more}\n')
        return self.path

    def flags(self, *more: str) -> tuple[str, ...]:
        """The flags of a server that serves it with the instant engine, one instance a version."""
        return (*INSTANT, "--config", str(self.path), *more)

    def apply(self, server: RunningServer, keys: str, more: str = "") -> None:
        """Writes the file and sends SIGHUP to the server."""
        self.write(keys, more)
        server.signal(signal.SIGHUP)


def states(server: RunningServer) -> Mapping[str, str]:
    return server.health()["models"]


def count_versions(server: RunningServer, num_requests: int, **request: object) -> Counter:
    """The number of requests that each version answers; errors by their code."""
    counted: Counter = Counter()
    with server.connect() as sock:
        for first in range(0, num_requests, 50):
            number = min(50, num_requests - first)
            sock.sendall(b"".join(frame({"id": i, **ASK, **request}) for i in range(number)))
            for _ in range(number):
                reply = receive(sock)
                counted[reply["error"]["code"] if "error" in reply else reply["version"]] += 1
    return counted
