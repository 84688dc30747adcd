"""What `--model` names, and what is served for it."""

import contextlib
import logging
import os
import signal
import socket
from pathlib import Path

import pytest

from harness.process import GIVE_UP_S
from qa_service.errors import SetupError
from qa_service.files import SAVED_MODELS
from qa_service.net.event_loop import EventLoop
from qa_service.server.models.model_options import RepositoryOptions
from qa_service.server.models.preparing import (
    TIMEOUT_S,
    Preparing,
    prepare_first,
    served_folder,
    source_to_prepare,
)
from tests.support import FakeTimeLoop, present, run_until, skip_without


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / SAVED_MODELS).mkdir()
    return tmp_path


@pytest.fixture
def with_encoder(folder, encoder):
    """The encoder, which is prepared with a model, is there."""
    (folder / SAVED_MODELS / "encoder").symlink_to(encoder)


def repository(model, **given):
    return RepositoryOptions(model=Path(model), **given)


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
def test_a_source_is_prepared_and_served_from_saved_models(model, source, caplog):
    caplog.set_level(logging.INFO)
    make("trained", "config.json")
    assert source_to_prepare(repository(model)) == source
    assert caplog.messages[0].startswith(f"{model} is not prepared yet")
    target = f"saved_models/{source.replace('/', '--')}"
    make(target, "manifest.json")
    assert served_folder(repository(model)) == Path(target)
    assert source_to_prepare(repository(model)) is None


@pytest.mark.parametrize("model", ["elsewhere/m", "notes", "saved_models/other", "/nowhere/at/all"])
def test_a_folder_that_is_no_source_is_served_unprepared(model):
    make("elsewhere", "x")
    make("notes", "x")
    assert source_to_prepare(repository(model)) is None
    assert served_folder(repository(model)) == Path(model)


def test_the_program_that_prepares_runs_and_its_reason_is_the_starts(
    with_encoder, monkeypatch, caplog
):
    skip_without("transformers", "the extra `models` is not installed")
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SetupError, match=r"^the model could not be prepared: there is no dir.*a/b"):
        prepare_first(repository("a/b"))
    assert "there is no directory a/b" not in caplog.text, "the server says it"


@pytest.fixture
def silent_hub(with_encoder, monkeypatch):
    skip_without("transformers", "the extra `models` is not installed")
    with socket.create_server(("127.0.0.1", 0)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", f"{10 * GIVE_UP_S:.0f}")
        yield hub


class TestSilentHub:
    def test_it_is_waited_for_as_long_as_its_variable_says(self, silent_hub, monkeypatch):
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "1")
        with pytest.raises(SetupError, match=r"cannot be fetched .* \(timed out\)"):
            prepare_first(repository("a/b"))

    def test_it_ends_at_its_time_limit_with_a_reason(self, silent_hub):
        loop, failures = FakeTimeLoop(), []
        with contextlib.closing(loop):
            preparing = Preparing(loop, "a/b", SAVED_MODELS, failures.append)
            with silent_hub.accept()[0]:
                loop.clock.pass_s(TIMEOUT_S)
                run_until(loop, lambda: preparing.child.reap() and bool(failures))
            assert failures == ["the model could not be prepared: it took longer than 3600 s"]
            assert preparing.child.exit_code == -signal.SIGKILL

    def test_one_that_is_killed_says_so(self, silent_hub):
        loop, failures = EventLoop(), []
        with contextlib.closing(loop):
            preparing = Preparing(loop, "a/b", SAVED_MODELS, failures.append)
            with silent_hub.accept()[0]:
                os.kill(present(preparing.child.pid), signal.SIGKILL)
                run_until(loop, lambda: bool(failures))
        assert failures == ["the model could not be prepared: its program was killed by SIGKILL"]


def test_the_name_of_a_prepared_model_is_enough():
    make("saved_models/bertqa", "manifest.json")
    assert served_folder(repository("bertqa")) == Path("saved_models/bertqa")


def test_no_prepare_refuses_a_model_that_is_not_prepared():
    with pytest.raises(SetupError, match=r"builtin is not prepared.*--no-prepare"):
        source_to_prepare(repository("builtin", prepare=False))


@pytest.mark.parametrize(
    ("given", "where"), [({}, "data/qa-server"), ({"saved_models": Path("mine")}, "mine")]
)
def test_without_the_folder_it_is_the_users_or_the_flags(folder, monkeypatch, caplog, given, where):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    (folder / SAVED_MODELS).rmdir()
    monkeypatch.chdir(folder)
    its = RepositoryOptions(**given)
    assert source_to_prepare(its) == "builtin"
    target = its.models_dir / "builtin"
    assert target.absolute() == folder / where / "builtin"
    assert caplog.messages == [
        f"saved_models/builtin is not prepared yet: preparing it in {target}"
    ]
    make(target, "manifest.json")
    assert served_folder(its) == target
    assert source_to_prepare(its) is None


def test_a_path_that_may_not_be_looked_at_is_left_to_who_loads_it():
    its = repository("y" * 300)  # no file system has such a name
    assert source_to_prepare(its) is None
    assert served_folder(its) == its.model
