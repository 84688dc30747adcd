"""What `--model` names, and what is served for it."""

from pathlib import Path

import pytest

from qa_service.errors import SetupError
from qa_service.server.models import preparing
from qa_service.server.models.preparing import prepare_first, served_folder


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def prepared(monkeypatch):
    """What the program that prepares was asked for."""
    asked = []
    monkeypatch.setattr(preparing, "_run", lambda command, _: asked.append(command[-1]))
    return asked


def make(path, name):
    Path(path).mkdir(parents=True)
    Path(path, name).touch()


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("builtin", "builtin"),
        ("saved_models/builtin", "builtin"),
        ("owner/name", "owner/name"),
        ("name", "name"),
        ("trained", "trained"),
    ],
)
def test_a_source_is_prepared_and_served_from_saved_models(prepared, model, source):
    make("trained", "config.json")
    said = []
    prepare_first(Path(model), may_prepare=True, say=said.append)
    assert prepared == [source]
    assert said[0].startswith(f"{model} is not prepared yet")
    target = f"saved_models/{source.replace('/', '--')}"
    make(target, "manifest.json")
    assert served_folder(Path(model)) == Path(target)
    prepare_first(Path(model), may_prepare=True, say=said.append)
    assert len(prepared) == 1


@pytest.mark.parametrize("model", ["elsewhere/m", "notes", "saved_models/other", "/nowhere/at/all"])
def test_a_folder_that_is_no_source_is_served_unprepared(prepared, model):
    make("elsewhere", "x")
    make("notes", "x")
    prepare_first(Path(model), may_prepare=True, say=print)
    assert prepared == []
    assert served_folder(Path(model)) == Path(model)


def test_the_program_that_prepares_runs_and_its_reason_is_the_starts(monkeypatch):
    pytest.importorskip("transformers", reason="the extra `train` is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = []
    with pytest.raises(SetupError, match=r"^the model could not be prepared: there is no dir.*a/b"):
        prepare_first(Path("a/b"), may_prepare=True, say=said.append)
    assert "there is no directory a/b" in said[-1]


def test_the_name_of_a_prepared_model_is_enough():
    make("saved_models/bertqa", "manifest.json")
    assert served_folder(Path("bertqa")) == Path("saved_models/bertqa")


def test_no_prepare_refuses_a_model_that_is_not_prepared(prepared):
    with pytest.raises(SetupError, match=r"builtin is not prepared.*--no-prepare"):
        prepare_first(Path("builtin"), may_prepare=False, say=print)
    assert prepared == []
