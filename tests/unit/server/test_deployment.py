"""Looks for changes of what is served."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qa_service.errors import SetupError
from qa_service.net.readings import HANGS_AFTER_S, MAX_READINGS
from qa_service.server import deployment as module
from qa_service.server.config import ServerConfig
from qa_service.server.deployment import Deployment, encoder_of
from qa_service.server.models import plan
from qa_service.server.models.model_options import ModelOptions
from tests.unit.server.fake_services import ThreadClock
from tests.unit.server.test_config import parse_server_flags

POLL_S = 5


class Source:
    """A configuration that cannot be read for a while."""

    file = Path("server.toml")

    def __init__(self, config):
        self.config, self.fault, self.reads = config, None, 0
        self.written, self.is_complete = 0, False

    def stamp(self):
        return self.written

    def lists_models(self):
        return self.is_complete

    def read(self):
        self.reads += 1
        if self.fault:
            raise self.fault
        return self.config


class Catalog:
    """Remembers the plans that were applied, and how often a model was to be tried again."""

    def __init__(self):
        self.plan, self.applied, self.retries, self.routes = None, [], 0, {}
        self.by_name = {"a": SimpleNamespace(try_again=self._count)}

    def _count(self):
        self.retries += 1

    def apply(self, plan):
        self.plan = plan
        self.applied.append(plan)


class Setting:
    def __init__(self, monkeypatch, **options):
        self.loop, self.catalog, self.used = ThreadClock(), Catalog(), []
        self.source = Source(ServerConfig.of(poll_interval_s=POLL_S, **options))
        self.plan = SimpleNamespace(routes={})
        monkeypatch.setattr(module, "load_manifest", lambda _: SimpleNamespace(name="a"))
        for where in (module, plan):
            monkeypatch.setattr(where, "make_plan", self._make_plan)
        self.generations, self.planned = [], []
        others: dict[str, Any] = {
            "source": self.source,
            "loop": self.loop,
            "catalog": self.catalog,
            "router": SimpleNamespace(use=lambda _: None),
            "engines": SimpleNamespace(is_serving=False, choose=None),
            "collections": SimpleNamespace(use=lambda *given: self.used.append(given)),
        }
        self.deployment = Deployment(self.source.config, **others)
        self.deployment.start()
        self.deployment.end_start()

    def poll(self):
        self.loop.advance(POLL_S)
        self.loop.run_thread()

    def reload(self):
        self.deployment.reload()
        self.loop.run_thread()

    def _make_plan(self, *given):
        self.planned.append(given[0])
        self.generations.append(given[-1])
        return self.plan


@pytest.fixture
def setting(monkeypatch):
    return Setting(monkeypatch)


def errors(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.ERROR]


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), SetupError("no")])
def test_a_failed_check_for_changes_is_repeated(setting, fault, caplog):
    setting.source.fault = fault
    for _ in range(3):
        setting.poll()
    assert setting.source.reads == 3
    assert errors(caplog) == [f"reload failed, configuration unchanged: {fault}"]
    assert setting.deployment.fault == str(fault)
    setting.source.fault = None
    setting.poll()
    assert len(setting.used) == 2
    assert not setting.deployment.fault


def test_a_check_for_changes_follows_an_internal_error(setting):
    setting.source.fault = ZeroDivisionError()
    setting.loop.advance(POLL_S)
    with pytest.raises(ZeroDivisionError):  # which the loop logs
        setting.loop.run_thread()
    setting.loop.advance(POLL_S)
    assert len(setting.loop.threads) == 1


def test_nothing_is_read_on_the_loop(setting):
    before = setting.source.reads, len(setting.generations)
    setting.deployment.reload()
    setting.loop.advance(POLL_S)
    assert (setting.source.reads, len(setting.generations)) == before


def test_a_hanging_poll_is_waited_for_and_logged_once(setting, caplog):
    for _ in range(5):
        setting.loop.advance(POLL_S)
    assert len(setting.loop.threads) == 1
    (line,) = errors(caplog)
    assert line.endswith(f"could not be read for {HANGS_AFTER_S:g} s: one of them hangs")
    assert line.endswith(setting.deployment.fault)
    setting.plan = SimpleNamespace(routes={}, number=2)
    setting.loop.run_thread()
    assert not setting.deployment.fault
    assert setting.catalog.plan is setting.plan
    setting.loop.advance(POLL_S)
    assert len(setting.loop.threads) == 1


def test_a_reading_that_paused_too_gets_its_time_again(setting):
    setting.loop.advance(POLL_S)
    setting.loop.pause(2 * HANGS_AFTER_S)
    assert not setting.deployment.fault
    setting.loop.advance(HANGS_AFTER_S)
    assert setting.deployment.fault


def test_a_reload_does_not_wait_for_a_hanging_check_and_drops_its_result(setting):
    setting.loop.advance(3 * POLL_S)
    setting.deployment.reload()
    setting.plan = SimpleNamespace(routes={}, number=2)
    setting.loop.run_thread(1)
    assert not setting.deployment.fault
    assert setting.catalog.retries == 1
    new = setting.catalog.plan
    setting.plan = SimpleNamespace(routes={}, number=1)
    setting.loop.run_thread()  # what hung comes in the end
    assert setting.catalog.plan is new
    assert setting.catalog.retries == 1


def test_polls_continue_while_a_check_hangs_after_a_reload(setting):
    setting.loop.advance(POLL_S)
    setting.deployment.reload()
    setting.loop.run_thread(1)
    setting.loop.advance(POLL_S)
    assert len(setting.loop.threads) == 2


def test_the_number_of_hanging_checks_for_changes_is_bounded(setting, caplog):
    for _ in range(MAX_READINGS + 2):
        setting.deployment.reload()
    assert len(setting.loop.threads) == MAX_READINGS
    assert setting.deployment.fault.startswith(f"{MAX_READINGS} looks")
    assert len(errors(caplog)) == 1


def test_a_poll_keeps_the_generation_of_the_last_reload(setting):
    setting.reload()
    setting.poll()
    assert setting.generations == [0, 1, 1]
    assert setting.catalog.retries == 1


def test_while_the_server_starts_nothing_is_read_again(monkeypatch):
    monkeypatch.setattr(Deployment, "end_start", lambda _: None)
    setting = Setting(monkeypatch)
    setting.loop.advance(3 * POLL_S)
    assert not setting.loop.threads


def test_a_poll_reads_a_file_once_it_has_been_still_since_the_poll_before(setting):
    for number in (1, 2):
        setting.source.written = number
        setting.poll()
        assert setting.source.reads == 0
    setting.poll()
    assert setting.source.reads == 1


def test_a_reload_reads_a_file_at_once(setting):
    setting.source.written = 1
    setting.reload()
    assert setting.source.reads == 1
    setting.poll()
    assert setting.source.reads == 2


def models(names):
    return ServerConfig(models={name: ModelOptions(path=Path(name)) for name in names})


class TestModelsOfTheFile:
    """The file has named two models."""

    @pytest.fixture
    def setting(self, setting):
        setting.source.config = models("ab")
        setting.reload()
        return setting

    @staticmethod
    def read(setting, names):
        setting.source.config = models(names)
        setting.reload()
        return setting.deployment.fault

    @pytest.mark.parametrize(
        ("names", "missing"), [("", "a, b are"), ("a", "b is"), ("b", "a is"), ("c", "a, b are")]
    )
    def test_fewer_are_a_fault_unless_it_says_so(self, setting, names, missing):
        words = f"server.toml has fewer models than before: {missing} missing; a line [models]"
        assert self.read(setting, names).startswith(words)
        assert set(setting.planned[-1]) == set("ab")
        setting.source.is_complete = True
        assert not self.read(setting, names)
        assert set(setting.planned[-1]) == set(names)
        setting.source.is_complete = False
        assert not self.read(setting, names)

    @pytest.mark.parametrize("names", ["ac", "cd", "abc"])
    def test_as_many_under_other_names_are_none(self, setting, names):
        assert not self.read(setting, names)
        assert set(setting.planned[-1]) == set(names)


@pytest.mark.parametrize("changed", [True, False])
def test_a_reload_after_a_change_of_the_tokens_loads_no_model_again(monkeypatch, tmp_path, changed):
    tokens = tmp_path / "tokens"
    tokens.write_text("one")
    setting = Setting(monkeypatch, auth_token_file=tokens)
    if changed:
        tokens.write_text("another")
    for _ in range(2):
        setting.reload()
    assert setting.generations == ([0, 0, 1] if changed else [0, 1, 2])


@pytest.mark.parametrize(
    ("flags", "folder"),
    [
        ({}, "saved_models/encoder"),
        ({"model": "a/models/one"}, "a/models/encoder"),
        ({"model": "a/models/one", "encoder": "mine"}, "mine"),
    ],
)
def test_the_encoder_is_looked_for_where_the_model_is(monkeypatch, tmp_path, flags, folder):
    monkeypatch.chdir(tmp_path)
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    assert encoder_of(parse_server_flags(words)) == tmp_path / folder
