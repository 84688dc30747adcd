import hashlib
import itertools
import json
import re
from importlib.util import find_spec
from pathlib import Path

import huggingface_hub.constants
import pytest

from qa_service.errors import SetupError
from qa_service.instance.model_folder.manifest import BUILTINS
from qa_service.preparation import sources
from qa_service.preparation.encoders import MINILM, MINILM_DIR, MODELS_DIR, SUMS_FILE
from qa_service.preparation.sources import find_source
from tests.support import needs_torch
from training.shipped_results import sums_of

_WHOLE = ("config.json", "tokenizer.json", "model.safetensors")


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """The hub's cache, empty, with the hub out of reach."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _cached(hub_cache: Path, owner: str, model: str, *files: str) -> Path:
    folder = hub_cache / f"models--{owner}--{model}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("1" * 40)
    return _folder(folder / "snapshots" / ("1" * 40), *files)


def _folder(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text(name)
    return folder


def _names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_builtin_is_an_encoder_and_an_adapter():
    source = find_source("builtin")
    assert (source.name, source.label) == ("builtin", "builtin")
    names = _names(source.files())
    assert {"model.safetensors", "tokenizer.json", "adapter_model.safetensors"} <= set(names)
    assert source.reading_file.parent.name == "builtin"


def _shipped_files() -> list[str]:
    return [
        f"{name}/{line.partition('  ')[2]}"
        for name in ("builtin", "builtin-base", MINILM_DIR.name)
        for line in (MODELS_DIR / name / SUMS_FILE).read_text().splitlines()
    ]


def _altered(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


_DAMAGES = {"cut": lambda data: data[:-1], "altered": _altered, "missing": None}


@pytest.mark.parametrize(
    ("file", "damage"), [*zip(_shipped_files(), itertools.cycle(_DAMAGES), strict=False)]
)
def test_each_shipped_file_is_named_by_its_hash_if_it_is_another(
    tmp_path, monkeypatch, file, damage
):
    folder = tmp_path / Path(file).parent
    folder.mkdir()
    for path in (MODELS_DIR / file).parent.iterdir():
        (folder / path.name).symlink_to(path)
    digest = hashlib.sha256((MODELS_DIR / file).read_bytes()).hexdigest()
    (tmp_path / file).unlink()
    if damaged := _DAMAGES[damage]:
        (tmp_path / file).write_bytes(damaged((MODELS_DIR / file).read_bytes()))
    model = folder.name
    if model == MINILM_DIR.name:
        model = "builtin"
        monkeypatch.setattr(sources, "MINILM_DIR", folder)
    else:
        monkeypatch.setattr(sources, "MODELS_DIR", tmp_path)
    with pytest.raises(SetupError, match=f"{file} should have the SHA-256 {digest[:12]}"):
        find_source(model)


def test_every_shipped_file_has_its_hash():
    for folder in filter(Path.is_dir, MODELS_DIR.iterdir()):
        assert (folder / SUMS_FILE).read_text() == sums_of(folder), (
            "python -m training.shipped_results --sums"
        )


def test_missing_adapter_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MODELS_DIR", tmp_path)
    with pytest.raises(SetupError, match="from a clone of the project"):
        find_source("builtin")


def test_a_model_is_named_after_its_folder(tmp_path, monkeypatch):
    _folder(tmp_path / "my-model", *_WHOLE)
    monkeypatch.chdir(tmp_path / "my-model")
    for model in (".", "../my-model", str(tmp_path / "my-model")):
        source = find_source(model)
        assert (source.name, source.label) == ("my-model", "my-model")
        assert source.model_dir == (tmp_path / "my-model").resolve()


def test_only_files_that_determine_the_model_count(tmp_path):
    folder = _folder(
        tmp_path / "m", "config.json", "vocab.txt", "model.safetensors", "pytorch_model.bin",
        "optimizer.pt", "README.md", "tf_model.h5", "reading.json",
    )  # fmt: skip
    names = _names(find_source(str(folder)).files())
    assert names == ["config.json", "reading.json", "vocab.txt", "model.safetensors"]
    (folder / "model.safetensors").unlink()
    assert _names(find_source(str(folder)).files())[-1] == "pytorch_model.bin"


@pytest.mark.parametrize("missing", _WHOLE)
def test_directory_without_a_whole_model_is_refused(tmp_path, missing):
    files = [name for name in _WHOLE if name != missing]
    with pytest.raises(SetupError, match=f"no .*{re.escape(missing)}"):
        find_source(str(_folder(tmp_path / "m", *files)))


def test_incomplete_model_in_the_hub_cache_is_refused(hub_cache):
    _cached(hub_cache, "ann", "half", "config.json", "tokenizer.json")
    words = "no weights .* and no graph" if find_spec("torch") else "needs torch"
    with pytest.raises(SetupError, match=words):
        find_source("ann/half")


def test_a_graph_in_the_hub_cache_needs_no_weights(hub_cache):
    snapshot = _cached(hub_cache, "ann", "graph", "config.json", "tokenizer.json")
    _folder(snapshot / "onnx", "model.onnx", "model.onnx_data")
    source = find_source("ann/graph")
    assert (source.label, source.graph) == ("ann/graph", snapshot / "onnx" / "model.onnx")
    assert not source.needs_torch


@pytest.mark.parametrize("name", BUILTINS)
def test_directory_cannot_take_a_builtin_models_name(tmp_path, name):
    with pytest.raises(SetupError, match="name of a built-in model"):
        find_source(str(_folder(tmp_path / name, "config.json")))


def _adapter(folder: Path, base: str) -> Path:
    _folder(folder, "adapter_model.safetensors", "reading.json", "MODEL_CARD.md")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    return folder


def test_directory_with_an_adapter_is_put_on_the_encoder(tmp_path):
    source = find_source(str(_adapter(tmp_path / "second", MINILM)))
    assert (source.name, source.label) == ("second", "second")
    assert source.model_dir == find_source("builtin").model_dir
    assert source.reading_file == tmp_path / "second" / "reading.json"
    assert "adapter_model.safetensors" in _names(source.files())


@needs_torch
def test_adapter_is_put_on_a_directory_that_its_config_names(tmp_path, monkeypatch):
    base = _folder(tmp_path / "base", *_WHOLE)
    monkeypatch.chdir(tmp_path)
    for number, named in enumerate((str(base), "../base", "base")):
        adapter = _adapter(tmp_path / f"deep{number}" / "adapter", named)
        if named == "../base":
            adapter = _adapter(tmp_path / "adapter", "base")  # the base is in the same folder
        assert find_source(str(adapter)).model_dir == base


@needs_torch
def test_adapter_is_put_on_a_model_in_the_hubs_cache(tmp_path, hub_cache):
    snapshot = _cached(hub_cache, "some", "encoder", *_WHOLE)
    source = find_source(str(_adapter(tmp_path / "second", "some/encoder")))
    assert (source.label, source.model_dir) == ("second", snapshot)


@needs_torch
@pytest.mark.parametrize(
    ("base", "words"), [("some/other", "cannot be fetched"), ("/no/such", "no such directory")]
)
def test_adapter_over_a_missing_model_is_refused(tmp_path, hub_cache, base, words):
    with pytest.raises(SetupError, match=words):
        find_source(str(_adapter(tmp_path / "second", base)))


@pytest.mark.parametrize("config", ["{}", "[]", "no json"])
def test_broken_adapter_is_refused(tmp_path, config):
    (tmp_path / "adapter_config.json").write_text(config)
    with pytest.raises(SetupError, match="cannot be read"):
        find_source(str(tmp_path))


@pytest.mark.parametrize("model", ["/no/such/folder", "a/b/c", "../gone", "~nosuchuser/m", "a b"])
def test_a_name_that_is_neither_directory_nor_hub_id_is_refused(model):
    with pytest.raises(SetupError, match="no such directory"):
        find_source(model)


@needs_torch
def test_models_of_two_owners_have_two_names(hub_cache):
    for owner in ("ann", "bob"):
        _cached(hub_cache, owner, "squad", *_WHOLE)
    assert find_source("ann/squad").name == "ann--squad"
    assert find_source("bob/squad").name == "bob--squad"
    assert find_source("bob/squad").label == "bob/squad"


@pytest.mark.parametrize("model", ["deepset/bert-base-cased-squad2", "distilbert-base-squad"])
def test_unreachable_hub_names_the_ways_out(hub_cache, model):
    with pytest.raises(SetupError) as raised:
        find_source(model)
    message = str(raised.value)
    assert "\n" not in message
    for words in (model, "--model DIRECTORY", "--model builtin", "HF_HOME", "offline mode"):
        assert words in message
